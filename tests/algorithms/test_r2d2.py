"""R2D2 against an independent version in plain PyTorch, its burn-in, its states and its priorities."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from troop.algorithms import R2D2Config
from troop.core.batch import Trajectory
from troop.core.env import Continuous, Discrete, EnvSpec, Field
from troop.envs import Toy
from troop.replay.recorders.sequences import VectorSequenceRecorder
from troop.roles.collector import Collector, EnvFactory

SMALL = {"features": 8, "core_size": 6, "head": 7}
CONFIG = R2D2Config(
    sequence_length=7,
    overlap=3,
    burn_in=2,
    n_step=3,
    gamma=0.9,
    target_update_period=3,
    lr=0.01,
    max_grad_norm=0.5,
    **SMALL,
)
SPEC = EnvSpec("test", {"obs": Field((3,)), "last_action": Field((4,))}, Discrete(4), 2)


def random_batch(config=CONFIG, spec=SPEC, streams=5, seed=0):
    """Sequences with an early end, an episode's first steps after the burn-in, and a full one."""
    torch.manual_seed(seed)
    steps = config.sequence_length
    valid = torch.ones(steps, streams, dtype=torch.bool)
    started = torch.zeros(steps + 1, streams, dtype=torch.bool)
    ended = torch.zeros(steps, streams, dtype=torch.bool)
    discount = torch.full((steps, streams), config.gamma)
    valid[5:, 1], ended[4, 1], discount[4, 1] = False, True, 0.0  # terminates
    valid[6:, 2], ended[5, 2] = False, True  # reaches a time limit
    valid[: config.burn_in, 3], started[config.burn_in, 3] = False, True  # an episode's first sequence
    started[0, 4] = True
    size = config.core_size
    return Trajectory(
        obs={name: torch.randn(steps + 1, streams, *field.shape) for name, field in spec.obs.items()},
        action=torch.randint(spec.action.choices, (steps, streams)),
        reward=torch.randn(steps, streams) * valid * 3,
        discount=discount * valid,
        ended=ended,
        valid=valid,
        started=started,
        final_obs={},
        final_index=torch.empty(0, dtype=torch.int64),
        state={"core": {"h": torch.randn(streams, size), "c": torch.randn(streams, size)}},
        extras={},
        weight=torch.rand(streams),
        index=torch.arange(streams),
    )


class PlainQ(nn.Module):
    """Linear, nn.LSTMCell and two heads, with the weights of the network that is tested."""

    def __init__(self, q):
        super().__init__()
        size = q.core.size
        self.layer = copy.deepcopy(q.layer)
        self.cell = nn.LSTMCell(q.core.weight_x.shape[1], size)
        self.value = nn.Sequential(nn.Linear(size, 7), nn.ReLU(), nn.Linear(7, 1))
        self.advantage = nn.Sequential(nn.Linear(size, 7), nn.ReLU(), nn.Linear(7, 4))
        with torch.no_grad():
            for own, other in (
                (self.cell.weight_ih, q.core.weight_x),
                (self.cell.weight_hh, q.core.weight_h),
            ):
                own.copy_(other)
            self.cell.bias_ih.copy_(q.core.bias)
            self.cell.bias_hh.zero_()
            for own, other in ((self.value, q.value), (self.advantage, q.advantage)):
                for parameter, source in zip(own.parameters(), other.layers, strict=True):
                    parameter.copy_(source)
        self.cell.bias_hh.requires_grad_(False)

    def step(self, obs, h, c):
        x = torch.cat((obs["obs"], obs["last_action"]), -1)
        h, c = self.cell(self.layer(x).relu(), (h, c))
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(-1, keepdim=True), h, c

    def column(self, batch, b, burn_in):
        """Return Q [T + 1 - burn_in, A] of one sequence."""
        h, c = batch.state["core"]["h"][b : b + 1], batch.state["core"]["c"][b : b + 1]
        values = []
        for t in range(batch.length + 1):
            if batch.started[t, b]:
                h, c = torch.zeros_like(h), torch.zeros_like(c)
            obs = {name: x[t, b : b + 1] for name, x in batch.obs.items()}
            if t < burn_in:
                with torch.no_grad():
                    _, h, c = self.step(obs, h, c)
            else:
                q, h, c = self.step(obs, h, c)
                values.append(q[0])
        return torch.stack(values)


def h_of(x):
    return torch.sign(x) * ((x.abs() + 1).sqrt() - 1) + 1e-3 * x


def h_inverse(x):
    x = x.double()
    root = ((1 + 4e-3 * (x.abs() + 1 + 1e-3)).sqrt() - 1) / 2e-3
    return (torch.sign(x) * (root**2 - 1)).float()


def plain_update(online, target, optimizer, batch, config):
    """One update with loops over sequences and steps; return priorities and loss."""
    total, priorities = 0.0, []
    for b in range(len(batch)):
        q = online.column(batch, b, config.burn_in)
        with torch.no_grad():
            target_q = target.column(batch, b, config.burn_in)
        errors = []
        for t in range(config.burn_in, batch.length):
            if not batch.valid[t, b]:
                continue
            y, factor, k = 0.0, 1.0, 0
            while True:
                y += factor * float(batch.reward[t + k, b])
                factor *= float(batch.discount[t + k, b])
                k += 1
                if k == config.n_step or batch.ended[t + k - 1, b] or t + k == batch.length:
                    break
            at = t + k - config.burn_in
            if factor:
                y += factor * float(h_inverse(target_q[at, q[at].argmax()]))
            errors.append(q[t - config.burn_in, batch.action[t, b]] - h_of(torch.tensor(y)))
        errors = torch.stack(errors)
        total = total + batch.weight[b] * 0.5 * (errors**2).sum()
        size = errors.detach().abs()
        priorities.append(float(0.9 * size.max() + 0.1 * size.mean()))
    loss = total / len(batch)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([p for p in online.parameters() if p.requires_grad], config.max_grad_norm)
    optimizer.step()
    return priorities, float(loss.detach())


def test_updates_equal_an_independent_version():
    torch.manual_seed(1)
    learner = CONFIG.algorithm(SPEC)
    online = PlainQ(learner.q)
    target = copy.deepcopy(online)
    trained = [p for p in online.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=CONFIG.lr, eps=CONFIG.eps)
    for update in range(7):  # the target network is copied twice
        batch = random_batch(seed=update)
        priorities, loss = plain_update(online, target, optimizer, batch, CONFIG)
        if (update + 1) % CONFIG.target_update_period == 0:
            target.load_state_dict(online.state_dict())
        result = learner.update(batch)
        assert float(result.metrics["loss/critic"]) == pytest.approx(loss, rel=1e-5)
        assert result.priority.tolist() == pytest.approx(priorities, abs=1e-5)
        expected = PlainQ(learner.q)
        for (name, own), other in zip(online.named_parameters(), expected.parameters(), strict=True):
            assert torch.allclose(own, other, atol=1e-5), (update, name)
    assert (online.layer.weight - target.layer.weight).abs().max() > 1e-3


def test_the_burn_in_receives_no_gradient():
    learner = CONFIG.algorithm(SPEC)
    batch = random_batch()
    obs = {name: x.requires_grad_() for name, x in batch.obs.items()}
    loss, _ = learner.loss(batch)
    gradient = torch.autograd.grad(loss, obs["obs"])[0]
    assert not gradient[: CONFIG.burn_in].any() and gradient[CONFIG.burn_in :].any()


def test_rows_that_are_not_valid_do_not_change_the_update():
    learner, batch = CONFIG.algorithm(SPEC), random_batch()
    changed = copy.deepcopy(batch)
    changed.obs["obs"][6:, 1] += 5.0  # the entry after the last step is its successor
    changed.action[5:, 1] = 0
    changed.obs["obs"][: CONFIG.burn_in, 3] -= 3.0
    for one, other in zip(learner.value_and_grad(batch)[0], learner.value_and_grad(changed)[0], strict=True):
        assert torch.equal(one, other)
    changed.obs["obs"][6, 2] += 1.0  # the final observation at the time limit is bootstrapped from
    assert float(learner.loss(changed)[0]) != float(learner.loss(batch)[0])


def collect(config, env, steps, seed=0, policy=None):
    """Return sequences recorded by a policy that acts epsilon-greedily, and the policy."""
    torch.manual_seed(seed)
    policy = policy or config.policy(env.spec)
    recorder = VectorSequenceRecorder(env.envs, config.experience, 0, config.initial_priority)
    collector = Collector(EnvFactory(lambda s: env.make(s), seed), policy, recorder, config.exploration)
    return [part for _ in range(steps) for part in (collector.send(), collector.recv()[0])[1]], policy


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("burn_in", [0, 3])
def test_burn_in_reproduces_the_values_of_acting_if_the_weights_did_not_change(autoreset, burn_in):
    """With a state stored for another entry, as in SEED's code, the values after the burn-in differ."""
    config = dataclasses.replace(
        CONFIG, sequence_length=9, overlap=4, burn_in=burn_in, epsilon_steps=0, epsilon_end=0.5
    )
    env = Toy("Countdown", 3, limit=30, discrete=True, autoreset=autoreset, last_step=True)
    sequences, policy = collect(config, env, 80)
    learner = config.algorithm(env.spec)
    learner.policy.load_state_dict(policy.state_dict())
    compared = 0
    for batch in sequences:
        q = learner.unroll(learner.q, batch)[:-1].gather(-1, batch.action[burn_in:].unsqueeze(-1)).squeeze(-1)
        rows = batch.valid[burn_in:]
        assert torch.allclose(q[rows], batch.extras["q"][burn_in:][rows], atol=1e-6)
        compared += int((~batch.started[:, :].any(0)).sum())
        shifted = dataclasses.replace(
            batch, state={"core": {k: x + 0.5 for k, x in batch.state["core"].items()}}
        )
        if not bool(batch.started.any()):
            other = learner.unroll(learner.q, shifted)[:-1]
            assert not torch.allclose(other, learner.unroll(learner.q, batch)[:-1], atol=1e-6)
    assert compared > 5  # sequences that begin within an episode


def test_initial_priorities_equal_those_of_an_update_up_to_the_unknown_last_value():
    config = dataclasses.replace(CONFIG, sequence_length=9, overlap=4, burn_in=2)
    env = Toy("Countdown", 3, limit=6, discrete=True, last_step=True)  # every episode terminates
    sequences, policy = collect(config, env, 60)
    learner = config.algorithm(env.spec)
    learner.policy.load_state_dict(policy.state_dict())
    learner.target_q.load_state_dict(learner.q.state_dict())
    compared = 0
    for batch in sequences:
        _, (priority, _) = learner.loss(batch)
        over = (batch.ended & (batch.discount == 0)).any(0)  # the value after a termination is not needed
        assert torch.allclose(batch.priority[over], priority[over], atol=1e-5)
        compared += int(over.sum())
        assert batch.priority.isfinite().all()
    assert compared > 10


def test_the_state_is_reset_where_an_episode_starts_and_nowhere_else():
    policy = CONFIG.policy(SPEC)
    state = {"core": {name: torch.randn(3, 6) for name in ("h", "c")}}
    reset = policy.reset_state(state, torch.tensor([True, False, True]))
    for name, x in reset["core"].items():
        assert not x[[0, 2]].any() and torch.equal(x[1], state["core"][name][1])


def test_a_nan_in_one_sequence_skips_the_update_and_keeps_priorities_finite():
    learner, batch = CONFIG.algorithm(SPEC), random_batch()
    batch.reward[4, 0] = torch.nan
    before = [p.clone() for p in learner.q.parameters()]
    result = learner.update(batch)
    assert float(result.metrics["count/skipped_updates"]) == 1 and result.priority.isfinite().all()
    assert all(torch.equal(a, b) for a, b in zip(before, learner.q.parameters(), strict=True))


def test_images_and_the_last_step_reach_the_values():
    spec = EnvSpec("i", {"obs": Field((1, 12, 12), torch.uint8), "last_reward": Field((1,))}, Discrete(3), 2)
    policy = CONFIG.policy(spec)
    obs = {"obs": torch.randint(256, (2, 1, 12, 12), dtype=torch.uint8), "last_reward": torch.zeros(2, 1)}
    value = policy.act(obs, policy.initial_state(2), torch.zeros(2)).extras["value"]
    other = policy.act(obs | {"last_reward": torch.ones(2, 1)}, policy.initial_state(2), torch.zeros(2))
    assert not torch.equal(value, other.extras["value"])


def test_unsupported_settings_are_named():
    assert "burn-in" in R2D2Config(sequence_length=10, overlap=3, burn_in=4).unsupported_reason(SPEC)
    assert "length" in R2D2Config(sequence_length=10, overlap=10, burn_in=4).unsupported_reason(SPEC)
    continuous = dataclasses.replace(SPEC, action=Continuous(2))
    assert "continuous" in R2D2Config().unsupported_reason(continuous)
    assert R2D2Config().unsupported_reason(SPEC) is None


IMAGES = EnvSpec("i", {"obs": Field((2, 7, 7)), "hand.camera": Field((1, 5, 8))}, Discrete(3), 2)


@pytest.mark.parametrize("spec", [SPEC, IMAGES], ids=["vectors", "images"])
def test_a_known_batch_lowers_the_loss_and_the_state_round_trips_bit_equal(spec):
    torch.manual_seed(0)
    learner, other = CONFIG.algorithm(spec), CONFIG.algorithm(spec)
    batch = random_batch(spec=spec)
    losses = [float(learner.update(batch).metrics["loss/critic"]) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    for seed in range(4):
        for each in (learner, other):
            each.update(random_batch(spec=spec, seed=seed))
    for name, x in learner.policy.state_dict().items():
        assert torch.equal(x, other.policy.state_dict()[name])
    assert all(map(torch.equal, learner.target_q.parameters(), other.target_q.parameters()))


def test_importance_weights_scale_the_loss_of_their_sequences():
    learner, batch = CONFIG.algorithm(SPEC), random_batch()
    single = [float(learner.loss(batch.columns(torch.tensor([b])))[0]) for b in range(len(batch))]
    assert float(learner.loss(batch)[0]) == pytest.approx(sum(single) / len(batch), rel=1e-5)
    unweighted = float(learner.loss(dataclasses.replace(batch, weight=None))[0])
    parts = [loss / float(w) for loss, w in zip(single, batch.weight, strict=True)]
    assert unweighted == pytest.approx(sum(parts) / len(batch), rel=1e-5)


def test_the_policy_acts_row_by_row_and_explores_where_told():
    policy = CONFIG.policy(SPEC)
    torch.manual_seed(0)
    obs = {name: torch.randn(5, *field.shape) for name, field in SPEC.obs.items()}
    state = {"core": {name: torch.randn(5, 6) for name in ("h", "c")}}
    whole = policy.act(obs, state, torch.zeros(5))
    for row in range(5):
        part = slice(row, row + 1)
        own = {"core": {name: x[part] for name, x in state["core"].items()}}
        single = policy.act({name: x[part] for name, x in obs.items()}, own, torch.zeros(1))
        assert torch.equal(single.action, whole.action[part])
        assert torch.allclose(single.state["core"]["h"], whole.state["core"]["h"][part], atol=1e-6)
    explore = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])
    actions = torch.stack([policy.act(obs, state, explore).action for _ in range(60)])
    assert (actions[:, [0, 2]] == whole.action[[0, 2]]).all()
    assert all(len(actions[:, row].unique()) == 4 for row in (1, 3, 4))
