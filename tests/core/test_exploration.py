"""Values of the exploration schedules; per-env constants equal the formulas of the papers."""

import itertools
import math
import statistics

import pytest
import torch

from troop.core.exploration import (
    EpsilonLadder,
    LinearSchedule,
    PerEnv,
    PerEpisodeUniform,
    RandomStart,
)

CPU = torch.device("cpu")


def test_epsilon_ladder_has_the_values_of_the_apex_paper():
    thirty_two = EpsilonLadder().values(32)
    assert [round(x, 4) for x in thirty_two[:4]] == [0.4, 0.3252, 0.2645, 0.215]
    assert round(thirty_two[-1], 6) == 0.000655
    eight = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.0041, 0.00164, 0.000655]
    assert EpsilonLadder().values(8) == pytest.approx(eight, rel=2e-3)
    many = EpsilonLadder().values(360)
    assert round(statistics.median(many), 4) in (0.0162, 0.0163) and round(statistics.mean(many), 4) == 0.0626
    assert EpsilonLadder().values(1) == (0.4,) and EpsilonLadder(0.5, 1.0).values(2) == (0.5, 0.25)


def test_uniform_schedule_draws_a_value_per_episode():
    schedule = PerEpisodeUniform(0.2, 0.6)
    values = schedule.initial(1000, CPU)
    assert 0.2 <= values.min() < 0.21 and 0.59 < values.max() <= 0.6
    assert schedule.update(values, None, 5) is values
    started = torch.arange(1000) % 2 == 0
    new = schedule.update(values, started, 5)
    assert torch.equal(new[~started], values[~started]) and not torch.isclose(new, values)[started].any()


@pytest.mark.parametrize(
    "low, high", [(0.05, 0.8), (0.001, 0.2), (0.001, 0.4), (0.1, 0.4), (0.2, 0.8), (0.1, 0.1), (1.0, 1.0)]
)
@pytest.mark.parametrize("rows", [2, 3, 6, 16, 64, 100, 128, 1024, 4096])
def test_uniform_schedule_becomes_a_ramp_of_constants(low, high, rows):
    """In float32, as policies get them, the values equal both Ape-X's and PQL's way to write the formula."""
    values = torch.tensor(PerEpisodeUniform(low, high).per_env(rows))
    ramp = [low + (high - low) * i / (rows - 1) for i in range(rows)]
    mixed = [low + i / (rows - 1) * (high - low) for i in range(rows)]
    assert torch.equal(values, torch.tensor(ramp)) and torch.equal(values, torch.tensor(mixed))


def test_single_env_gets_the_mean_of_the_range():
    assert PerEpisodeUniform(0.0, 1.0).per_env(1) == (0.5,)
    assert PerEpisodeUniform(0.1, 0.5).per_env(5) == pytest.approx((0.1, 0.2, 0.3, 0.4, 0.5))


def test_linear_schedule_anneals_over_its_env_steps():
    schedule = LinearSchedule(1.0, 0.1, 100)
    values = schedule.initial(2, CPU)
    assert values.tolist() == [1.0, 1.0]
    for env_steps, value in ((0, 1.0), (50, 0.55), (100, 0.1), (1000, 0.1)):
        assert schedule.update(values, None, env_steps).tolist() == pytest.approx([value] * 2)
    assert LinearSchedule(1.0, 0.1, 0).update(values, None, 0).tolist() == pytest.approx([0.1] * 2)


def test_linear_schedule_keeps_its_start_for_the_first_env_steps():
    schedule, values = LinearSchedule(1.0, 0.1, 100, start_after=50), torch.zeros(1)
    for env_steps, value in ((0, 1.0), (50, 1.0), (51, 0.991), (100, 0.55), (150, 0.1), (1000, 0.1)):
        assert schedule.update(values, None, env_steps).item() == pytest.approx(value)
    step = LinearSchedule(1.0, 0.1, 0, start_after=50)
    assert [step.update(values, None, env_steps).item() for env_steps in (49, 50)] == pytest.approx([1, 0.1])
    assert schedule.share(5) == LinearSchedule(1.0, 0.1, 20, 10)


def test_linear_schedule_can_count_updates_instead_of_env_steps():
    updates, values, linear = [0], torch.zeros(2), LinearSchedule(1.0, 0.1, 100)
    schedule = linear.over_updates(lambda: updates[0])
    assert schedule.initial(2, CPU).tolist() == [1.0, 1.0] and schedule.per_env(3) == linear.per_env(3)
    for count, value in ((0, 1.0), (50, 0.55), (200, 0.1)):
        updates[0] = count
        assert schedule.update(values, None, 10**6).tolist() == pytest.approx([value] * 2)
    assert schedule.share(7) == schedule


def test_random_start_counts_env_steps_also_if_its_schedule_counts_updates():
    updates, values = [0], torch.full((1,), math.inf)
    random_start = RandomStart(LinearSchedule(1.0, 0.1, 100), 30)
    schedule = random_start.over_updates(lambda: updates[0]).share(3)
    assert schedule.update(values, None, 9).isinf().all()
    values = schedule.update(values, None, 10)
    updates[0] = 100
    assert schedule.update(values, None, 11).item() == pytest.approx(0.1)
    noise = PerEpisodeUniform(0.1, 0.2)
    assert noise.over_updates(lambda: 0) is noise


def test_annealed_epsilon_becomes_the_ladder():
    assert LinearSchedule(1.0, 0.1, 100).per_env(4) == EpsilonLadder().values(4)
    ladder = EpsilonLadder(0.5, 1.0)
    assert LinearSchedule(1.0, 0.1, 100).per_env(4, ladder) == ladder.values(4)


def test_noisy_nets_keep_their_noise_under_the_ladder():
    assert LinearSchedule(2.0, 1.02, 100).per_env(4) == tuple(1 + x for x in EpsilonLadder().values(4))


def test_schedule_with_equal_start_and_end_is_constant():
    assert LinearSchedule(1.0, 1.0, 1).per_env(2) == (1.0, 1.0)
    assert LinearSchedule(0.0, 0.0, 1).per_env(3) == (0.0, 0.0, 0.0)


def test_workers_share_the_env_steps_of_a_linear_schedule_and_of_no_other():
    assert LinearSchedule(1.0, 0.1, 400).share(3) == LinearSchedule(1.0, 0.1, 133)
    for schedule in (PerEpisodeUniform(0.1, 0.2), PerEnv((0.1, 0.2))):
        assert schedule.share(3) == schedule


def test_constants_stay_constant():
    schedule = PerEnv((0.25, 0.5))
    values = schedule.initial(2, CPU)
    assert values.tolist() == [0.25, 0.5] and schedule.per_env(2) == (0.25, 0.5)
    for started, env_steps in itertools.product((None, torch.ones(2, dtype=torch.bool)), (0, 99)):
        assert schedule.update(values, started, env_steps).tolist() == [0.25, 0.5]
    with pytest.raises(AssertionError, match="3 envs but 2 exploration values"):
        schedule.initial(3, CPU)
