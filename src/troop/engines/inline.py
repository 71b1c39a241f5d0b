"""Inline: the engine that runs all roles in one thread of this process, deterministically."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal

from troop.core.config import bounded
from troop.core.engine import Checkpoint, Counters, FileSink, Result, RunObserver, Until
from troop.core.env_calls import EnvFailure, forget_calls
from troop.core.errors import EnvFault, TrainingFault
from troop.core.program import Program, Schedule
from troop.core.role import Metrics
from troop.engines.host import Host
from troop.engines.progress import RunProgress, ScheduleTimer
from troop.engines.runtime import prepare
from troop.engines.stall_monitor import StallMonitor, StepInterrupted


@dataclass(frozen=True)
class Inline:
    """Runs all roles in one thread; runs with the same seed on the CPU are bit-equal."""

    threads: int = bounded(0, low=0, high=1024)
    """CPU threads of torch; 0: OMP_NUM_THREADS, or all cores if it is not set."""
    log_s: float = bounded(1.0, above=0)
    """Seconds between lines of metrics."""
    checkpoint_s: float = bounded(120.0, above=0)
    """Training seconds between checkpoints; the end of a run always writes one."""
    step_limit_s: float = bounded(300.0, above=0)
    """Seconds after which the run is saved and fails if a call of the env does not return."""

    def check(self, program: Program) -> None:
        """Accept every program."""

    def make_host(self, program: Program, seed: int) -> Host:
        """Build all roles."""
        if all(node.group_ref is None for node in program.nodes.values()):
            return Host(program, seed)
        from troop.engines.inline_group import InlineGroups

        groups = InlineGroups()
        return Host(program, seed, join=groups.join, groups=groups)

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
        progress = RunProgress(checkpoint.counters if checkpoint else Counters())
        driver = InlineDriver(self, progress, until, observer)
        with driver.monitor:
            try:
                driver.start(program, seed, checkpoint)
                return driver.run()
            except StepInterrupted as interrupt:
                return driver.end_interrupted(interrupt)
            except (EnvFailure, EnvFault):
                driver.save_after_failure()
                raise
            finally:
                driver.close()


class InlineDriver:
    """Builds and steps the roles of one run, logs, evaluates and makes checkpoints."""

    def __init__(self, engine: Inline, progress: RunProgress, until: Until, observer: RunObserver) -> None:
        self.engine, self.progress = engine, progress
        self.until, self.observer = until, observer
        self.checkpoint_timer = ScheduleTimer(Schedule(seconds=engine.checkpoint_s), progress)
        self.timers: dict[str, ScheduleTimer] = {}
        self.evaluation: Metrics = {}
        self.status: Literal["done", "stopped"] = "stopped"
        self._started = False
        self._last_log = time.monotonic()
        self.monitor = StallMonitor(
            observer,
            engine.step_limit_s,
            lambda: progress.over_minutes(until),
            lambda: self.save(last=True),
            self.result,
        )

    def start(self, program: Program, seed: int, checkpoint: Checkpoint | None) -> None:
        """Build all roles and restore them from the checkpoint; without one, make the first."""
        self.host = self.engine.make_host(program, seed)
        if checkpoint is not None:
            self.host.load_state_dict(checkpoint.state)
            checkpoint.state.clear()  # frees the memory of a second copy of the replay buffer
        self.report_messages()
        self.timers = {
            name: ScheduleTimer(schedule, self.progress) for name, schedule in self.host.scheduled.items()
        }
        self.progress.add_evaluation_time()
        if checkpoint is None:
            self.save(last=True)  # so that the run can be resumed whatever happens next
        self._started, self.monitor.phase = True, "stepping"

    def run(self) -> Result:
        """Run until a condition of `until` holds or a stop is requested."""
        while not self.progress.reached(self.until):
            if self.observer.stop_requested():
                self.save(last=True)
                return self.result()
            self.step_all()
        if not self.progress.target_reached:
            self.evaluate(list(self.timers))
        self.log()
        self.save(last=True)
        self.status = "done"
        return self.result()

    def result(self) -> Result:
        """Return the counters and the last evaluation."""
        return Result(self.status, self.progress.counters(), self.evaluation)

    def step_all(self) -> None:
        """Step every active role once, then log, evaluate and checkpoint if due."""
        results = self.host.step_all()
        self.monitor.stepped()
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
            with self.monitor.during("evaluating"):
                metrics = self.host.roles[name].step()
            if metrics is not None:
                evaluation = {key: float(value) for key, value in metrics.items()}
                self.evaluation = dict(evaluation)
                self.progress.add_evaluation(evaluation["eval/return_mean"], self.until)
                self.observer.log_evaluation(self.progress.counters(), evaluation)
            self.progress.add_evaluation_time()

    def log(self) -> None:
        """Log the metrics since the last line, the current gauges and new notes."""
        self.observer.log(self.progress.counters(), self.progress.read_means() | self.host.gauges())
        self.report_messages()
        self._last_log = time.monotonic()

    def report_messages(self) -> None:
        """Pass new notes and files of the roles to the observer."""
        for text in self.host.notes():
            self.observer.note(text)
        for name, text in self.host.files().items():
            if isinstance(self.observer, FileSink):
                self.observer.write_file(name, text)

    def save(self, last: bool = False) -> None:
        """Make a checkpoint; its time is not counted as training."""
        with self.monitor.during("saving"):
            self.observer.save(self.progress.counters(), self.host.state_dict(), last)
        self.progress.add_evaluation_time()

    def save_after_failure(self) -> None:
        """Save what was learned before a call of an env failed; the other roles are between two steps."""
        if self._started:
            self.report_messages()
            self.progress.add_training_time()
            self.save(last=True)

    def end_interrupted(self, interrupt: StepInterrupted) -> Result:
        """End a run whose step was interrupted: save, unless an update was; raise the fault, if it is one."""
        if interrupt.in_env:
            self.save_after_failure()
        elif self._started:
            self.observer.note("an update was interrupted; the last checkpoint is from before it")
        if interrupt.fault is not None:
            saved = "; what was learned until then is saved." if self._started else "."
            raise TrainingFault(str(interrupt.fault).removesuffix(".") + saved)
        return self.result()

    def close(self) -> None:
        """Close all roles; an env that cannot be closed is reported and does not change the result."""
        with self.monitor.during("closing"):
            for text in self.host.close() if hasattr(self, "host") else []:
                self.observer.note(text)
        forget_calls(threading.get_ident())  # a member of a group may still hang in its env
