"""Ape-X while one of its hosts is paused or slow: the others continue, and memory does not grow."""

import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest
from host_killer import host_processes
from recording_observer import RecordingObserver
from small_systems import APEX, DQN, SETTINGS
from traced_env import TracedEnvConfig, steps_taken

from troop.core.engine import Until
from troop.engines import Processes
from troop.roles.replay_sender import MAX_IN_FLIGHT

LONG = bool(os.environ.get("TROOP_LONG_TESTS"))
PAUSE_S = 20.0 if LONG else 2.0
SETTLE_S = 0.7  # after this time messages in flight have arrived
MIN_STEPS = 40  # steps that the other actors make while one is paused
ENGINE = Processes(threads=1, log_s=0.05)
SYSTEM = dataclasses.replace(
    APEX,
    actors=3,
    overlap=False,
    replay_capacity=6_000,
    learning_starts=60,
    chunk_length=8,
    samples_per_insert=1.0,  # low enough that the learner waits for rows
    tolerance=10**6,  # high enough that actors never wait for the learner
)


def resident_bytes(pid):
    """Return the bytes of a process that are in memory, including shared ones."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


class HostPauser(RecordingObserver):
    """Pauses an actor, then the learner, then the replay, and records the others' progress meanwhile."""

    def __init__(self, directory):
        super().__init__()
        self.directory, self.snapshots, self.plan = directory, {}, ["actor0", "learner", "replay"]
        self.paused, self.paused_since, self.counters, self.done = None, 0.0, None, False

    def log(self, counters, metrics):
        super().log(counters, metrics)
        self.counters, hosts = counters, host_processes(os.getpid())
        started = (self.paused, "start") in self.snapshots
        if self.paused is None:
            self._pause_next(hosts)
        elif not started and time.monotonic() > self.paused_since + SETTLE_S:
            self._take_snapshot("start", hosts)
        elif started and self._paused_long_enough():
            self._take_snapshot("end", hosts)
            os.kill(hosts[self.paused], signal.SIGCONT)
            self.paused = None

    def _pause_next(self, hosts):
        """Pause the next host, at least 20 updates after the previous one was resumed."""
        updates = max([snapshot["counters"].updates for snapshot in self.snapshots.values()], default=0)
        if self.counters.updates < updates + 20:
            return
        self.done = not self.plan
        if self.plan:
            self.paused, self.paused_since = self.plan.pop(0), time.monotonic()
            os.kill(hosts[self.paused], signal.SIGSTOP)

    def _paused_long_enough(self):
        if self.paused != "actor0":
            return time.monotonic() > self.paused_since + SETTLE_S + PAUSE_S
        before, now = self.snapshots["actor0", "start"]["steps"], steps_taken(self.directory)
        return sum(now[instance] >= before[instance] + MIN_STEPS for instance in now) >= 2

    def _take_snapshot(self, when, hosts):
        self.snapshots[self.paused, when] = {
            "memory": sum(resident_bytes(pid) for pid in hosts.values()),
            "steps": steps_taken(self.directory),
            "counters": self.counters,
        }

    def stop_requested(self):
        return self.done


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The observer and the result of a run of three actors, learner and replay."""
    directory = tmp_path_factory.mktemp("envs")
    observer = HostPauser(directory)
    program = SYSTEM.program(DQN, TracedEnvConfig(str(directory), seconds=0.01), SETTINGS)
    result = ENGINE.run(program, Until(minutes=4), 3, observer)
    assert result.status == "stopped" and result.counters.restarts == 0
    return observer, result


def start_and_end(observer, paused, name):
    """Return a value at the start and at the end of the pause of one host."""
    return tuple(observer.snapshots[paused, when][name] for when in ("start", "end"))


@pytest.mark.reliability("S2")
def test_other_actors_do_not_wait_for_a_paused_actor(run):
    before, after = start_and_end(run[0], "actor0", "steps")
    steps = sorted(after[instance] - before[instance] for instance in before)
    assert steps[0] == 0 and steps[1] >= MIN_STEPS


@pytest.mark.reliability("S3")
def test_actors_continue_while_the_learner_is_paused(run):
    before, after = start_and_end(run[0], "learner", "steps")
    assert all(after[instance] > before[instance] for instance in before)
    before, after = start_and_end(run[0], "learner", "counters")
    assert after.updates == before.updates and after.env_steps > before.env_steps


def test_actors_wait_while_the_replay_is_paused(run):
    before, after = start_and_end(run[0], "replay", "steps")
    max_steps = (MAX_IN_FLIGHT + 2) * SYSTEM.chunk_length + DQN.n_step
    assert all(after[instance] - before[instance] <= max_steps for instance in before)


@pytest.mark.parametrize("paused", ["learner", "replay"])
@pytest.mark.reliability("S3")
def test_memory_does_not_grow_during_a_pause(paused, run):
    before, after = start_and_end(run[0], paused, "memory")
    assert after - before < 30 << 20


@pytest.mark.reliability("S3")
def test_all_roles_continue_after_the_pauses(run):
    observer, result = run
    before, after = observer.snapshots["replay", "end"], steps_taken(observer.directory)
    assert result.counters.updates >= before["counters"].updates + 20
    assert all(after[instance] > steps for instance, steps in before["steps"].items())


@pytest.mark.timeout(300)
@pytest.mark.long  # compares times, and needs idle cores
@pytest.mark.reliability("S2")
def test_one_actor_that_is_twenty_times_slower_leaves_the_others_nine_tenths_of_their_speed(tmp_path):
    steps = {}
    for slow in ((), (0,)):
        directory = tmp_path / str(len(slow))
        directory.mkdir()
        env = TracedEnvConfig(str(directory), seconds=0.02, slow=slow)
        ENGINE.run(SYSTEM.program(DQN, env, SETTINGS), Until(minutes=15 / 60), 3, RecordingObserver())
        steps[slow] = steps_taken(directory)
    print(steps)
    without, beside = (sum(sorted(counts.values())[1:]) for counts in steps.values())
    assert min(steps[0,].values()) < 0.1 * max(steps[0,].values())
    assert beside >= 0.9 * without
