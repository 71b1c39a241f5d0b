import copy

import pytest
import torch
from history import CLOSE, STEP, TERMINATE, TRUNCATE, History
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.core.batch import NStep

EXPERIENCE = NStep(3, 0.9)


def filled(streams, length, steps, experience=EXPERIENCE):
    """Streams of uneven heads: the first has an extra closing row after every seventh step."""
    history = History(streams, length)
    replay = history.replay(experience)
    for i in range(steps):
        kinds = [TRUNCATE if i % 7 == 6 else STEP] + [TERMINATE if i % 5 == 4 else STEP] * (streams - 1)
        replay.add(history.piece(range(streams), kinds))
        if i % 7 == 6:
            replay.add(history.piece([0], [CLOSE]))
    return history, replay


def same(one, other):
    assert torch.equal(one.reward, other.reward) and torch.equal(one.discount, other.discount)
    assert torch.equal(one.action, other.action)
    for name in one.obs:
        assert torch.equal(one.obs[name], other.obs[name])
        assert torch.equal(one.next_obs[name], other.next_obs[name])


@pytest.mark.parametrize("steps", [9, 16, 17, 45])  # part full, just full, wrapped
def test_a_loaded_replay_draws_the_same_batches_bit_for_bit(steps):
    history, replay = filled(3, 16, steps, NStep(3, 0.9, scale_rewards_to=5.0))
    replay.sample(7)
    state = copy.deepcopy(replay.state_dict())
    fresh = history.replay(NStep(3, 0.9, scale_rewards_to=5.0), seed=99)
    assert fresh.load_state_dict(state) == 0
    for i in range(20):
        same(replay.sample(7), fresh.sample(7))
        piece = history.piece([0, 1, 2], [STEP, STEP, TRUNCATE if i == 5 else STEP])
        replay.add(piece)
        fresh.add(piece)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(6, 14), st.integers(1, 30), st.integers(1, 4), st.integers(6, 14))
def test_other_shapes_keep_the_newest_rows_and_count_the_dropped(
    streams, length, steps, others, other_length
):
    history, replay = filled(streams, length, steps)
    state = copy.deepcopy(replay.state_dict())
    target = History(others, other_length)
    fresh = target.replay(EXPERIENCE)
    dropped = fresh.load_state_dict(state)
    # What must be left: of each stream that exists in both, the newest rows that both lengths hold.
    held = [min(len(rows), length) for rows in history.rows]
    kept = [min(h, other_length) for h in held[:others]]
    assert dropped == sum(held) - sum(kept) and len(fresh) == sum(kept)
    target.rows[: len(kept)] = [rows[-k:] for rows, k in zip(history.rows, kept, strict=False)]
    for stream, rows in enumerate(target.rows[: len(kept)]):
        for age in range(1, len(rows) + 1):
            place = stream * other_length + (int(fresh.streams.heads[stream]) - age) % other_length
            assert fresh.streams.fields(torch.tensor([place]))["obs"][0, 1] == rows[-age].number
            assert fresh.streams.reward[place] == rows[-age].reward
    assert not fresh.streams.heads[len(kept) :].any()


def test_windows_of_a_replay_loaded_into_other_lengths_are_still_right():
    for length in (8, 24):
        history, replay = filled(2, 16, 45)
        fresh = history.replay(EXPERIENCE, length=length)
        fresh.load_state_dict(copy.deepcopy(replay.state_dict()))
        history.length = min(16, length)
        history.check(fresh.sample(200), EXPERIENCE)
        for _ in range(3):
            piece = history.piece([0, 1], [STEP, STEP])
            fresh.add(piece)
        history.length = length
        history.check(fresh.sample(200), EXPERIENCE)


def test_after_a_cut_no_window_joins_old_rows_and_new():
    history, replay = filled(2, 16, 12)
    history.end_streams()
    replay.end_streams()
    for _ in range(4):
        replay.add(history.piece([0, 1], [STEP, STEP]))
    batch = replay.sample(400)
    history.check(batch, EXPERIENCE)
    seam = {s: len(rows) - 5 for s, rows in enumerate(history.rows)}  # the cut row
    for stream, start in batch.obs["obs"][:, :2].int().tolist():
        assert start != seam[stream]
