"""Ray: one Ray actor per host, on one machine or many; supervised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from troop.core.config import bounded
from troop.core.engine import Checkpoint, Counters, Result, RunObserver, Until
from troop.core.program import Program
from troop.engines.driver import Driver
from troop.engines.pool import host_handles, share_cores
from troop.engines.progress import RunProgress
from troop.engines.ray.cluster import check_address, connected
from troop.engines.ray.placement import Placement, ResourceRequest, bundles, parse_requests
from troop.engines.ray.pool import RayPool


@dataclass(frozen=True)
class Ray:
    """Each host is a Ray actor: roles run on whatever machines the cluster has, and come back if they die."""

    address: str = "local"
    """local starts Ray on this machine; auto, HOST:PORT and ray://HOST:PORT join a cluster that runs."""
    insecure: bool = False
    """Do without token authentication: whoever reaches the cluster's ports can run code on it."""
    cpus: tuple[str, ...] = ()
    """CPUs of a role, as learner=4; a number alone is for every host that steps. One by default."""
    gpus: tuple[str, ...] = ()
    """GPUs of a role, as learner=1."""
    resources: tuple[str, ...] = ()
    """Ray's custom resources of a role, as actor:simulator=1."""
    strategy: Literal["pack", "spread"] = "pack"
    """pack fills one node after the other, spread deals hosts out to all."""
    threads: int = bounded(0, low=0, high=1024)
    """CPU threads of each host; 0 for its CPUs or, on a local Ray, a share of the cores."""
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
    lost_limit_s: float = bounded(20.0, above=0)
    """Seconds without a word after which a host's node is taken for lost; Ray itself takes a minute."""
    connect_limit_s: float = bounded(30.0, above=0)
    """Seconds in which the cluster must answer, and again have room for all hosts."""
    mailbox_mb: float = bounded(32.0, above=0)
    """Megabytes that one host may have sent to another without their being taken; then it waits."""

    def check(self, program: Program) -> None:
        """BadInput if there cannot be such an address, or a wish is for a role that does not exist."""
        check_address(self.address)
        bundles(host_handles(program), self._wishes())

    def _wishes(self) -> list[ResourceRequest]:
        wanted = parse_requests(self.cpus, "cpus", "CPU") + parse_requests(self.gpus, "gpus", "GPU")
        return wanted + parse_requests(self.resources, "resources")

    def run(
        self,
        program: Program,
        until: Until,
        seed: int,
        observer: RunObserver,
        checkpoint: Checkpoint | None = None,
    ) -> Result:
        """All hosts at once until done; a checkpoint and an evaluation at the end."""
        pool = RayPool(program, seed, int(self.mailbox_mb * 2**20), 3 * self.step_limit_s)
        places = Placement(bundles(pool.hosts, self._wishes()), strategy=self.strategy)
        self._share_threads(pool, places)
        with connected(self.address, self.insecure, self.connect_limit_s):
            places.reserve(self.connect_limit_s)
            pool.configure(places, self.lost_limit_s, secure=not self.insecure)
            driver = Driver(
                self, pool, RunProgress(checkpoint.counters if checkpoint else Counters()), until, observer
            )
            try:
                return driver.run(checkpoint)
            finally:
                for name in pool.stop(
                    self.stop_limit_s, [driver.host_of[name] for name in driver.evaluating]
                ):
                    observer.note(f"{name} did not end within {self.stop_limit_s:.0f} s and was killed")
                places.release()

    def _share_threads(self, pool: RayPool, places: Placement) -> None:
        share_cores(pool.hosts, self.threads)
        for name, host in pool.hosts.items():
            asked = max((node.threads or 0 for node in host.nodes), default=0) or self.threads
            if self.address != "local" and not asked:
                host.threads = max(1, int(places.bundles[name]["CPU"]))
