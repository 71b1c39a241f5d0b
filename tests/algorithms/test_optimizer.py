import copy
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from td3_cases import PLAIN, batch, different_paths, learner, weights

from troop.algorithms.optim.optimizer import OptimizerConfig
from troop.algorithms.optim.statistics import merge_batch
from troop.core.peers import NO_PEERS


def learning_rates(agent):
    return [
        d.optimizer.param_groups[0]["lr"]
        for d in (agent.critic_learner.optimizer, agent.actor_learner.optimizer)
    ]


def cosine(lr, end, done):
    """Loshchilov and Hutter 2017: from lr to lr * end over half a period."""
    return lr * end + (lr - lr * end) * (1 + math.cos(math.pi * min(done, 1.0))) / 2


def test_learning_rates_follow_the_cosine_schedule_and_stay_at_its_end():
    agent = learner(lr_end=0.1, lr_updates=10, policy_delay=1, critic_lr=1e-3, actor_lr=5e-4)
    for update in range(14):
        agent.update(batch(seed=update))
        assert learning_rates(agent) == pytest.approx(
            [cosine(1e-3, 0.1, update / 10), cosine(5e-4, 0.1, update / 10)]
        )


def test_a_delayed_actor_follows_the_same_schedule_as_the_critics():
    agent = learner(lr_end=0.1, lr_updates=10, policy_delay=5, actor_lr=1e-3)
    for update in range(10):
        agent.update(batch(seed=update))
    assert learning_rates(agent)[1] == pytest.approx(
        cosine(1e-3, 0.1, 5 / 10)
    )  # its second step, after five updates


def test_learning_rates_are_constant_by_default():
    agent = learner()
    for update in range(3):
        agent.update(batch(seed=update))
    assert learning_rates(agent) == [3e-4, 3e-4]


@pytest.mark.reliability("R7")
def test_the_schedule_continues_after_a_restore():
    settings = {"lr_end": 0.1, "lr_updates": 10, "policy_delay": 1, "critic_lr": 1e-3}
    agent = learner(**settings)
    for update in range(4):
        agent.update(batch(seed=update))
    other = learner(seed=3, **settings)
    other.load_state_dict(copy.deepcopy(agent.state_dict()))
    other.update(batch(seed=9))
    assert learning_rates(other)[0] == pytest.approx(cosine(1e-3, 0.1, 4 / 10))


def norm(module):
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in module.parameters()))


def test_gradients_are_clipped_to_max_grad_norm():
    free, clipped = learner(**PLAIN), learner(max_grad_norm=0.01, **PLAIN)
    for agent in (free, clipped):
        agent.critic_learner.update_critic(batch())
    assert norm(free.critic) > 0.1
    assert norm(clipped.critic) == pytest.approx(0.01, rel=1e-3)
    ratio = norm(clipped.critic) / norm(free.critic)
    for p, q in zip(clipped.critic.parameters(), free.critic.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad * ratio, atol=1e-6)


def test_weight_decay_is_adamws():
    agent = learner(critic_lr=0.1, weight_decay=0.5, normalize_observations=False)
    plain = learner(critic_lr=0.1, weight_decay=0.0, normalize_observations=False)
    before = weights(agent.critic)
    for one in (agent, plain):
        torch.manual_seed(0)
        one.critic_learner.update_critic(batch())
    assert torch.allclose(weights(agent.critic), weights(plain.critic) - 0.1 * 0.5 * before, atol=1e-6)


@pytest.mark.parametrize("spoil", ["reward", "obs"])
@pytest.mark.parametrize(
    "settings", [{}, {"max_grad_norm": 1.0}, {"atoms": 0}, {"atoms": 0, "max_grad_norm": 1.0}]
)
@pytest.mark.reliability("N2")
def test_a_nan_loss_changes_no_weight_moment_or_step_count(spoil, settings):
    agent = learner(policy_delay=1, **settings)
    for update in range(3):
        agent.update(batch(seed=update))
    bad = batch(seed=5)
    (bad.reward if spoil == "reward" else bad.obs["obs"])[0] = math.nan
    before = copy.deepcopy(agent.critic_learner.optimizer.state_dict()), weights(agent.critic)
    outcome = agent.critic_learner.update_critic(bad)
    after = agent.critic_learner.optimizer.state_dict()
    assert outcome.metrics["count/skipped_updates"] == 1 and after["consecutive_skips"] == 1
    assert torch.equal(before[1], weights(agent.critic))
    assert different_paths(before[0]["moments"], after["moments"]) == []
    if spoil == "obs":
        before = copy.deepcopy(agent.actor_learner.optimizer.state_dict()), weights(agent.policy.actor)
        assert agent.actor_learner.update_actor(bad.obs).metrics["count/skipped_updates"] == 1
        assert torch.equal(before[1], weights(agent.policy.actor))
        assert (
            different_paths(before[0]["moments"], agent.actor_learner.optimizer.state_dict()["moments"]) == []
        )
    assert torch.isfinite(weights(agent.policy.actor)).all()
    assert all(torch.isfinite(x).all() for x in agent.policy.normalizer.state_dict().values())
    sound = agent.update(batch(seed=6))
    assert sound.metrics["count/skipped_updates"] == 0 and agent.consecutive_skips == 0
    assert math.isfinite(sound.metrics["loss/critic"])


@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_a_loss_that_is_not_finite_skips_the_step_although_its_gradient_is(max_grad_norm):
    module = torch.nn.Linear(2, 1)
    optimizer = OptimizerConfig("cpu", max_grad_norm=max_grad_norm).build(module, 0.1, NO_PEERS)
    before = weights(module)
    grads = [torch.ones_like(p) for p in module.parameters()]
    assert optimizer.step(grads, torch.tensor(math.inf)) == 1
    assert torch.equal(weights(module), before)


def test_consecutive_skips_cover_actor_and_critics():
    agent, bad = learner(policy_delay=1), batch()
    bad.obs["obs"][:] = math.inf
    for count in range(1, 5):
        agent.update(bad)
        assert agent.consecutive_skips == count


def test_beta2_is_passed_to_adam():
    agent = learner(beta2=0.9, **PLAIN)
    agent.critic_learner.update_critic(batch())
    moments = agent.critic_learner.optimizer.state_dict()["moments"]["0"]
    gradient = torch.cat([p.grad.flatten() for p in agent.critic.parameters()])
    assert torch.allclose(moments["exp_avg_sq"], 0.1 * gradient.square(), rtol=1e-4, atol=1e-12)
    assert torch.allclose(moments["exp_avg"], 0.1 * gradient, rtol=1e-4, atol=1e-12)


class HalfUsed(torch.nn.Module):
    """Two parameters, of which the loss uses one."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = (torch.nn.Parameter(torch.tensor(2.0)) for _ in range(2))


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_steps_equal_torchs_adamw_and_unused_parameters_only_decay(weight_decay):
    ours, theirs = HalfUsed(), HalfUsed()
    descender = OptimizerConfig("cpu", weight_decay, eps=1e-5, beta2=0.9).build(ours, 0.1, NO_PEERS)
    reference = torch.optim.AdamW(theirs.parameters(), 0.1, (0.9, 0.9), 1e-5, weight_decay)
    for step in range(6):
        descender.step([2 * (ours.used.detach() - step), torch.zeros(())], torch.zeros(()))
        reference.zero_grad()
        ((theirs.used - step) ** 2 + 0 * theirs.unused).backward()
        reference.step()
        assert ours.used.item() == pytest.approx(theirs.used.item(), rel=1e-6)
        assert ours.unused.item() == pytest.approx(2.0 * (1 - 0.1 * weight_decay) ** (step + 1), rel=1e-6)


def test_an_update_does_not_import_the_compiler():
    code = (
        "import sys, torch; sys.path.insert(0, 'tests/algorithms'); from td3_cases import batch, learner;"
        "from troop.engines.runtime import defer_compiler_import; defer_compiler_import();"
        "agent = learner(policy_delay=1); agent.update(batch()); assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_state_without_a_moment_is_rejected_when_it_is_loaded(kind):
    module = HalfUsed()
    optimizer = OptimizerConfig("cpu", kind=kind).build(module, 0.1, NO_PEERS)
    optimizer.step([torch.ones(()), torch.zeros(())], torch.zeros(()))
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(copy.deepcopy(state))
    name = "exp_avg_sq" if kind == "adam" else "square"
    del state["moments"]["0"][name]
    with pytest.raises(ValueError, match=f"no {name}"):
        optimizer.load_state_dict(state)


def test_shared_statistics_are_on_one_device():
    class Statistics:
        count = mean = var = torch.zeros(1, device="meta")

        def update(self, x, weight):
            return self.mean, self.var

    class Recording:
        def merge_moments(self, name, batch, own):
            self.devices = {x.device.type for x in batch.as_dict().values() if x is not None}

    peers = Recording()
    merge_batch(Statistics(), torch.zeros(3, 1), 1, peers)
    assert peers.devices == {"meta"}  # which stands for a GPU: torch.cat refuses tensors of two devices
