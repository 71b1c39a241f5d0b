import pytest
import torch

from troop.core.engine import Counters, Until
from troop.engines.metrics import Tally


def test_counts_are_summed_and_the_rest_is_averaged_until_read():
    tally = Tally(Counters())
    tally.add({"count/env_steps": 4, "count/updates": 2, "loss": torch.tensor(1.0), "train/return": 10.0})
    tally.add({"count/env_steps": 3, "loss": torch.tensor(2.0)})
    tally.add(
        {"count/updates": torch.tensor(5.0), "loss": torch.tensor(6.0), "train/return": torch.tensor(20.0)}
    )
    assert (tally.counters().env_steps, tally.counters().updates) == (7, 7)
    assert tally.means() == {"loss": pytest.approx(3.0), "train/return": pytest.approx(15.0)}
    assert tally.means() == {}
    tally.add({"loss": 4.0})
    assert tally.means() == {"loss": 4.0}


def test_reading_the_counters_twice_does_not_count_twice():
    tally = Tally(Counters(skipped_updates=1))
    tally.add({"count/skipped_updates": torch.tensor(2.0)})
    assert [tally.counters().skipped_updates for _ in range(3)] == [3, 3, 3]


def test_it_goes_on_from_where_a_run_stood():
    tally = Tally(Counters(env_steps=100, updates=5, wall_s=60.0))
    tally.add({"count/env_steps": 1})
    assert tally.counters().env_steps == 101 and tally.wall_s == 60.0
    assert tally.reached(Until(minutes=1.0)) and not tally.reached(Until(minutes=1.1))


def test_counts_that_counters_do_not_know_do_no_harm():
    tally = Tally(Counters())
    tally.add({"count/skipped_policy_updates": torch.tensor(1.0), "count/odd": 3})
    assert tally.counters() == Counters()


@pytest.mark.parametrize("steps, done", [(9, False), (10, True), (11, True)])
def test_env_steps_end_a_run(steps, done):
    tally = Tally(Counters())
    tally.add({"count/env_steps": steps})
    assert tally.reached(Until(env_steps=10)) == done
    assert not tally.reached(Until(env_steps=None))


def test_the_first_evaluation_at_the_target_ends_it_and_notes_the_time():
    until, tally = Until(target=5.0), Tally(Counters(wall_s=7.0))
    tally.judge(4.9, until)
    assert not tally.reached(until) and tally.counters().target_reached_s is None
    tally.judge(5.0, until)
    assert tally.reached(until) and tally.counters().target_reached_s == 7.0
    tally.trained()
    tally.judge(9.0, until)
    assert tally.counters().target_reached_s == 7.0


def test_training_and_evaluation_time_are_kept_apart():
    tally = Tally(Counters())
    tally.trained()
    trained = tally.counters()
    tally.evaluated()
    assert tally.counters().wall_s == trained.wall_s > 0
    assert tally.counters().evaluation_s > 0 == trained.evaluation_s
