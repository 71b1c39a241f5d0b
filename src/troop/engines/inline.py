"""Inline: the engine that runs all roles in one thread of this process, deterministically."""

from __future__ import annotations

import time
from dataclasses import dataclass

from troop.core.config import bounded
from troop.core.engine import Checkpoint, Counters, Result, RunObserver, Until
from troop.core.program import Program, Schedule
from troop.core.role import Metrics
from troop.engines.host import Host
from troop.engines.progress import RunProgress, ScheduleTimer
from troop.engines.runtime import prepare


@dataclass(frozen=True)
class Inline:
    """Runs all roles in one thread; runs with the same seed on the CPU are bit-equal."""

    threads: int = bounded(0, low=0, high=1024)
    """CPU threads of torch; 0 uses all cores."""
    log_s: float = bounded(1.0, above=0)
    """Seconds between lines of metrics."""
    checkpoint_s: float = bounded(120.0, above=0)
    """Training seconds between checkpoints; the end of a run always writes one."""

    def check(self, program: Program) -> None:
        """Accept every program."""

    def run(
        self,
        program: Program,
        until: Until,
        seed: int,
        observer: RunObserver,
        checkpoint: Checkpoint | None = None,
    ) -> Result:
        """Step all roles in turn until done; end with an evaluation and a checkpoint."""
        prepare(self.threads)
        host = Host(program, seed)
        try:
            if checkpoint is not None:
                host.load_state_dict(checkpoint.state)
                checkpoint.state.clear()  # frees the memory of a second copy of the replay buffer
            for text in host.notes():
                observer.note(text)
            progress = RunProgress(checkpoint.counters if checkpoint else Counters())
            driver = InlineDriver(self, host, progress, until, observer)
            if checkpoint is None:
                driver.save(last=True)  # so that the run can be resumed whatever happens next
            return driver.run()
        finally:
            host.close()


class InlineDriver:
    """Steps the roles of one run, logs, evaluates and makes checkpoints."""

    def __init__(
        self, engine: Inline, host: Host, progress: RunProgress, until: Until, observer: RunObserver
    ) -> None:
        self.engine, self.host, self.progress = engine, host, progress
        self.until, self.observer = until, observer
        self.checkpoint_timer = ScheduleTimer(Schedule(seconds=engine.checkpoint_s), progress)
        self.timers = {name: ScheduleTimer(schedule, progress) for name, schedule in host.scheduled.items()}
        self.evaluation: Metrics = {}
        self._last_log = time.monotonic()

    def run(self) -> Result:
        """Run until a condition of `until` holds or a stop is requested."""
        while not self.progress.reached(self.until):
            if self.observer.stop_requested():
                self.save(last=True)
                return Result("stopped", self.progress.counters(), self.evaluation)
            self.step_all()
        if not self.progress.target_reached:
            self.evaluate(list(self.timers))
        self.log()
        self.save(last=True)
        return Result("done", self.progress.counters(), self.evaluation)

    def step_all(self) -> None:
        """Step every active role once, then log, evaluate and checkpoint if due."""
        results = self.host.step_all()
        if not results:
            raise RuntimeError("every role waits for another: the wiring of this system is faulty")
        for metrics in results:
            self.progress.add(metrics)
        self.progress.add_training_time()
        if time.monotonic() - self._last_log >= self.engine.log_s:
            self.log()
        self.evaluate([name for name, timer in self.timers.items() if timer.due()])
        if self.checkpoint_timer.due():
            self.save()

    def evaluate(self, names: list[str]) -> None:
        """Step scheduled roles; their time is not counted as training."""
        for name in names:
            metrics = self.host.roles[name].step()
            if metrics is not None:
                evaluation = {key: float(value) for key, value in metrics.items()}
                self.evaluation = dict(evaluation)
                self.progress.add_evaluation(evaluation["eval/return_mean"], self.until)
                self.observer.log_evaluation(self.progress.counters(), evaluation)
            self.progress.add_evaluation_time()

    def log(self) -> None:
        """Log the metrics since the last line and the current gauges."""
        self.observer.log(self.progress.counters(), self.progress.read_means() | self.host.gauges())
        self._last_log = time.monotonic()

    def save(self, last: bool = False) -> None:
        """Make a checkpoint; its time is not counted as training."""
        self.observer.save(self.progress.counters(), self.host.state_dict(), last)
        self.progress.add_evaluation_time()
