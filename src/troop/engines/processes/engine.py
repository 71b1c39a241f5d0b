"""Processes: the engine that runs one process per host on one machine and restarts those that die."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from troop.core.config import bounded
from troop.core.engine import Checkpoint, Counters, Result, RunObserver, Until
from troop.core.errors import SetupProblem
from troop.core.program import Program


@dataclass(frozen=True)
class Processes:
    """Runs each host in a process of its own, in parallel; a process that dies is restarted."""

    threads: int = bounded(0, low=0, high=1024)
    """CPU threads of each host; 0 divides the cores among the hosts that step."""
    log_s: float = bounded(1.0, above=0)
    """Seconds between lines of metrics."""
    checkpoint_s: float = bounded(120.0, above=0)
    """Training seconds between checkpoints; the end of a run always writes one."""
    restarts: int = bounded(5, low=0, high=10_000)
    """Maximum number of restarts of one host within ten minutes; the run fails after that."""
    step_limit_s: float = bounded(300.0, above=0)
    """Seconds after which a host is replaced if a step of a role does not return."""
    start_limit_s: float = bounded(300.0, above=0)
    """Seconds that a host may take to build its roles."""
    stop_limit_s: float = bounded(20.0, above=0)
    """Seconds that all hosts have to finish their step when the run ends, and again to close their roles."""
    mailbox_mb: float = bounded(32.0, above=0)
    """Megabytes in flight from one host to another at which the sender blocks (back-pressure)."""
    start: Literal["spawn", "forkserver"] = "forkserver"
    """How processes start: forkserver imports torch once for all hosts, spawn once for each."""

    def check(self, program: Program) -> None:
        """Raise SetupProblem if this machine cannot run one process per host.

        Raise BadInput if members of a group share a CUDA device.
        """
        if sys.platform != "linux":
            raise SetupProblem("The processes engine needs Linux; use --engine inline here.")
        from troop.engines.distributed_group import check_devices
        from troop.engines.processes.capacity import check_capacity

        check_devices(program)
        check_capacity(program, self.start, self.start_limit_s)

    def run(
        self,
        program: Program,
        until: Until,
        seed: int,
        observer: RunObserver,
        checkpoint: Checkpoint | None = None,
    ) -> Result:
        """Run all hosts in parallel until done; end with an evaluation and a checkpoint."""
        # Imported here, because every command imports this module for its settings.
        from troop.engines.driver import Driver
        from troop.engines.pool import share_cores
        from troop.engines.processes.pool import ProcessPool
        from troop.engines.progress import RunProgress

        self.check(program)
        pool = ProcessPool(program, seed, self.start, int(self.mailbox_mb * 2**20), 3 * self.step_limit_s)
        share_cores(pool.hosts, self.threads)
        progress = RunProgress(checkpoint.counters if checkpoint else Counters())
        driver = Driver(self, pool, progress, until, observer)
        try:
            return driver.run(checkpoint)
        finally:
            for name in pool.stop(self.stop_limit_s, driver.killable()):
                observer.note(f"{name} did not stop within {self.stop_limit_s:.0f} s and was killed")
