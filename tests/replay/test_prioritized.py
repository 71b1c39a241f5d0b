import copy
import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from history import CLOSE, STEP, TERMINATE, TRUNCATE, History
from hypothesis import given, settings
from hypothesis import strategies as st
from test_uniform import events, experiences, play

from troop.core.batch import NStep
from troop.replay.prioritized import PrioritizedReplay, PriorityConfig
from troop.replay.uniform import ReplaySize

PLAIN = PriorityConfig(alpha=1.0, beta=1.0, beta_end=1.0, eps=1e-12)


def make_replay(history, experience=None, warmup=1, priority=PLAIN, length=None, seed=0):
    size = ReplaySize(length or history.length, warmup)
    return PrioritizedReplay(history.spec(), experience or NStep(), size, seed, priority=priority)


def leaves(replay):
    return replay.tree.get(np.arange(replay.capacity)).reshape(-1, replay.storage.length)


def row_id(history, stream, row):
    return row * len(history.rows) + stream


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 3), st.integers(7, 13), experiences, st.lists(events, min_size=8, max_size=50))
def test_exactly_the_rows_that_start_a_window_have_a_priority(streams, length, experience, drawn):
    history = History(streams, length)
    replay = make_replay(history, experience)
    for at in range(0, len(drawn), 4):
        play(history, replay, drawn[at : at + 4])
        values = leaves(replay)
        for stream in range(streams):
            starts = {i % length for i in history.starts(stream, experience.n)}
            assert set(np.flatnonzero(values[stream])) == starts
        assert replay.tree.count == (values > 0).sum()
        batch = replay.sample(5)
        if not values.any():
            assert batch is None
            continue
        history.check(batch, experience)
        rows = batch.obs["obs"].int().tolist()
        assert batch.index.tolist() == [row_id(history, row[0], row[1]) for row in rows]
        replay.reprioritize(batch.index, torch.rand(5))


def filled(steps, length=16, streams=2, n=3, **kwargs):
    history = History(streams, length)
    replay = make_replay(history, NStep(n, 0.9), **kwargs)
    for i in range(steps):
        kinds = [TRUNCATE if i % 7 == 6 else STEP] + [TERMINATE if i % 5 == 4 else STEP] * (streams - 1)
        replay.add(history.rollout(range(streams), kinds))
        if i % 7 == 6:
            replay.add(history.rollout([0], [CLOSE]))
    return history, replay


def test_rows_are_sampled_in_proportion_to_their_priority_to_the_power_of_alpha():
    history, replay = filled(30, priority=PriorityConfig(alpha=0.5, eps=1e-12))
    starts = [(s, i) for s in (0, 1) for i in sorted(history.starts(s, 3))]
    priority = torch.arange(1.0, len(starts) + 1) ** 2
    replay.reprioritize(torch.tensor([row_id(history, s, i) for s, i in starts]), priority)
    draws = 40_000
    counts = Counter()
    for _ in range(200):
        counts.update((int(r[0]), int(r[1])) for r in replay.sample(draws // 200).obs["obs"])
    expected = priority.sqrt() / priority.sqrt().sum() * draws
    chi_square = sum((counts[k] - float(e)) ** 2 / float(e) for k, e in zip(starts, expected, strict=True))
    # Stratified sampling has less variance than independent draws, for which this bound is meant.
    assert set(counts) == set(starts) and chi_square < len(starts) + 5 * (2 * len(starts)) ** 0.5


@pytest.mark.parametrize("normalize_by", ["batch", "buffer"])
def test_importance_weights_equal_a_manual_calculation(normalize_by):
    history = History(1, 8)
    replay = make_replay(
        history,
        NStep(1),
        priority=PriorityConfig(0.5, 0.4, 0.4, eps=1e-12, normalize_weights_by=normalize_by),
    )
    for _ in range(5):
        replay.add(history.rollout([0], [STEP]))
    priority = [4.0, 1.0, 0.25, 9.0]
    replay.reprioritize(torch.arange(4), torch.tensor(priority))
    batch = replay.sample(3)
    scaled = [p**0.5 for p in priority]  # 2, 1, 0.5, 3
    weight = {i: (4 * p / sum(scaled)) ** -0.4 for i, p in enumerate(scaled)}
    sampled = batch.index.tolist()
    largest = max(weight[i] for i in (sampled if normalize_by == "batch" else range(4)))
    assert batch.weight.tolist() == pytest.approx([weight[i] / largest for i in sampled], rel=1e-5)
    assert max(batch.weight) <= 1 + 1e-6


def test_beta_is_annealed_linearly_over_batches_and_then_constant():
    _, replay = filled(20, priority=PriorityConfig(0.6, 0.4, 1.0, beta_anneal_batches=4))
    betas = []
    for _ in range(7):
        betas.append(replay.beta)
        replay.sample(4)
    assert betas == pytest.approx([0.4, 0.55, 0.7, 0.85, 1.0, 1.0, 1.0])


def test_new_rows_get_the_largest_priority_so_far_or_their_own():
    history = History(1, 32)
    replay = make_replay(history, NStep(2))
    for _ in range(5):
        replay.add(history.rollout([0], [STEP]))
    assert leaves(replay)[0, :4].tolist() == pytest.approx([1, 1, 1, 0])
    replay.reprioritize(torch.tensor([1]), torch.tensor([5.0]))
    replay.add(history.rollout([0], [STEP]))  # completes the window of row 3, which was added before
    for _ in range(3):
        replay.add(history.rollout([0], [STEP]))
    assert leaves(replay)[0, :7].tolist() == pytest.approx([1, 5, 1, 1, 1, 5, 5])
    rollout = history.rollout([0], [STEP])
    replay.add(dataclasses.replace(rollout, extras={"priority": torch.tensor([[0.125]])}))
    for _ in range(2):
        replay.add(history.rollout([0], [STEP]))
    assert leaves(replay)[0, 9] == pytest.approx(0.125)


def test_priority_of_an_overwritten_row_is_ignored():
    history, replay = filled(16, n=1)
    batch = replay.sample(8)
    for _ in range(40):
        replay.add(history.rollout([0, 1], [STEP, STEP]))
    before = leaves(replay).copy()
    replay.reprioritize(batch.index, torch.full((8,), 77.0))
    assert np.array_equal(leaves(replay), before)


def test_priority_of_a_row_not_written_yet_is_ignored():
    history, replay = filled(16, n=1)
    older = copy.deepcopy(replay.state_dict())
    for _ in range(9):
        replay.add(history.rollout([0, 1], [STEP, STEP]))
    index = torch.tensor([row_id(history, s, len(history.rows[s]) - 4) for s in (0, 1)])
    fresh = make_replay(history, NStep(1, 0.9))
    fresh.load_state_dict(older)  # as after a restart of the replay: the learner has sampled newer rows
    before = leaves(fresh).copy()
    fresh.reprioritize(index, torch.full((2,), 77.0))
    assert np.array_equal(leaves(fresh), before)
    replay.reprioritize(index, torch.full((2,), 77.0))
    assert np.isclose(leaves(replay), 77.0).sum() == 2


def test_sample_age_counts_rows_of_all_streams():
    history = History(2, 16)
    replay = make_replay(history)
    assert replay.sample_age == 0.0
    for _ in range(20):
        replay.add(history.rollout([0, 1], [STEP, STEP]))
    batch = replay.sample(64)
    mean_age = np.mean([20 - float(row[1]) for row in batch.obs["obs"]])
    assert replay.sample_age == pytest.approx(2 * mean_age)
    replay.add(history.rollout([0, 1], [STEP, STEP]))
    assert replay.sample_age == pytest.approx(2 * (mean_age + 1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_invalid_priority_is_rejected_with_its_row_and_changes_nothing(bad):
    _, replay = filled(16)
    index = replay.sample(4).index
    before = leaves(replay).copy()
    priority = torch.tensor([1.0, 2.0, bad, 3.0])
    with pytest.raises(ValueError, match=f"row {int(index[2])} .position 2. is"):
        replay.reprioritize(index, priority)
    assert np.array_equal(leaves(replay), before)


def test_last_priority_counts_if_a_row_occurs_twice():
    _, replay = filled(16)
    index = replay.sample(1).index
    replay.reprioritize(torch.cat((index, index)), torch.tensor([3.0, 5.0]))
    replay.reprioritize(torch.cat((index, index)), torch.tensor([3.0, 5.0]))
    values = leaves(replay)
    assert np.isclose(values, 5.0).sum() == 1 and not np.isclose(values, 3.0).any()
    assert replay.tree.total == pytest.approx(leaves(replay).sum())


@pytest.mark.parametrize("steps", [9, 16, 45])
def test_restored_replay_continues_bit_equal(steps):
    history, replay = filled(steps)
    replay.reprioritize(replay.sample(7).index, torch.rand(7))
    state = copy.deepcopy(replay.state_dict())
    fresh = make_replay(history, NStep(3, 0.9), seed=99)
    assert fresh.load_state_dict(state) == 0
    for i in range(20):
        one, two = replay.sample(7), fresh.sample(7)
        for name in ("index", "weight", "reward", "discount", "action"):
            assert torch.equal(getattr(one, name), getattr(two, name))
        priority = torch.rand(7)
        for each in (replay, fresh):
            each.reprioritize(one.index, priority)
        rollout = history.rollout([0, 1], [STEP, TRUNCATE if i == 5 else STEP])
        for each in (replay, fresh):
            each.add(rollout)
        assert np.array_equal(leaves(replay), leaves(fresh))


@pytest.mark.parametrize("length", [8, 24])
def test_rows_restored_into_another_length_get_the_largest_priority(length):
    history, replay = filled(45)
    fresh = make_replay(history, NStep(3, 0.9), length=length)
    fresh.load_state_dict(copy.deepcopy(replay.state_dict()))
    stored = min(16, length)
    history.rows = [rows[-stored:] for rows in history.rows]
    for stream in (0, 1):
        starts = {i for i in range(stored - 3) if history.rows[stream][i].kind != CLOSE}
        assert set(np.flatnonzero(leaves(fresh)[stream])) == starts
