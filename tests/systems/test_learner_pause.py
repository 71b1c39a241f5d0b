"""A run with several learners stops at once although no actor sends anything."""

import time

import pytest
from recording_observer import RecordingObserver

from troop.algorithms import ImpalaConfig
from troop.core.engine import Until
from troop.core.system import Evaluation, RunSettings
from troop.engines import Processes
from troop.envs import Toy
from troop.systems import IMPALA

pytestmark = pytest.mark.timeout(120)


class StopsAfterStart(RecordingObserver):
    """Requests a stop one second after the first checkpoint, which is made when all hosts are ready."""

    ready_at = None

    def save(self, counters, state, last):
        self.ready_at = self.ready_at or time.monotonic()
        super().save(counters, state, last)

    def stop_requested(self):
        return self.ready_at is not None and time.monotonic() > self.ready_at + 1


def test_learners_without_batches_pause_and_are_saved():
    settings = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=10**9))
    config, env = ImpalaConfig(unroll_length=5, hidden=(8,)), Toy("Clock", 2, limit=9, discrete=True)
    program = IMPALA(1, 2, learners=2).program(config, env, settings)
    del program.nodes["actor0"]
    observer = StopsAfterStart()
    engine = Processes(threads=1, log_s=0.1, step_limit_s=30, stop_limit_s=5)
    assert engine.run(program, Until(minutes=2), 3, observer).status == "stopped"
    assert time.monotonic() - observer.ready_at < 15
    assert {"learner.algorithm", "learner1.algorithm"} <= set(observer.state)
