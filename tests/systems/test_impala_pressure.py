"""IMPALA with a paused or slow learner, or a slow actor: the queue is bounded, and the others continue."""

import os
import signal
import time

import psutil
import pytest
from host_killer import host_processes
from recording_observer import RecordingObserver
from traced_env import TracedEnvConfig, steps_taken

from troop.algorithms import ImpalaConfig
from troop.bench.system.sleeping import SleepingTrajectoryConfig
from troop.core.engine import Until
from troop.core.system import Evaluation, RunSettings
from troop.engines import Processes
from troop.roles.replay_sender import MAX_IN_FLIGHT
from troop.systems import IMPALA

pytestmark = pytest.mark.timeout(180)
LONG = bool(os.environ.get("TROOP_LONG_TESTS"))
PAUSE_S = 20.0 if LONG else 2.0
SETTLE_S = 0.7  # after this time messages in flight have arrived
ENGINE = Processes(threads=1, log_s=0.05)
SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=1, env_steps=10**9, max_episode_steps=10))
LENGTH, ENVS, BATCH_SIZE, ACTORS = 5, 2, 4, 3
ALGORITHM = ImpalaConfig(unroll_length=LENGTH, hidden=(8,))
QUEUE_MB = 0.02  # about 40 trajectories
MAX_BYTES = int(QUEUE_MB * 2**20)
# Trajectories of one actor beyond the bound: those in flight, and the one that it was collecting.
EXCESS = MAX_IN_FLIGHT + 2


def impala(actors=ACTORS, queue_size=1000, queue_mb=QUEUE_MB):
    """Return IMPALA with a queue that is by default limited by its bytes, not by its streams."""
    return IMPALA(
        actors, BATCH_SIZE, queue_size=queue_size, queue_mb=queue_mb, double_buffered=False, stagger=False
    )


def trajectory_bytes(lines):
    """Return the bytes of one actor's trajectory, from the sizes of the queue."""
    sizes = {line["queue/bytes"] / line["queue/rows"] for line in lines if line.get("queue/rows")}
    assert len(sizes) == 1, "trajectories have different sizes"
    return sizes.pop() * ENVS


def assert_bounded(lines):
    """Assert that the queue never had more bytes than its bound and the trajectories in flight."""
    excess = ACTORS * EXCESS * trajectory_bytes(lines)
    assert max(line.get("queue/bytes", 0) for line in lines) <= MAX_BYTES + excess < 2 * MAX_BYTES


class LearnerPauser(RecordingObserver):
    """Pauses the learner, and takes snapshots when the queue has become full and PAUSE_S later."""

    def __init__(self, directory):
        super().__init__()
        self.directory, self.snapshots, self.metrics = directory, [], {}
        self.paused_since = self.full_since = None
        self.done = False

    def log(self, counters, metrics):
        super().log(counters, metrics)
        self.metrics |= metrics
        now, hosts = time.monotonic(), host_processes(os.getpid())
        if self.paused_since is None:
            if counters.updates >= 20:
                self.paused_since = now
                os.kill(hosts["learner"], signal.SIGSTOP)
        elif self.full_since is None:
            if now > self.paused_since + SETTLE_S and self.metrics["queue/bytes"] >= MAX_BYTES:
                self.full_since = now
        elif not self.snapshots:
            if now > self.full_since + SETTLE_S:
                self.take_snapshot(counters, hosts)
        elif len(self.snapshots) == 1:
            if now > self.full_since + SETTLE_S + PAUSE_S:
                self.take_snapshot(counters, hosts)
                os.kill(hosts["learner"], signal.SIGCONT)
        elif counters.updates >= self.snapshots[1]["counters"].updates + 60:
            self.done = True

    def take_snapshot(self, counters, hosts):
        self.snapshots.append(
            {
                "counters": counters,
                "steps": steps_taken(self.directory),
                "memory": sum(psutil.Process(pid).memory_info().rss for pid in hosts.values()),
                "queue": self.metrics["queue/bytes"],
            }
        )

    def stop_requested(self):
        return self.done


@pytest.fixture(scope="module")
def paused_run(tmp_path_factory):
    """The observer and the result of a run whose learner is paused."""
    directory = tmp_path_factory.mktemp("envs")
    observer = LearnerPauser(directory)
    program = impala().program(ALGORITHM, TracedEnvConfig(str(directory), seconds=0.005), SETTINGS)
    result = ENGINE.run(program, Until(minutes=2), 3, observer)
    assert result.status == "stopped" and result.counters.restarts == 0, observer.notes
    return observer, result


def test_actors_wait_and_the_queue_is_full_while_the_learner_is_paused(paused_run):
    observer, _ = paused_run
    before, after = observer.snapshots
    assert len(before["steps"]) == ACTORS and before["steps"] == after["steps"]
    assert before["counters"].updates == after["counters"].updates
    assert MAX_BYTES <= before["queue"] == after["queue"]
    assert_bounded(observer.lines)


def test_memory_does_not_grow_while_the_learner_is_paused(paused_run):
    before, after = paused_run[0].snapshots
    assert after["memory"] - before["memory"] < 10 << 20


def test_all_roles_continue_after_the_pause(paused_run):
    observer, result = paused_run
    end, now = observer.snapshots[1], steps_taken(observer.directory)
    assert result.counters.updates >= end["counters"].updates + 60
    assert all(now[actor] > steps for actor, steps in end["steps"].items())


def test_actors_are_as_fast_as_a_slow_learner_and_the_queue_is_bounded(tmp_path):
    """Without back-pressure the actors would make several times as many steps."""
    env, observer = TracedEnvConfig(str(tmp_path), seconds=0.002), RecordingObserver()
    program = impala().program(SleepingTrajectoryConfig(LENGTH, seconds=0.1), env, SETTINGS)
    result = ENGINE.run(program, Until(minutes=6 / 60), 3, observer)
    assert result.status == "done" and result.counters.restarts == 0, observer.notes
    assert_bounded(observer.lines)
    waiting = [line["queue/bytes"] for line in observer.lines if "queue/bytes" in line]
    assert min(waiting[len(waiting) // 2 :]) >= 0.8 * MAX_BYTES
    stored = MAX_BYTES / trajectory_bytes(observer.lines) + ACTORS * EXCESS  # trajectories
    learned = (result.counters.updates + 2) * BATCH_SIZE / ENVS  # with the batches in use and prefetched
    assert sum(steps_taken(tmp_path).values()) <= (stored + learned) * LENGTH


def test_learner_uses_all_that_the_fast_actor_gives_beside_one_that_is_twenty_times_slower(tmp_path):
    env, observer = TracedEnvConfig(str(tmp_path), seconds=0.01, slow=(0,)), RecordingObserver()
    program = impala(actors=2, queue_size=1, queue_mb=4096).program(ALGORITHM, env, SETTINGS)
    result = ENGINE.run(program, Until(env_steps=700, minutes=2), 3, observer)
    assert result.status == "done" and result.counters.restarts == 0, observer.notes
    slow, fast = sorted(steps_taken(tmp_path).values())
    assert 0 < 4 * slow < fast
    waiting = BATCH_SIZE / ENVS + EXCESS + 2 * BATCH_SIZE / ENVS  # trajectories: queue, in flight, prefetched
    assert result.counters.updates * BATCH_SIZE / ENVS >= fast / LENGTH - waiting


@pytest.mark.timeout(300)
@pytest.mark.long  # compares times, and needs idle cores
def test_learner_is_as_fast_beside_an_actor_that_is_twenty_times_slower(tmp_path):
    updates = {}
    for actors, slow in ((1, ()), (2, (0,))):
        directory = tmp_path / str(actors)
        directory.mkdir()
        env = TracedEnvConfig(str(directory), seconds=0.02, slow=slow)
        program = impala(actors, queue_size=1, queue_mb=4096).program(ALGORITHM, env, SETTINGS)
        result = ENGINE.run(program, Until(minutes=15 / 60), 3, RecordingObserver())
        updates[actors] = result.counters.updates
    print(updates)
    assert updates[2] >= 0.9 * updates[1]
