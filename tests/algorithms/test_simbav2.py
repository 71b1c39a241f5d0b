"""SimbaV2 networks in FastTD3: constraints after each update."""

import pytest
import torch
from td3_cases import batch, learner, weights

SIMBA = {"net": "simbav2", "critic_hidden": (8, 8), "weight_decay": 0.0, "policy_delay": 1, "critic_lr": 1e-2}


def max_norm_error(module):
    """Return the largest deviation of a kernel row's norm from 1."""
    return max((kernel.norm(dim=-1) - 1).abs().max().item() for kernel in module.layers[::2])


def test_kernel_rows_have_unit_norm_after_every_step_and_scales_move():
    agent = learner(spread=0.0, **SIMBA)
    scales = [p.clone() for p in agent.critic.nets.layers[1:-1:2]]
    for update in range(5):
        before = weights(agent.critic), weights(agent.policy.actor)
        agent.update(batch(seed=update))
        assert max_norm_error(agent.critic.nets) < 1e-5 and max_norm_error(agent.policy.actor.net) < 1e-5
        assert not torch.equal(before[0], weights(agent.critic))
        assert not torch.equal(before[1], weights(agent.policy.actor))
    moved = zip(agent.critic.nets.layers[1:-1:2], scales, strict=True)
    assert all((now - then).abs().max() > 1e-4 for now, then in moved)


def test_target_networks_are_averaged_without_projection():
    agent = learner(spread=0.0, tau=0.3, **SIMBA)
    for update in range(4):
        before = weights(agent.target_critic)
        agent.update(batch(seed=update))
        assert torch.allclose(
            weights(agent.target_critic), before + 0.3 * (weights(agent.critic) - before), atol=1e-6
        )
    assert max_norm_error(agent.target_critic.nets) > 1e-5


def test_the_port_variant_does_not_project_kernels():
    agent = learner(**SIMBA | {"net": "simbav2_port"})
    for update in range(5):
        agent.update(batch(seed=update))
    assert max_norm_error(agent.critic.nets) > 1e-3


@pytest.mark.parametrize("net", ["simbav2", "simbav2_port"])
def test_simbav2_fits_a_batch(net):
    agent = learner(spread=0.0, **SIMBA | {"net": net})
    sample = batch(64, discount=0.0)
    losses = [agent.update(sample).metrics["loss/critic"].item() for _ in range(150)]
    assert losses[-1] < 0.6 * losses[0]
