import pytest
from hypothesis import given
from hypothesis import strategies as st

from troop.roles.update_schedule import UpdatePace, UpdateSchedule

ADAPTIVE = UpdateSchedule(32, 1.0, overlap=True, max_updates_per_step=8.0)


def run(pace, steps, simulation_s, update_s):
    """Return the updates of each step of a loop that learns while a simulator steps."""
    counts = []
    for step in range(1, steps + 1):
        updates = pace.updates_after(step)
        pace.observe(max(0.0, simulation_s - updates * update_s), update_s)
        counts.append(updates)
    return counts


@pytest.mark.parametrize(
    "simulation, expected", [(0.5, 1.0), (1.0, 1.0), (3.25, 3.0), (5.25, 5.0), (50.0, 8.0)]
)
def test_updates_fill_the_time_of_the_simulator_within_the_limits(simulation, expected):
    counts = run(UpdatePace(ADAPTIVE), 1000, simulation, 1.0)
    assert sum(counts[500:]) / 500 == pytest.approx(expected, abs=0.15)


def test_updates_fall_when_the_simulator_becomes_faster():
    pace = UpdatePace(ADAPTIVE)
    assert run(pace, 500, 6.0, 1.0)[-1] >= 5
    assert run(pace, 1000, 0.5, 1.0)[-1] == 1


@pytest.mark.parametrize(
    "schedule",
    [
        UpdateSchedule(32, 0.75, overlap=True),
        UpdateSchedule(32, 0.75, overlap=False, max_updates_per_step=8.0),
        UpdateSchedule(32, 0.75, overlap=True, max_updates_per_step=0.5),
    ],
)
def test_without_overlap_or_a_larger_maximum_times_have_no_effect(schedule):
    pace = UpdatePace(schedule)
    assert run(pace, 100, 9.0, 1.0) == [schedule.updates_after(step) for step in range(1, 101)]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e3)), max_size=50))
def test_the_rate_stays_within_its_limits(times):
    pace = UpdatePace(ADAPTIVE)
    total = 0
    for step, (wait, update) in enumerate(times, 1):
        total += pace.updates_after(step)
        pace.observe(wait, update)
        assert 1.0 <= pace.rate <= 8.0 and -1e-6 < pace.credit < 1
    assert len(times) <= total <= 8 * len(times)


@pytest.mark.reliability("R7")
def test_a_restored_pace_continues_at_its_rate():
    pace, restored = UpdatePace(ADAPTIVE), UpdatePace(ADAPTIVE)
    run(pace, 300, 4.6, 1.0)
    restored.load_state_dict(pace.state_dict())
    assert run(restored, 50, 4.6, 1.0) == run(pace, 50, 4.6, 1.0)
