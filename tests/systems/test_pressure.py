"""Ape-X when one of its hosts is slow or stands still: the others go on, and memory does not grow."""

import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest
from besieging import hosts
from test_apex import DQN, SETTING
from test_apex import SMALL as APEX
from watching import RunObserver
from witness import Witness, performed

from troop.core.engine import Until
from troop.engines import Processes
from troop.roles.replay_sender import MAX_IN_FLIGHT

LONG = bool(os.environ.get("TROOP_LONG_TESTS"))
PAUSE = 20.0 if LONG else 2.0  # seconds
SETTLED = 0.7  # seconds in which what was under way has arrived
FURTHER = 40  # steps that others make while an actor stands still
ENGINE = Processes(threads=1, log_s=0.05)
SYSTEM = dataclasses.replace(
    APEX,
    actors=3,
    overlap=False,
    replay_capacity=6_000,
    learning_starts=60,
    chunk_length=8,
    samples_per_insert=1.0,  # the learner has time to spare,
    tolerance=10**6,  # and nobody is held back for its sake
)


def memory(pid):
    """Bytes of a process that are in memory, shared ones included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


class Pausing(RunObserver):
    """Lets an actor stand still, then the learner, then the replay, and looks what becomes of the others."""

    def __init__(self, lives):
        super().__init__()
        self.lives, self.looked, self.plan = lives, {}, ["actor0", "learner", "replay"]
        self.paused, self.since, self.counters, self.done = None, 0.0, None, False

    def log(self, counters, metrics):
        super().log(counters, metrics)
        self.counters, living = counters, hosts(os.getpid())
        begun = (self.paused, "begin") in self.looked
        if self.paused is None:
            self._next(living)
        elif not begun and time.monotonic() > self.since + SETTLED:
            self._look("begin", living)
        elif begun and self._enough():
            self._look("end", living)
            os.kill(living[self.paused], signal.SIGCONT)
            self.paused = None

    def _next(self, living):
        """Pause the next one, some updates after the last one went on."""
        last = max([look["counters"].updates for look in self.looked.values()], default=0)
        if self.counters.updates < last + 20:
            return
        self.done = not self.plan
        if self.plan:
            self.paused, self.since = self.plan.pop(0), time.monotonic()
            os.kill(living[self.paused], signal.SIGSTOP)

    def _enough(self):
        if self.paused != "actor0":
            return time.monotonic() > self.since + SETTLED + PAUSE
        before, now = self.looked["actor0", "begin"]["steps"], performed(self.lives)
        return sum(now[life] >= before[life] + FURTHER for life in now) >= 2

    def _look(self, when, living):
        self.looked[self.paused, when] = {
            "memory": sum(memory(pid) for pid in living.values()),
            "steps": performed(self.lives),
            "counters": self.counters,
        }

    def stop_asked(self):
        return self.done


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What was seen of three actors, learner and replay, and how it ended."""
    lives = tmp_path_factory.mktemp("lives")
    watch = Pausing(lives)
    program = SYSTEM.program(DQN, Witness(str(lives), seconds=0.01), SETTING)
    result = ENGINE.run(program, Until(minutes=4), 3, watch)
    assert result.status == "stopped" and result.counters.restarts == 0
    return watch, result


def between(watch, paused, what):
    """How things stood when one stood still, and when it went on."""
    return tuple(watch.looked[paused, when][what] for when in ("begin", "end"))


def test_others_do_not_wait_for_an_actor_that_stands_still(run):
    before, after = between(run[0], "actor0", "steps")
    made = sorted(after[life] - before[life] for life in before)
    assert made[0] == 0 and made[1] >= FURTHER


def test_actors_go_on_while_the_learner_stands_still(run):
    before, after = between(run[0], "learner", "steps")
    assert all(after[life] > before[life] for life in before)
    before, after = between(run[0], "learner", "counters")
    assert after.updates == before.updates and after.env_steps > before.env_steps


def test_actors_wait_while_the_replay_stands_still(run):
    before, after = between(run[0], "replay", "steps")
    most = (MAX_IN_FLIGHT + 2) * SYSTEM.chunk_length + DQN.n_step
    assert all(after[life] - before[life] <= most for life in before)


@pytest.mark.parametrize("who", ["learner", "replay"])
def test_memory_does_not_grow_meanwhile(who, run):
    before, after = between(run[0], who, "memory")
    assert after - before < 30 << 20


def test_afterwards_all_go_on(run):
    watch, result = run
    before, after = watch.looked["replay", "end"], performed(watch.lives)
    assert result.counters.updates >= before["counters"].updates + 20
    assert all(after[life] > steps for life, steps in before["steps"].items())


@pytest.mark.timeout(300)
@pytest.mark.skipif(not LONG, reason="compares times, and wants idle cores; set TROOP_LONG_TESTS=1")
def test_others_keep_nine_tenths_of_their_speed_beside_an_actor_twenty_times_slower(tmp_path):
    made = {}
    for slow in ((), (0,)):
        lives = tmp_path / str(len(slow))
        lives.mkdir()
        program = SYSTEM.program(DQN, Witness(str(lives), seconds=0.02, slow=slow), SETTING)
        ENGINE.run(program, Until(minutes=15 / 60), 3, RunObserver())
        made[slow] = performed(lives)
    print(made)
    alone, beside = (sum(sorted(steps.values())[1:]) for steps in made.values())
    assert min(made[0,].values()) < 0.1 * max(made[0,].values())
    assert beside >= 0.9 * alone
