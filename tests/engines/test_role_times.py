"""How roles spent their time, by a clock of the test's own."""

import pytest

from troop.engines import role_times as role_times
from troop.engines.role_times import RoleTimes


class Clock:
    """Stands still until it is moved."""

    now = 50.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(role_times, "time", made)
    return made


def shares(read, name):
    return [read[f"role/{name}/{what}"] for what in ("busy", "waiting", "blocked", "idle")]


def test_time_is_shared_out_and_what_is_left_is_idle(clock):
    made = RoleTimes(["actor", "replay"])
    made.add_wait(1.0, full=False)
    made.add_wait(0.5, full=True)
    made.add_busy("actor", 4.0, steps=1)  # of which it was away for 1.5
    made.add_idle_wait("actor", 0.5)
    made.add_busy("replay", 2.0, steps=0)
    clock.now += 10.0
    read = made.read()
    assert shares(read, "actor") == [0.25, 0.15, 0.05, 0.55] and shares(read, "replay") == [0.2, 0, 0, 0.8]
    assert (read["role/actor/steps_per_s"], read["role/replay/steps_per_s"]) == (0.1, 0.0)
    clock.now += 1.0
    assert shares(made.read(), "actor") == [0, 0, 0, 1]  # each reading begins anew


def test_a_step_longer_than_a_reading_does_not_make_more_than_all_of_the_time(clock):
    made = RoleTimes(["learner"])
    made.add_wait(3.0, full=False)
    made.add_busy("learner", 9.0, steps=1)
    clock.now += 1.0
    assert shares(made.read(), "learner") == pytest.approx([0.6667, 0.3333, 0, 0])
