"""Inline: one host for everything, in this thread; deterministic."""

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
    """One process, one thread of control; with one seed on CPU, bit-equal from run to run."""

    threads: int = bounded(0, low=0, high=1024)
    """Torch threads; 0 for as many as there are cores."""
    log_s: float = bounded(1.0, above=0)
    """Seconds between lines of metrics."""
    checkpoint_s: float = bounded(120.0, above=0)
    """Training seconds between checkpoints; there is always one at the end."""

    def check(self, program: Program) -> None:
        """Anything runs in one thread."""

    def run(
        self,
        program: Program,
        until: Until,
        seed: int,
        observer: RunObserver,
        checkpoint: Checkpoint | None = None,
    ) -> Result:
        """Round after round until done; a checkpoint and an evaluation at the end."""
        prepare(self.threads)
        host = Host(program, seed)
        try:
            if checkpoint is not None:
                host.load_state_dict(checkpoint.state)
                checkpoint.state.clear()  # a second copy of the replay is not to be kept
            for text in host.notes():
                observer.note(text)
            loop = InlineDriver(
                self, host, RunProgress(checkpoint.counters if checkpoint else Counters()), until, observer
            )
            if checkpoint is None:
                loop.save(last=True)  # from now on, whatever happens, there is something to resume
            return loop.run()
        finally:
            host.close()


class InlineDriver:
    """The state of one run of the inline engine."""

    def __init__(
        self, engine: Inline, host: Host, progress: RunProgress, until: Until, observer: RunObserver
    ) -> None:
        self.host, self.progress, self.until, self.observer, self.engine = (
            host,
            progress,
            until,
            observer,
            engine,
        )
        self.checkpoint_timer = ScheduleTimer(Schedule(seconds=engine.checkpoint_s), progress)
        self.timers = {name: ScheduleTimer(schedule, progress) for name, schedule in host.scheduled.items()}
        self.evaluation: Metrics = {}
        self.logged = time.monotonic()

    def run(self) -> Result:
        """Until steps, minutes or target are reached, or a stop is asked."""
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
        """One round of all roles, then whatever is due."""
        moved = self.host.step_all()
        if not moved:
            raise RuntimeError("every role waits for another: a bug in this system's wiring")
        for metrics in moved:
            self.progress.add(metrics)
        self.progress.add_training_time()
        if time.monotonic() - self.logged >= self.engine.log_s:
            self.log()
        self.evaluate([name for name, timer in self.timers.items() if timer.due()])
        if self.checkpoint_timer.due():
            self.save()

    def evaluate(self, names: list[str]) -> None:
        """Let scheduled roles step, apart from training time, and judge the target."""
        for name in names:
            metrics = self.host.roles[name].step()
            if metrics is not None:
                self.evaluation = {key: float(value) for key, value in metrics.items()}
                self.progress.add_evaluation(self.evaluation["eval/return_mean"], self.until)  # type: ignore[arg-type]
                self.observer.evaluated(self.progress.counters(), self.evaluation)  # type: ignore[arg-type]
            self.progress.add_evaluation_time()

    def log(self) -> None:
        """A line of everything since the last."""
        self.observer.log(self.progress.counters(), self.progress.read_means() | self.host.gauges())
        self.logged = time.monotonic()

    def save(self, last: bool = False) -> None:
        """A checkpoint, its time not counted as training."""
        self.observer.save(self.progress.counters(), self.host.state_dict(), last)
        self.progress.add_evaluation_time()
