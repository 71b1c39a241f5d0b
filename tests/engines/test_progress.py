"""RunProgress: counters, training clock and the end of a run."""

import pytest
import torch

from troop.core.engine import Counters, Until
from troop.core.program import Schedule
from troop.engines.progress import RunProgress, ScheduleTimer


def test_counts_are_summed_and_other_metrics_averaged_until_read():
    progress = RunProgress(Counters())
    progress.add({"count/env_steps": 4, "count/updates": 2, "loss": torch.tensor(1.0), "train/return": 10.0})
    progress.add({"count/env_steps": 3, "loss": torch.tensor(2.0)})
    progress.add(
        {"count/updates": torch.tensor(5.0), "loss": torch.tensor(6.0), "train/return": torch.tensor(20.0)}
    )
    assert (progress.counters().env_steps, progress.counters().updates) == (7, 7)
    assert progress.read_means() == {"loss": pytest.approx(3.0), "train/return": pytest.approx(15.0)}
    assert progress.read_means() == {}
    progress.add({"loss": 4.0})
    assert progress.read_means() == {"loss": 4.0}


def test_reading_the_counters_repeatedly_does_not_count_twice():
    progress = RunProgress(Counters(skipped_updates=1))
    progress.add({"count/skipped_updates": torch.tensor(2.0)})
    assert [progress.counters().skipped_updates for _ in range(3)] == [3, 3, 3]


@pytest.mark.reliability("R7")
def test_counters_of_a_resumed_run_continue():
    progress = RunProgress(Counters(env_steps=100, updates=5, wall_s=60.0))
    progress.add({"count/env_steps": 1})
    assert progress.env_steps == progress.counters().env_steps == 101 and progress.wall_s == 60.0
    assert progress.reached(Until(minutes=1.0)) and not progress.reached(Until(minutes=1.1))


def test_counts_without_a_counter_are_ignored():
    progress = RunProgress(Counters())
    progress.add({"count/skipped_policy_updates": torch.tensor(1.0), "count/odd": 3})
    assert progress.counters() == Counters()


@pytest.mark.parametrize("steps, done", [(9, False), (10, True), (11, True)])
def test_env_steps_end_a_run(steps, done):
    progress = RunProgress(Counters())
    progress.add({"count/env_steps": steps})
    assert progress.reached(Until(env_steps=10)) == done
    assert not progress.reached(Until(env_steps=None))


def test_first_evaluation_that_reaches_the_target_ends_the_run_and_sets_its_time():
    until, progress = Until(target=5.0), RunProgress(Counters(wall_s=7.0))
    progress.add_evaluation(4.9, until)
    assert not progress.reached(until) and progress.counters().target_reached_s is None
    progress.add_evaluation(5.0, until)
    assert progress.reached(until) and progress.counters().target_reached_s == 7.0
    progress.add_training_time()
    progress.add_evaluation(9.0, until)
    assert progress.counters().target_reached_s == 7.0


def test_training_and_evaluation_time_are_counted_separately():
    progress = RunProgress(Counters())
    progress.add_training_time()
    after_training = progress.counters()
    progress.add_evaluation_time()
    assert progress.counters().wall_s == after_training.wall_s > 0
    assert progress.counters().evaluation_s > 0 == after_training.evaluation_s


def test_timer_is_due_once_per_interval_of_env_steps():
    progress = RunProgress(Counters(env_steps=5))
    timer = ScheduleTimer(Schedule(env_steps=10), progress)
    due = []
    for _ in range(6):
        progress.add({"count/env_steps": 5})
        due.append(timer.due())
        progress.counters()
    assert due == [False, True, False, True, False, True]
