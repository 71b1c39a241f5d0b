"""Ray: one Ray actor per host, on one machine or many; supervised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from troop.core.config import bounded
from troop.core.engine import Checkpoint, Counters, Result, RunObserver, Until
from troop.core.program import Program
from troop.engines.driver import Loop, share_cores
from troop.engines.metrics import Tally
from troop.engines.processes.pool import members
from troop.engines.ray.cluster import check_address, connected
from troop.engines.ray.placement import Places, ResourceRequest, bundles, wishes
from troop.engines.ray.pool import RayCrew


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
        bundles(members(program), self._wishes())

    def _wishes(self) -> list[ResourceRequest]:
        wanted = wishes(self.cpus, "cpus", "CPU") + wishes(self.gpus, "gpus", "GPU")
        return wanted + wishes(self.resources, "resources")

    def run(
        self, program: Program, until: Until, seed: int, watch: RunObserver, saved: Checkpoint | None = None
    ) -> Result:
        """All hosts at once until done; a checkpoint and an evaluation at the end."""
        crew = RayCrew(program, seed, int(self.mailbox_mb * 2**20), 3 * self.step_limit_s)
        places = Places(bundles(crew.members, self._wishes()), strategy=self.strategy)
        self._share_threads(crew, places)
        with connected(self.address, self.insecure, self.connect_limit_s):
            places.reserve(self.connect_limit_s)
            crew.settle(places, self.lost_limit_s, secure=not self.insecure)
            loop = Loop(self, crew, Tally(saved.counters if saved else Counters()), until, watch)
            try:
                return loop.run(saved)
            finally:
                for name in crew.end(self.stop_limit_s, [loop.host[name] for name in loop.evaluating]):
                    watch.note(f"{name} did not end within {self.stop_limit_s:.0f} s and was killed")
                places.release()

    def _share_threads(self, crew: RayCrew, places: Places) -> None:
        share_cores(crew.members, self.threads)
        for name, member in crew.members.items():
            asked = max((node.threads or 0 for node in member.nodes), default=0) or self.threads
            if self.address != "local" and not asked:
                member.threads = max(1, int(places.bundles[name]["CPU"]))
