"""Every store against C4: counts rows, never blocks, gives exactly what was asked, survives its state."""

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
    "stacks of pixels": EnvSpec("e", {"obs": Field((4, 4, 4), torch.uint8)}, Discrete(5), 3),
    "pixels and choices": EnvSpec("d", {"obs": Field((2, 4, 4), torch.uint8)}, Discrete(5), 3),
}
STORES = {
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


@pytest.fixture(params=STORES, ids=str)
def make(request):
    return STORES[request.param]


@pytest.fixture(params=SPECS, ids=str)
def spec(request):
    return SPECS[request.param]


def piece(spec, time):
    obs = {}
    for name, field in spec.obs.items():
        values = torch.arange(spec.envs).view(-1, *[1] * len(field.shape)) * 50 + time
        obs[name] = values.expand(spec.envs, *field.shape).to(field.dtype).unsqueeze(0)
    shape = (1, spec.envs, spec.action.size) if isinstance(spec.action, Continuous) else (1, spec.envs)
    action = torch.full(shape, time % 5, dtype=torch.float32 if len(shape) == 3 else torch.int64)
    never = torch.zeros(1, spec.envs, dtype=torch.bool)
    return Rollout(
        torch.arange(spec.envs), obs, action, torch.full((1, spec.envs), float(time)), never, never, never
    )


def filled(make, spec, count):
    store: ReplayBuffer = make(spec)
    for time in range(count):
        store.add(piece(spec, time))
    return store


def test_rows_are_counted_up_to_the_capacity(make, spec):
    store = make(spec)
    assert store.capacity == 48
    for time in range(20):
        assert len(store) == min(3 * time, 48)
        store.add(piece(spec, time))


def test_an_empty_store_answers_at_once_with_nothing(make, spec):
    assert make(spec).sample(4) is None
    assert filled(make, spec, 3).sample(4) is None


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_a_batch_has_exactly_the_rows_asked_for_in_the_envs_dtypes(make, spec, rows):
    batch = filled(make, spec, 12).sample(rows)
    assert len(batch) == rows and batch.discount.shape == (rows,)
    for name, field in spec.obs.items():
        for obs in (batch.obs, batch.next_obs):
            assert obs[name].shape == (rows, *field.shape) and obs[name].dtype == field.dtype
    assert batch.action.dtype == (torch.float32 if isinstance(spec.action, Continuous) else torch.int64)


def test_rows_come_back_with_their_own_successor(make, spec):
    store = filled(make, spec, 20)
    n = store.experience.n
    batch = store.sample(200)
    before, after = (obs["obs"].flatten(1)[:, 0].int() for obs in (batch.obs, batch.next_obs))
    assert torch.equal(after, before + n)
    assert torch.equal(
        batch.action.flatten(1)[:, 0].int() if batch.action.dim() > 1 else batch.action.int(), before % 50 % 5
    )
    assert int((before % 50).min()) == 4 and int((before % 50).max()) == 19 - n  # sixteen rows are held


def test_state_round_trips_and_draws_go_on_bit_equal(make, spec):
    store, other = filled(make, spec, 20), make(spec)
    store.sample(5)
    assert other.load_state_dict(copy.deepcopy(store.state_dict())) == 0
    assert len(other) == len(store)
    for _ in range(4):
        one, two = store.sample(9), other.sample(9)
        assert torch.equal(one.reward, two.reward) and torch.equal(one.obs["obs"], two.obs["obs"])


def test_sampling_changes_nothing_but_the_random_state(make, spec):
    store = filled(make, spec, 20)
    before = copy.deepcopy(store.state_dict()["streams"])
    batch = store.sample(50)
    batch.reward.fill_(-99)
    batch.obs["obs"].fill_(1)
    after = store.state_dict()["streams"]
    assert all(torch.equal(torch.as_tensor(x), torch.as_tensor(after[k])) for k, x in before.items())


def test_after_a_cut_no_window_reaches_across(make, spec):
    store = filled(make, spec, 8)
    store.end_streams()
    for time in range(20, 26):
        store.add(piece(spec, time))
    batch = store.sample(300)
    before, after = (obs["obs"].flatten(1)[:, 0].int() % 50 for obs in (batch.obs, batch.next_obs))
    assert ((before < 10) == (after < 10)).all() and (before != 7).all()
    assert after.max() == 25 and (before < 10).any() and (before >= 20).any()
