"""SequenceReplay: priorities, importance weights, ids that are never reused, and a rate limiter in front."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.core.batch import SequenceSpec, Trajectory
from troop.core.env import Discrete, EnvSpec, Field
from troop.replay.limiter import Limiter, RateLimited
from troop.replay.prioritized import PriorityConfig
from troop.replay.sequences import SequenceReplay, SequenceReplaySize

SPEC = EnvSpec("s", {"obs": Field((1,))}, Discrete(2), 1)
PLAIN = PriorityConfig(alpha=1.0, beta=1.0, beta_end=1.0, eps=1e-12)


def make_replay(capacity=8, priority=PLAIN, seed=0):
    return SequenceReplay(SPEC, SequenceSpec(2), SequenceReplaySize(capacity), seed, priority=priority)


def sequences(numbers, priority=None):
    count = len(numbers)
    code = torch.tensor(numbers, dtype=torch.float32)
    flags = torch.zeros(3, count, dtype=torch.bool)
    return Trajectory(
        obs={"obs": code.view(1, -1, 1).repeat(3, 1, 1)},
        action=torch.zeros(2, count, dtype=torch.int64),
        reward=code.repeat(2, 1),
        discount=torch.ones(2, count),
        ended=flags[:2],
        valid=~flags[:2],
        started=flags,
        final_obs={"obs": torch.zeros(0, 1)},
        final_index=torch.empty(0, dtype=torch.int64),
        priority=None if priority is None else torch.tensor(priority),
    )


def leaves(replay):
    return replay.tree.get(np.arange(replay.capacity)).tolist()


events = st.one_of(
    st.tuples(st.just("add"), st.lists(st.floats(0, 9), min_size=1, max_size=4)),
    st.tuples(st.just("add at the maximum"), st.integers(1, 4)),
    st.tuples(st.just("reprioritize"), st.lists(st.tuples(st.integers(0, 60), st.floats(0, 9)), max_size=4)),
)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 7), st.lists(events, max_size=15))
def test_sequences_and_priorities_equal_a_list_of_all_that_were_added(capacity, drawn):
    replay, priorities, maximum = make_replay(capacity), [], 1.0
    for kind, value in drawn:
        if kind == "reprioritize":
            ids = [number % (len(priorities) + 2) for number, _ in value]  # some are not added yet
            replay.reprioritize(torch.tensor(ids, dtype=torch.int64), torch.tensor([p for _, p in value]))
            for number, (_, priority) in zip(ids, value, strict=True):
                if max(0, len(priorities) - capacity) <= number < len(priorities):
                    priorities[number] = priority
            maximum = max([maximum, *(p for _, p in value)])
        else:
            new = value if kind == "add" else [maximum] * value
            numbers = range(len(priorities), len(priorities) + len(new))
            replay.add(sequences(list(numbers), value if kind == "add" else None))
            priorities += new
            maximum = max([maximum, *new])
        stored = range(max(0, len(priorities) - capacity), len(priorities))
        expected = {number % capacity: priorities[number] for number in stored}
        assert leaves(replay) == pytest.approx([expected.get(i, 0.0) for i in range(capacity)], abs=1e-6)
        if stored:
            batch = replay.sample(5)
            assert set(batch.index.tolist()) <= set(stored)
            assert torch.equal(batch.obs["obs"][0, :, 0].long(), batch.index)


def test_sequences_are_sampled_in_proportion_to_their_priority_to_the_power_of_alpha():
    replay = make_replay(12, PriorityConfig(alpha=0.9, eps=1e-12))
    priority = (torch.arange(1.0, 13) ** 2).tolist()
    replay.add(sequences(list(range(12)), priority))
    counts = Counter()
    for _ in range(200):
        counts.update(replay.sample(200).index.tolist())
    scaled = torch.tensor(priority) ** 0.9
    expected = (scaled / scaled.sum() * 40_000).tolist()
    assert sum((counts[i] - e) ** 2 / e for i, e in enumerate(expected)) < 12 + 5 * 24**0.5
    uniform = make_replay(12, PriorityConfig(alpha=0.0))
    uniform.add(sequences(list(range(12)), priority))
    batch = uniform.sample(1200)
    assert Counter(batch.index.tolist()) == Counter({i: 100 for i in range(12)})  # stratified
    assert (batch.weight == 1).all()


@pytest.mark.parametrize("normalize_by", ["batch", "buffer"])
def test_importance_weights_equal_a_manual_calculation(normalize_by):
    replay = make_replay(4, PriorityConfig(0.9, 0.6, 0.6, eps=1e-12, normalize_weights_by=normalize_by))
    priority = [4.0, 1.0, 0.25, 9.0]
    replay.add(sequences(list(range(4)), priority))
    batch = replay.sample(3)
    scaled = [p**0.9 for p in priority]
    weight = {i: (1 / (4 * p / sum(scaled))) ** 0.6 for i, p in enumerate(scaled)}
    sampled = batch.index.tolist()
    largest = max(weight[i] for i in (sampled if normalize_by == "batch" else range(4)))
    assert batch.weight.tolist() == pytest.approx([weight[i] / largest for i in sampled], rel=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_priorities_that_are_not_finite_are_refused_and_change_nothing(bad):
    replay = make_replay()
    replay.add(sequences([0, 1], [1.0, 2.0]))
    before = leaves(replay)
    with pytest.raises(ValueError, match="a new row"):
        replay.add(sequences([2], [bad]))
    with pytest.raises(ValueError, match="row 1"):
        replay.reprioritize(torch.tensor([0, 1]), torch.tensor([1.0, bad]))
    assert leaves(replay) == before and len(replay) == 2


def test_the_age_of_a_batch_counts_the_env_steps_added_since():
    size = SequenceReplaySize(4)
    replay = SequenceReplay(SPEC, SequenceSpec(2, 1), size, 0, priority=PLAIN)
    assert replay.sample_age == 0
    first = sequences([0], [1.0])
    first.started[0] = True  # two new steps
    replay.add(first)
    for number in (1, 2, 3):  # one new step each
        replay.add(sequences([number], [0.0]))
    replay.sample(5)
    assert replay.sample_age == 5 and replay.steps == 5


def test_steps_of_an_overlap_count_once_although_the_first_burn_in_has_none():
    replay = SequenceReplay(SPEC, SequenceSpec(2, 1, 1), SequenceReplaySize(4), 0, priority=PLAIN)
    first, second = sequences([0], [1.0]), sequences([1], [1.0])
    first.started[1] = True  # the row before it is not a step
    first.valid[0] = False
    second.started[0] = True  # the episode started one row earlier than in the first sequence
    replay.add(first)
    replay.add(second)
    assert replay.steps == 2


def test_a_larger_replay_has_the_sequences_that_were_saved():
    small, large = make_replay(4), make_replay(16)
    small.add(sequences(list(range(9)), [1.0] * 9))
    large.load_state_dict(small.state_dict())
    assert len(large) == len(small) == 4


def test_a_limiter_counts_sequences():
    limited = RateLimited(make_replay(100), Limiter(2.0, 4, 4))
    limited.add(sequences([0, 1, 2]))
    assert limited.sample(2) is None and limited.wants_data()  # four sequences are needed
    limited.add(sequences([3, 4, 5, 6]))
    assert limited.limiter.inserted == 7 and limited.wants_data() is None  # a credit of six
    drawn = 0
    while limited.sample(2) is not None:
        drawn += 2
    assert drawn == 10 and limited.wants_data() is True
    assert limited.gauges()["replay/rows"] == 7
    restored = RateLimited(make_replay(100), Limiter(2.0, 4, 4))
    restored.load_state_dict(limited.state_dict())
    assert len(restored.replay) == 7 and restored.limiter.sampled == 10
