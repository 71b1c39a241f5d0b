"""RoleTimes with a fake clock."""

import pytest

from troop.engines import role_times as role_times_module
from troop.engines.role_times import RoleTimes


class FakeClock:
    """Advances only when the test says so."""

    now = 50.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    fake = FakeClock()
    monkeypatch.setattr(role_times_module, "time", fake)
    return fake


def shares(readings, name):
    return [readings[f"role/{name}/{share}"] for share in ("busy", "waiting", "blocked", "idle")]


def test_waits_are_subtracted_from_busy_time_and_the_rest_is_idle(clock):
    times = RoleTimes(["actor", "replay"])
    times.add_wait(1.0, blocked=False)
    times.add_wait(0.5, blocked=True)
    times.add_busy("actor", 4.0, steps=1)  # of which 1.5 were waits
    times.add_idle_wait("actor", 0.5)
    times.add_busy("replay", 2.0, steps=0)
    clock.now += 10.0
    readings = times.read()
    assert shares(readings, "actor") == [0.25, 0.15, 0.05, 0.55]
    assert shares(readings, "replay") == [0.2, 0, 0, 0.8]
    assert (readings["role/actor/steps_per_s"], readings["role/replay/steps_per_s"]) == (0.1, 0.0)
    clock.now += 1.0
    assert shares(times.read(), "actor") == [0, 0, 0, 1]  # each reading resets the sums


def test_shares_of_a_step_longer_than_the_window_add_up_to_one(clock):
    times = RoleTimes(["learner"])
    times.add_wait(3.0, blocked=False)
    times.add_busy("learner", 9.0, steps=1)
    clock.now += 1.0
    assert shares(times.read(), "learner") == pytest.approx([0.6667, 0.3333, 0, 0])
