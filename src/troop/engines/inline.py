"""Inline: one host for everything, in this thread; deterministic."""

from __future__ import annotations

import time
from dataclasses import dataclass

from troop.core.config import bounded
from troop.core.engine import Checkpoint, Counters, Result, RunObserver, Until
from troop.core.program import Program, Schedule
from troop.core.role import Metrics
from troop.engines.host import Host
from troop.engines.metrics import Tally
from troop.engines.runtime import prepare


class Due:
    """Tells when a schedule is next due, by env steps or by training seconds."""

    def __init__(self, schedule: Schedule, tally: Tally) -> None:
        self.schedule, self.tally = schedule, tally
        self.last = self._reading()

    def _reading(self) -> float:
        return self.tally.wall_s if self.schedule.env_steps is None else self.tally.env_steps

    def __call__(self) -> bool:
        """True once per interval."""
        every = self.schedule.seconds if self.schedule.env_steps is None else self.schedule.env_steps
        if self._reading() - self.last < every:
            return False
        self.last = self._reading()
        return True


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
        self, program: Program, until: Until, seed: int, watch: RunObserver, saved: Checkpoint | None = None
    ) -> Result:
        """Round after round until done; a checkpoint and an evaluation at the end."""
        prepare(self.threads)
        host = Host(program, seed)
        try:
            if saved is not None:
                host.load_state_dict(saved.state)
                saved.state.clear()  # a second copy of the replay is not to be kept
            for text in host.notes():
                watch.note(text)
            loop = Loop(self, host, Tally(saved.counters if saved else Counters()), until, watch)
            if saved is None:
                loop.save(last=True)  # from now on, whatever happens, there is something to resume
            return loop.run()
        finally:
            host.close()


class Loop:
    """The state of one run of the inline engine."""

    def __init__(self, engine: Inline, host: Host, tally: Tally, until: Until, watch: RunObserver) -> None:
        self.host, self.tally, self.until, self.watch, self.engine = host, tally, until, watch, engine
        self.saving = Due(Schedule(seconds=engine.checkpoint_s), tally)
        self.due = {name: Due(schedule, tally) for name, schedule in host.scheduled.items()}
        self.evaluation: Metrics = {}
        self.logged = time.monotonic()

    def run(self) -> Result:
        """Until steps, minutes or target are reached, or a stop is asked."""
        while not self.tally.reached(self.until):
            if self.watch.stop_asked():
                self.save(last=True)
                return Result("stopped", self.tally.counters(), self.evaluation)
            self.round()
        if not self.tally.hit:
            self.evaluate(list(self.due))
        self.log()
        self.save(last=True)
        return Result("done", self.tally.counters(), self.evaluation)

    def round(self) -> None:
        """One round of all roles, then whatever is due."""
        moved = self.host.round()
        if not moved:
            raise RuntimeError("every role waits for another: a bug in this system's wiring")
        for metrics in moved:
            self.tally.add(metrics)
        self.tally.trained()
        if time.monotonic() - self.logged >= self.engine.log_s:
            self.log()
        self.evaluate([name for name, due in self.due.items() if due()])
        if self.saving():
            self.save()

    def evaluate(self, names: list[str]) -> None:
        """Let scheduled roles step, apart from training time, and judge the target."""
        for name in names:
            metrics = self.host.roles[name].step()
            if metrics is not None:
                self.evaluation = {key: float(value) for key, value in metrics.items()}
                self.tally.judge(self.evaluation["eval/return_mean"], self.until)  # type: ignore[arg-type]
                self.watch.evaluated(self.tally.counters(), self.evaluation)  # type: ignore[arg-type]
            self.tally.evaluated()

    def log(self) -> None:
        """A line of everything since the last."""
        self.watch.log(self.tally.counters(), self.tally.means() | self.host.gauges())
        self.logged = time.monotonic()

    def save(self, last: bool = False) -> None:
        """A checkpoint, its time not counted as training."""
        self.watch.save(self.tally.counters(), self.host.state_dict(), last)
        self.tally.evaluated()
