"""Every ReplayBuffer against its contract: row counts, exact batch sizes, no blocking, exact restore."""

import copy

import pytest
import torch

from troop.core.batch import NStep, Rollout
from troop.core.env import Continuous, Discrete, EnvSpec, Field
from troop.core.flow import ReplayBuffer
from troop.replay.prioritized import PrioritizedReplay, PriorityConfig
from troop.replay.uniform import ReplaySize, UniformReplay

SPECS = {
    "continuous": EnvSpec("c", {"obs": Field((3,)), "privileged": Field((2,))}, Continuous(2), 3),
    "stacked images": EnvSpec("e", {"obs": Field((4, 4, 4), torch.uint8)}, Discrete(5), 3),
    "images, discrete": EnvSpec("d", {"obs": Field((2, 4, 4), torch.uint8)}, Discrete(5), 3),
}
REPLAYS = {
    "uniform": lambda spec: UniformReplay(spec, NStep(), ReplaySize(16, 4), seed=0),
    "uniform, three steps": lambda spec: UniformReplay(spec, NStep(3), ReplaySize(16, 4), seed=0),
    "prioritized": lambda spec: PrioritizedReplay(
        spec, NStep(), ReplaySize(16, 4), 0, priority=PriorityConfig(0.6)
    ),
    "prioritized, three steps": lambda spec: PrioritizedReplay(
        spec, NStep(3), ReplaySize(16, 4), 0, priority=PriorityConfig(0.6, normalize_weights_by="buffer")
    ),
    "uniform, scaled rewards": lambda spec: UniformReplay(
        spec, NStep(1, scale_rewards_to=5.0), ReplaySize(16, 4), seed=0
    ),
}


@pytest.fixture(params=REPLAYS, ids=str)
def make(request):
    return REPLAYS[request.param]


@pytest.fixture(params=SPECS, ids=str)
def spec(request):
    return SPECS[request.param]


def rollout(spec, time):
    """One vector step whose observations encode env and time."""
    obs = {}
    for name, field in spec.obs.items():
        values = torch.arange(spec.envs).view(-1, *[1] * len(field.shape)) * 50 + time
        obs[name] = values.expand(spec.envs, *field.shape).to(field.dtype).unsqueeze(0)
    shape = (1, spec.envs, spec.action.size) if isinstance(spec.action, Continuous) else (1, spec.envs)
    action = torch.full(shape, time % 5, dtype=torch.float32 if len(shape) == 3 else torch.int64)
    false = torch.zeros(1, spec.envs, dtype=torch.bool)
    return Rollout(
        torch.arange(spec.envs), obs, action, torch.full((1, spec.envs), float(time)), false, false, false
    )


def filled(make, spec, count):
    replay: ReplayBuffer = make(spec)
    for time in range(count):
        replay.add(rollout(spec, time))
    return replay


def test_length_counts_rows_up_to_the_capacity(make, spec):
    replay = make(spec)
    assert replay.capacity == 48
    for time in range(20):
        assert len(replay) == min(3 * time, 48)
        replay.add(rollout(spec, time))


def test_sample_returns_none_before_the_warmup_is_over(make, spec):
    assert make(spec).sample(4) is None
    assert filled(make, spec, 3).sample(4) is None


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_batch_has_exactly_the_requested_rows_and_the_envs_dtypes(make, spec, rows):
    batch = filled(make, spec, 12).sample(rows)
    assert len(batch) == rows and batch.discount.shape == (rows,)
    for name, field in spec.obs.items():
        for obs in (batch.obs, batch.next_obs):
            assert obs[name].shape == (rows, *field.shape) and obs[name].dtype == field.dtype
    assert batch.action.dtype == (torch.float32 if isinstance(spec.action, Continuous) else torch.int64)


def test_next_obs_is_n_steps_after_obs_in_the_same_stream(make, spec):
    replay = filled(make, spec, 20)
    n = replay.experience.n
    batch = replay.sample(200)
    before, after = (obs["obs"].flatten(1)[:, 0].int() for obs in (batch.obs, batch.next_obs))
    assert torch.equal(after, before + n)
    action = batch.action.flatten(1)[:, 0].int() if batch.action.dim() > 1 else batch.action.int()
    assert torch.equal(action, before % 50 % 5)
    assert int((before % 50).min()) == 4 and int((before % 50).max()) == 19 - n  # sixteen rows per stream


@pytest.mark.reliability("R1")
def test_restored_replay_returns_bit_equal_batches(make, spec):
    replay, other = filled(make, spec, 20), make(spec)
    replay.sample(5)
    assert other.load_state_dict(copy.deepcopy(replay.state_dict())) == 0
    assert len(other) == len(replay)
    for _ in range(4):
        one, two = replay.sample(9), other.sample(9)
        assert torch.equal(one.reward, two.reward) and torch.equal(one.obs["obs"], two.obs["obs"])


def test_writing_into_a_batch_does_not_change_the_stored_rows(make, spec):
    replay = filled(make, spec, 20)
    before = copy.deepcopy(replay.state_dict()["storage"])
    batch = replay.sample(50)
    batch.reward.fill_(-99)
    batch.obs["obs"].fill_(1)
    after = replay.state_dict()["storage"]
    assert all(torch.equal(torch.as_tensor(x), torch.as_tensor(after[k])) for k, x in before.items())


def test_no_window_crosses_the_end_of_a_stream(make, spec):
    replay = filled(make, spec, 8)
    replay.end_streams()
    for time in range(20, 26):
        replay.add(rollout(spec, time))
    batch = replay.sample(300)
    before, after = (obs["obs"].flatten(1)[:, 0].int() % 50 for obs in (batch.obs, batch.next_obs))
    assert ((before < 10) == (after < 10)).all() and (before != 7).all()
    assert after.max() == 25 and (before < 10).any() and (before >= 20).any()
