import copy

import pytest
import torch
from history import CLOSE, STEP, TERMINATE, TRUNCATE, History
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.core.batch import NStep

EXPERIENCE = NStep(3, 0.9)


def filled(streams, length, steps, experience=EXPERIENCE):
    """Streams with different numbers of rows: the first has a closing row after every seventh step."""
    history = History(streams, length)
    replay = history.replay(experience)
    for i in range(steps):
        kinds = [TRUNCATE if i % 7 == 6 else STEP] + [TERMINATE if i % 5 == 4 else STEP] * (streams - 1)
        replay.add(history.rollout(range(streams), kinds))
        if i % 7 == 6:
            replay.add(history.rollout([0], [CLOSE]))
    return history, replay


def assert_equal(one, other):
    assert torch.equal(one.reward, other.reward) and torch.equal(one.discount, other.discount)
    assert torch.equal(one.action, other.action)
    for name in one.obs:
        assert torch.equal(one.obs[name], other.obs[name])
        assert torch.equal(one.next_obs[name], other.next_obs[name])


@pytest.mark.parametrize("steps", [9, 16, 17, 45])  # partly full, full, overwritten
def test_restored_replay_returns_bit_equal_batches(steps):
    history, replay = filled(3, 16, steps, NStep(3, 0.9, scale_rewards_to=5.0))
    replay.sample(7)
    state = copy.deepcopy(replay.state_dict())
    fresh = history.replay(NStep(3, 0.9, scale_rewards_to=5.0), seed=99)
    assert fresh.load_state_dict(state) == 0
    for i in range(20):
        assert_equal(replay.sample(7), fresh.sample(7))
        rollout = history.rollout([0, 1, 2], [STEP, STEP, TRUNCATE if i == 5 else STEP])
        replay.add(rollout)
        fresh.add(rollout)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(6, 14), st.integers(1, 30), st.integers(1, 4), st.integers(6, 14))
def test_replay_of_another_shape_restores_the_newest_rows_and_counts_the_dropped(
    streams, length, steps, others, other_length
):
    history, replay = filled(streams, length, steps)
    state = copy.deepcopy(replay.state_dict())
    target = History(others, other_length)
    fresh = target.replay(EXPERIENCE)
    dropped = fresh.load_state_dict(state)
    # Of each stream that exists in both: the newest rows that fit both lengths.
    stored = [min(len(rows), length) for rows in history.rows]
    restored = [min(count, other_length) for count in stored[:others]]
    assert dropped == sum(stored) - sum(restored) and len(fresh) == sum(restored)
    target.rows[: len(restored)] = [rows[-k:] for rows, k in zip(history.rows, restored, strict=False)]
    for stream, rows in enumerate(target.rows[: len(restored)]):
        for age in range(1, len(rows) + 1):
            position = (int(fresh.storage.rows_written[stream]) - age) % other_length
            slot = stream * other_length + position
            assert fresh.storage.fields(torch.tensor([slot]))["obs"][0, 1] == rows[-age].number
            assert fresh.storage.reward[slot] == rows[-age].reward
    assert not fresh.storage.rows_written[len(restored) :].any()


def test_windows_are_correct_after_a_restore_into_another_length():
    for length in (8, 24):
        history, replay = filled(2, 16, 45)
        fresh = history.replay(EXPERIENCE, length=length)
        fresh.load_state_dict(copy.deepcopy(replay.state_dict()))
        history.length = min(16, length)
        history.check(fresh.sample(200), EXPERIENCE)
        for _ in range(3):
            rollout = history.rollout([0, 1], [STEP, STEP])
            fresh.add(rollout)
        history.length = length
        history.check(fresh.sample(200), EXPERIENCE)


def test_no_window_crosses_the_end_of_a_stream():
    history, replay = filled(2, 16, 12)
    history.end_streams()
    replay.end_streams()
    for _ in range(4):
        replay.add(history.rollout([0, 1], [STEP, STEP]))
    batch = replay.sample(400)
    history.check(batch, EXPERIENCE)
    closed = {s: len(rows) - 5 for s, rows in enumerate(history.rows)}  # the row turned into a closing row
    for stream, start in batch.obs["obs"][:, :2].int().tolist():
        assert start != closed[stream]
