"""SimbaV2's nets inside FastTD3: what happens to them at each step."""

import pytest
import torch
from small import batch, learner, weights

SIMBA = {"net": "simbav2", "critic_hidden": (8, 8), "weight_decay": 0.0, "policy_delay": 1, "critic_lr": 1e-2}


def off_the_sphere(module):
    """How far the rows of its kernels are from length one, at most."""
    return max((kernel.norm(dim=-1) - 1).abs().max().item() for kernel in module.layers[::2])


def test_kernels_are_on_the_sphere_after_every_step_and_scales_move():
    made = learner(spread=0.0, **SIMBA)
    scales = [p.clone() for p in made.critic.nets.layers[1:-1:2]]
    for update in range(5):
        before = weights(made.critic), weights(made.policy.actor)
        made.update(batch(seed=update))
        assert off_the_sphere(made.critic.nets) < 1e-5 and off_the_sphere(made.policy.actor.net) < 1e-5
        assert not torch.equal(before[0], weights(made.critic))
        assert not torch.equal(before[1], weights(made.policy.actor))
    moved = zip(made.critic.nets.layers[1:-1:2], scales, strict=True)
    assert all((now - then).abs().max() > 1e-4 for now, then in moved)


def test_targets_follow_as_they_are_and_are_not_projected():
    made = learner(spread=0.0, tau=0.3, **SIMBA)
    for update in range(4):
        before = weights(made.target_critic)
        made.update(batch(seed=update))
        assert torch.allclose(
            weights(made.target_critic), before + 0.3 * (weights(made.critic) - before), atol=1e-6
        )
    assert off_the_sphere(made.target_critic.nets) > 1e-5


def test_a_port_drifts_off_the_sphere():
    made = learner(**SIMBA | {"net": "simbav2_port"})
    for update in range(5):
        made.update(batch(seed=update))
    assert off_the_sphere(made.critic.nets) > 1e-3


@pytest.mark.parametrize("net", ["simbav2", "simbav2_port"])
def test_it_learns_a_known_batch(net):
    made = learner(spread=0.0, **SIMBA | {"net": net})
    sample = batch(64, discount=0.0)
    losses = [made.update(sample).metrics["loss/critic"].item() for _ in range(150)]
    assert losses[-1] < 0.6 * losses[0]
