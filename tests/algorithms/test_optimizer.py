import copy
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small import PLAIN, batch, differing, learner, weights

from troop.algorithms.optim.optimizer import OptimizerConfig
from troop.core.peers import NO_PEERS


def rates(made):
    return [
        d.optimizer.param_groups[0]["lr"]
        for d in (made.critic_learner.optimizer, made.actor_learner.optimizer)
    ]


def cosine(lr, end, done):
    """Loshchilov and Hutter 2017: from lr to lr * end over half a period."""
    return lr * end + (lr - lr * end) * (1 + math.cos(math.pi * min(done, 1.0))) / 2


def test_rates_follow_the_cosine_and_stay_at_its_end():
    made = learner(lr_end=0.1, lr_updates=10, policy_delay=1, critic_lr=1e-3, actor_lr=5e-4)
    for update in range(14):
        made.update(batch(seed=update))
        assert rates(made) == pytest.approx([cosine(1e-3, 0.1, update / 10), cosine(5e-4, 0.1, update / 10)])


def test_a_delayed_policy_runs_along_the_same_cosine_as_the_critics():
    made = learner(lr_end=0.1, lr_updates=10, policy_delay=5, actor_lr=1e-3)
    for update in range(10):
        made.update(batch(seed=update))
    assert rates(made)[1] == pytest.approx(cosine(1e-3, 0.1, 5 / 10))  # its second step, after five updates


def test_constant_rates_by_default():
    made = learner()
    for update in range(3):
        made.update(batch(seed=update))
    assert rates(made) == [3e-4, 3e-4]


def test_the_schedule_goes_on_after_a_load():
    settings = {"lr_end": 0.1, "lr_updates": 10, "policy_delay": 1, "critic_lr": 1e-3}
    made = learner(**settings)
    for update in range(4):
        made.update(batch(seed=update))
    other = learner(seed=3, **settings)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    other.update(batch(seed=9))
    assert rates(other)[0] == pytest.approx(cosine(1e-3, 0.1, 4 / 10))


def norm(module):
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in module.parameters()))


def test_gradients_are_clipped_to_the_norm_or_not_at_all():
    free, clipped = learner(**PLAIN), learner(max_grad_norm=0.01, **PLAIN)
    for made in (free, clipped):
        made.critic_learner.update_critic(batch())
    assert norm(free.critic) > 0.1
    assert norm(clipped.critic) == pytest.approx(0.01, rel=1e-3)
    ratio = norm(clipped.critic) / norm(free.critic)
    for p, q in zip(clipped.critic.parameters(), free.critic.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad * ratio, atol=1e-6)


def test_weights_decay_as_adamw_says():
    made = learner(critic_lr=0.1, weight_decay=0.5, normalize_observations=False)
    plain = learner(critic_lr=0.1, weight_decay=0.0, normalize_observations=False)
    before = weights(made.critic)
    for one in (made, plain):
        torch.manual_seed(0)
        one.critic_learner.update_critic(batch())
    assert torch.allclose(weights(made.critic), weights(plain.critic) - 0.1 * 0.5 * before, atol=1e-6)


@pytest.mark.parametrize("spoil", ["reward", "obs"])
@pytest.mark.parametrize(
    "settings", [{}, {"max_grad_norm": 1.0}, {"atoms": 0}, {"atoms": 0, "max_grad_norm": 1.0}]
)
def test_a_loss_that_is_nan_changes_no_weight_moment_or_step(spoil, settings):
    made = learner(policy_delay=1, **settings)
    for update in range(3):
        made.update(batch(seed=update))
    bad = batch(seed=5)
    (bad.reward if spoil == "reward" else bad.obs["obs"])[0] = math.nan
    before = copy.deepcopy(made.critic_learner.optimizer.state_dict()), weights(made.critic)
    outcome = made.critic_learner.update_critic(bad)
    after = made.critic_learner.optimizer.state_dict()
    assert outcome.metrics["count/skipped_updates"] == 1 and after["consecutive_skips"] == 1
    assert torch.equal(before[1], weights(made.critic))
    assert differing(before[0]["moments"], after["moments"]) == []
    if spoil == "obs":
        before = copy.deepcopy(made.actor_learner.optimizer.state_dict()), weights(made.policy.actor)
        assert made.actor_learner.update_actor(bad.obs).metrics["count/skipped_updates"] == 1
        assert torch.equal(before[1], weights(made.policy.actor))
        assert differing(before[0]["moments"], made.actor_learner.optimizer.state_dict()["moments"]) == []
    assert torch.isfinite(weights(made.policy.actor)).all()
    assert all(torch.isfinite(x).all() for x in made.policy.normalizer.state_dict().values())
    sound = made.update(batch(seed=6))
    assert sound.metrics["count/skipped_updates"] == 0 and made.consecutive_skips == 0
    assert math.isfinite(sound.metrics["loss/critic"])


def test_skipped_updates_in_a_row_are_counted_over_both_nets():
    made, bad = learner(policy_delay=1), batch()
    bad.obs["obs"][:] = math.inf
    for count in range(1, 5):
        made.update(bad)
        assert made.consecutive_skips == count


def test_beta2_reaches_adam():
    made = learner(beta2=0.9, **PLAIN)
    made.critic_learner.update_critic(batch())
    moments = made.critic_learner.optimizer.state_dict()["moments"]["0"]
    gradient = torch.cat([p.grad.flatten() for p in made.critic.parameters()])
    assert torch.allclose(moments["exp_avg_sq"], 0.1 * gradient.square(), rtol=1e-4, atol=1e-12)
    assert torch.allclose(moments["exp_avg"], 0.1 * gradient, rtol=1e-4, atol=1e-12)


class PartialLearner(torch.nn.Module):
    """Of its two numbers it uses one."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = (torch.nn.Parameter(torch.tensor(2.0)) for _ in range(2))


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_steps_are_torchs_own_and_what_a_loss_does_not_use_stands_still(weight_decay):
    ours, theirs = PartialLearner(), PartialLearner()
    descender = OptimizerConfig("cpu", weight_decay, eps=1e-5, beta2=0.9).build(ours, 0.1, NO_PEERS)
    reference = torch.optim.AdamW(theirs.parameters(), 0.1, (0.9, 0.9), 1e-5, weight_decay)
    for step in range(6):
        descender.step([2 * (ours.used.detach() - step), torch.zeros(())], torch.zeros(()))
        reference.zero_grad()
        ((theirs.used - step) ** 2 + 0 * theirs.unused).backward()
        reference.step()
        assert ours.used.item() == pytest.approx(theirs.used.item(), rel=1e-6)
        assert ours.unused.item() == pytest.approx(2.0 * (1 - 0.1 * weight_decay) ** (step + 1), rel=1e-6)


def test_an_update_does_not_load_the_compiler():
    code = (
        "import sys, torch; sys.path.insert(0, 'tests/algorithms'); from small import batch, learner;"
        "from troop.engines.runtime import defer_compiler_import; defer_compiler_import();"
        "made = learner(policy_delay=1); made.update(batch()); assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
