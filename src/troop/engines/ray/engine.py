"""The Ray engine: one Ray actor per host, on one machine or many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from troop.core.config import bounded
from troop.core.engine import Checkpoint, Counters, Result, RunObserver, Until
from troop.core.program import Program

if TYPE_CHECKING:
    from troop.engines.ray.placement import Placement, ResourceRequest
    from troop.engines.ray.pool import RayPool


@dataclass(frozen=True)
class Ray:
    """Runs each host as a Ray actor, on any machine of a cluster, and restarts hosts that die."""

    address: str = "local"
    """local starts Ray on this machine; auto, HOST:PORT and ray://HOST:PORT join an existing cluster."""
    insecure: bool = False
    """Disable token authentication: any user who can reach the cluster's ports can run code on it."""
    cpus: tuple[str, ...] = ()
    """CPUs of a role, as learner=4; a number alone applies to every host that steps (default 1)."""
    gpus: tuple[str, ...] = ()
    """GPUs of a role, as learner=1."""
    resources: tuple[str, ...] = ()
    """Custom Ray resources of a role, as actor:simulator=1."""
    strategy: Literal["pack", "spread"] = "pack"
    """pack fills one node after the other, spread distributes hosts over all nodes."""
    threads: int = bounded(0, low=0, high=1024)
    """CPU threads of each host; 0 uses its number of CPUs or, with address local, a share of the cores."""
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
    lost_limit_s: float = bounded(20.0, above=0)
    """Seconds without a response after which the node of a host counts as lost; Ray itself takes a minute."""
    connect_limit_s: float = bounded(30.0, above=0)
    """Seconds that the cluster has to respond, and again to reserve the resources of all hosts."""
    mailbox_mb: float = bounded(32.0, above=0)
    """Megabytes in flight from one host to another at which the sender blocks (back-pressure)."""

    def check(self, program: Program) -> None:
        """Raise BadInput for a malformed address or a resource request for a role that does not exist."""
        from troop.engines.pool import host_handles
        from troop.engines.ray.cluster import check_address
        from troop.engines.ray.placement import resource_bundles

        check_address(self.address)
        resource_bundles(host_handles(program), self._resource_requests())

    def _resource_requests(self) -> list[ResourceRequest]:
        from troop.engines.ray.placement import parse_requests

        return [
            *parse_requests(self.cpus, "cpus", "CPU"),
            *parse_requests(self.gpus, "gpus", "GPU"),
            *parse_requests(self.resources, "resources"),
        ]

    def run(
        self,
        program: Program,
        until: Until,
        seed: int,
        observer: RunObserver,
        checkpoint: Checkpoint | None = None,
    ) -> Result:
        """Run all hosts concurrently until done or stopped; evaluate and write a checkpoint at the end."""
        # Imported here, because every command imports this module for its settings.
        from troop.engines.driver import Driver
        from troop.engines.progress import RunProgress
        from troop.engines.ray.cluster import ray_connection
        from troop.engines.ray.placement import Placement, resource_bundles
        from troop.engines.ray.pool import RayPool

        pool = RayPool(program, seed, int(self.mailbox_mb * 2**20), 3 * self.step_limit_s)
        placement = Placement(resource_bundles(pool.hosts, self._resource_requests()), strategy=self.strategy)
        self._set_threads(pool, placement)
        with ray_connection(self.address, self.insecure, self.connect_limit_s):
            placement.reserve(self.connect_limit_s)
            pool.configure(placement, self.lost_limit_s, secure=not self.insecure)
            progress = RunProgress(checkpoint.counters if checkpoint else Counters())
            driver = Driver(self, pool, progress, until, observer)
            try:
                return driver.run(checkpoint)
            finally:
                for name in pool.stop(self.stop_limit_s, driver.killable()):
                    observer.note(f"{name} did not stop within {self.stop_limit_s:.0f} s and was killed")
                placement.release()

    def _set_threads(self, pool: RayPool, placement: Placement) -> None:
        from troop.engines.pool import share_cores

        share_cores(pool.hosts, self.threads)
        for name, host in pool.hosts.items():
            requested = max((node.threads or 0 for node in host.nodes), default=0) or self.threads
            if self.address != "local" and not requested:
                host.threads = max(1, int(placement.bundles[name]["CPU"]))
