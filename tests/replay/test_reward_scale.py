import statistics

import pytest
import torch
from history import CLOSE, STEP, TERMINATE, TRUNCATE, History
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.core.batch import NStep
from troop.replay.reward_scale import RewardScale

kinds = st.lists(st.sampled_from([STEP] * 4 + [TERMINATE, TRUNCATE, CLOSE]), min_size=2, max_size=2)


def slow(history, steps, gamma, reach):
    """G <- gamma G + r of each stream on its own, 0 after an end; then max(std(G), max|G| / reach)."""
    seen = []
    for rows in history.rows:
        running = 0.0
        for row in rows[:steps]:
            if row.kind == CLOSE:
                running = 0.0
                continue
            running = gamma * running + row.reward
            seen.append(running)
            if row.kind != STEP:
                running = 0.0
    spread = statistics.pstdev(seen) if seen else 1.0
    return max(spread, max((abs(g) for g in seen), default=0.0) / reach)


@settings(max_examples=60, deadline=None)
@given(st.lists(kinds, min_size=1, max_size=30), st.sampled_from([0.3, 10.0]))
def test_the_divisor_is_that_of_a_loop_over_each_stream(drawn, reach):
    history = History(2, 64)
    scale = RewardScale(NStep(1, 0.9, scale_rewards_to=reach), 2, "cpu")
    for pair in drawn:
        scale.add(history.piece([0, 1], pair))
    assert scale.value.item() == pytest.approx(slow(history, 64, 0.9, reach), rel=1e-3, abs=1e-3)


def test_streams_do_not_overwrite_each_others_return():
    # The reference keeps one G per task. Here two streams earn +1 and -1 a step: G must drift apart.
    scale = RewardScale(NStep(1, 1.0, scale_rewards_to=1.0), 2, "cpu")
    history = History(2, 8)
    for _ in range(3):
        piece = history.piece([0, 1], [STEP, STEP])
        piece.reward[:] = torch.tensor([1.0, -1.0])
        scale.add(piece)
    assert scale.returns.tolist() == [3, -3]
    assert scale.value.item() == pytest.approx(3.0)


def test_a_forced_cut_starts_all_returns_anew():
    replay = History(2, 8).replay(NStep(1, 0.9, scale_rewards_to=1.0))
    replay.add(History(2, 8).piece([0, 1], [STEP, STEP]))
    assert replay.windows.scale.returns.any()
    replay.end_streams()
    assert not replay.windows.scale.returns.any()


def test_sampled_rewards_are_divided_after_the_n_step_sum():
    experience = NStep(3, 0.9, scale_rewards_to=2.0)
    history = History(2, 32)
    replay = history.replay(experience)
    for _ in range(20):
        replay.add(history.piece([0, 1], [STEP, STEP]))
    history.check(replay.sample(64), experience, scale=slow(history, 64, 0.9, 2.0))
