import statistics

import pytest
import torch
from history import CLOSE, STEP, TERMINATE, TRUNCATE, History
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.core.batch import NStep
from troop.replay.reward_scale import RewardScale

kinds = st.lists(st.sampled_from([STEP] * 4 + [TERMINATE, TRUNCATE, CLOSE]), min_size=2, max_size=2)


def reference_scale(history, steps, gamma, max_return):
    """Return max(std(G), max|G| / max_return) of G <- gamma G + r per stream, reset at episode ends."""
    returns = []
    for rows in history.rows:
        running = 0.0
        for row in rows[:steps]:
            if row.kind == CLOSE:
                running = 0.0
                continue
            running = gamma * running + row.reward
            returns.append(running)
            if row.kind != STEP:
                running = 0.0
    std = statistics.pstdev(returns) if returns else 1.0
    return max(std, max((abs(g) for g in returns), default=0.0) / max_return)


@settings(max_examples=60, deadline=None)
@given(st.lists(kinds, min_size=1, max_size=30), st.sampled_from([0.3, 10.0]))
def test_scale_equals_a_loop_over_each_stream(drawn, max_return):
    history = History(2, 64)
    scale = RewardScale(NStep(1, 0.9, scale_rewards_to=max_return), 2, "cpu")
    for pair in drawn:
        scale.add(history.rollout([0, 1], pair))
    assert scale.value.item() == pytest.approx(
        reference_scale(history, 64, 0.9, max_return), rel=1e-3, abs=1e-3
    )


def test_each_stream_has_its_own_return():
    # With one G per task, as in the reference, two streams with rewards +1 and -1 would cancel out.
    scale = RewardScale(NStep(1, 1.0, scale_rewards_to=1.0), 2, "cpu")
    history = History(2, 8)
    for _ in range(3):
        rollout = history.rollout([0, 1], [STEP, STEP])
        rollout.reward[:] = torch.tensor([1.0, -1.0])
        scale.add(rollout)
    assert scale.returns.tolist() == [3, -3]
    assert scale.value.item() == pytest.approx(3.0)


def test_end_streams_resets_all_returns():
    replay = History(2, 8).replay(NStep(1, 0.9, scale_rewards_to=1.0))
    replay.add(History(2, 8).rollout([0, 1], [STEP, STEP]))
    assert replay.reward_scale.returns.any()
    replay.end_streams()
    assert not replay.reward_scale.returns.any()


def test_sampled_rewards_are_divided_by_the_scale():
    experience = NStep(3, 0.9, scale_rewards_to=2.0)
    history = History(2, 32)
    replay = history.replay(experience)
    for _ in range(20):
        replay.add(history.rollout([0, 1], [STEP, STEP]))
    history.check(replay.sample(64), experience, scale=reference_scale(history, 64, 0.9, 2.0))


@pytest.mark.parametrize("gamma, limit", [(0.99, 50), (0.99, 200), (0.9, 1000)])
def test_values_bootstrapped_at_a_time_limit_fit_the_support(gamma, limit):
    # A reward of -1 in every step: G of an episode is at most (1 - gamma^limit) / (1 - gamma), and the value
    # with bootstrapping at the limit 1 / (1 - gamma).
    experience = NStep(1, gamma, scale_rewards_to=10.0).within_time_limit(limit)
    largest_return, value = (1 - gamma**limit) / (1 - gamma), 1 / (1 - gamma)
    divisor = largest_return / experience.scale_rewards_to
    assert value / divisor == pytest.approx(10.0)


@pytest.mark.parametrize(
    "experience, limit",
    [
        (NStep(3, 0.99, scale_rewards_to=10.0), None),
        (NStep(3, 0.99, bootstrap_on_truncation=False, scale_rewards_to=10.0), 50),
        (NStep(3, 1.0, scale_rewards_to=10.0), 50),
        (NStep(3, 0.99), 50),
    ],
)
def test_without_bootstrapping_at_a_limit_the_scale_is_unchanged(experience, limit):
    assert experience.within_time_limit(limit) == experience
