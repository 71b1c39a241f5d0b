"""Processes: one process per host, on one machine; supervised."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from troop.core.config import bounded
from troop.core.engine import Checkpoint, Counters, Result, RunObserver, Until
from troop.core.errors import SetupProblem
from troop.core.program import Program
from troop.engines.driver import Driver
from troop.engines.pool import share_cores
from troop.engines.processes.pool import ProcessPool
from troop.engines.progress import RunProgress
from troop.engines.runtime import check_capacity


@dataclass(frozen=True)
class Processes:
    """Each host is a process of its own: roles run side by side, and one that dies is brought back."""

    threads: int = bounded(0, low=0, high=1024)
    """CPU threads of each host; 0 shares the cores among the hosts that step."""
    log_s: float = bounded(1.0, above=0)
    """Seconds between lines of metrics."""
    checkpoint_s: float = bounded(120.0, above=0)
    """Training seconds between checkpoints; there is always one at the end."""
    restarts: int = bounded(5, low=0, high=10_000)
    """How often one host may die within ten minutes before the run ends."""
    step_limit_s: float = bounded(300.0, above=0)
    """Seconds after which a role that does not come back from a step is replaced."""
    start_limit_s: float = bounded(300.0, above=0)
    """Seconds a host may take to build its roles."""
    stop_limit_s: float = bounded(20.0, above=0)
    """Seconds in which all hosts finish their step when the run ends, and again to close their roles."""
    mailbox_mb: float = bounded(32.0, above=0)
    """Megabytes that one host may have sent to another without their being taken; then it waits."""
    start: Literal["spawn", "forkserver"] = "forkserver"
    """forkserver imports torch once for all hosts, spawn once for each."""

    def check(self, program: Program) -> None:
        """SetupProblem if this machine has no room for a process per host."""
        if sys.platform != "linux":
            raise SetupProblem("The processes engine needs Linux; use --engine inline here.")
        check_capacity(len(program.hosts()))

    def run(
        self,
        program: Program,
        until: Until,
        seed: int,
        observer: RunObserver,
        checkpoint: Checkpoint | None = None,
    ) -> Result:
        """All hosts at once until done; a checkpoint and an evaluation at the end."""
        self.check(program)
        pool = ProcessPool(program, seed, self.start, int(self.mailbox_mb * 2**20), 3 * self.step_limit_s)
        share_cores(pool.hosts, self.threads)
        driver = Driver(
            self, pool, RunProgress(checkpoint.counters if checkpoint else Counters()), until, observer
        )
        try:
            return driver.run(checkpoint)
        finally:
            for name in pool.stop(self.stop_limit_s, [driver.host_of[name] for name in driver.evaluating]):
                observer.note(f"{name} did not end within {self.stop_limit_s:.0f} s and was killed")
