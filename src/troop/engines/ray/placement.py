"""Placement: what each host wants of a cluster, and where it gets it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from troop.core.config import suggest
from troop.core.errors import BadInput, SetupProblem
from troop.engines.pool import HostHandle, may_step

LEAST = 0.001  # CPUs of a host that only answers: Ray wants every bundle to hold something


@dataclass(frozen=True)
class ResourceRequest:
    """Resources of one role or, without a role, of every host that steps."""

    role: str
    resource: str  # Ray's name of it
    amount: float


def parse_requests(given: tuple[str, ...], flag: str, resource: str = "") -> list[ResourceRequest]:
    """Read `role=amount`, `amount` or, without a `resource`, `role:resource=amount`."""
    found = []
    for text in given:
        role, equals, number = text.rpartition("=")
        named = resource
        if not resource:
            role, _, named = role.partition(":")
        try:
            amount = float(number)
        except ValueError:
            amount = -1.0
        whole = bool(role) == bool(equals) if resource else bool(role and named)
        if not (whole and 0 <= amount < math.inf):
            form = "role=2 or 2" if resource else "role:resource=2"
            raise BadInput(f"--engine.{flag} is {text!r}; it must look like {form}.")
        found.append(ResourceRequest(role, named, amount))
    return found


def role_of(host: str) -> str:
    """`actor` of `actor/3` and of `actor3`."""
    return host.split("/")[0].rstrip("0123456789") or host


def bundles(hosts: Mapping[str, HostHandle], wanted: list[ResourceRequest]) -> dict[str, dict[str, float]]:
    """Resources of each host; BadInput if a wish names a role that no host has."""
    roles = {role_of(name) for name in hosts} | set(hosts)
    for wish in wanted:
        if wish.role and wish.role not in roles:
            near = suggest(wish.role, roles, 1)
            meant = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(roles))}."
            raise BadInput(f"This program has no role {wish.role!r} to place{meant}")
    found: dict[str, dict[str, float]] = {}
    for name, host in hosts.items():
        steps = may_step(host)
        mine = {"CPU": 1.0 if steps else LEAST}
        # The more a wish says, the later it is heard: first those for all, then roles, then single hosts.
        for chosen in dict.fromkeys(("", role_of(name), name)):
            for wish in wanted:
                if wish.role == chosen and (wish.role or steps):
                    mine[wish.resource] = wish.amount
        mine["CPU"] = max(mine["CPU"], LEAST)
        found[name] = {resource: amount for resource, amount in mine.items() if amount > 0}
    return found


@dataclass
class Placement:
    """A placement group for all hosts; a host whose node is lost goes to a node that is not."""

    bundles: dict[str, dict[str, float]]
    strategy: str
    group: Any = None
    lost: set[str] = field(default_factory=set)  # nodes that do not answer
    moved: int = 0  # hosts that had to go elsewhere

    def reserve(self, seconds: float) -> None:
        """Reserve all at once; SetupProblem if the cluster has no room within this time."""
        import ray
        from ray.util.placement_group import placement_group

        self.group = placement_group(list(self.bundles.values()), strategy=self.strategy.upper())
        if self.group.wait(seconds):
            return
        self.release()
        want, have = _sum(list(self.bundles.values())), ray.cluster_resources()
        free = ray.available_resources()
        short = [name for name in want if want[name] > free.get(name, 0.0)] or list(want)
        text = "; ".join(
            f"{want[k]:.4g} {k} of {have.get(k, 0):.4g} ({free.get(k, 0):.4g} free)" for k in short
        )
        raise SetupProblem(
            f"The Ray cluster has no room for {len(self.bundles)} hosts within {seconds:.0f} s: "
            f"they want {text}. Lower the number of actors or --engine.cpus, or add nodes."
        )

    def options(self, host: str, node: str) -> dict[str, Any]:
        """Options of a host's actor; `node` is where it lived last, if it did."""
        import ray
        from ray.util.scheduling_strategies import (
            NodeAffinitySchedulingStrategy,
            PlacementGroupSchedulingStrategy,
        )

        want = dict(self.bundles[host])
        cpus, gpus = want.pop("CPU", 0.0), want.pop("GPU", 0.0)
        alive = [] if not node else [str(found["NodeID"]) for found in ray.nodes() if found["Alive"]]
        good = [found for found in alive if found not in self.lost]
        if not node or node in good:
            place: Any = PlacementGroupSchedulingStrategy(
                placement_group=self.group,
                placement_group_bundle_index=list(self.bundles).index(host),
            )
            return {"num_cpus": cpus, "num_gpus": gpus, "resources": want, "scheduling_strategy": place}
        # Its bundle is gone with its node, and Ray may take a minute to see that. What is left of the
        # cluster may be full, so the host goes without CPUs of its own rather than nowhere.
        # A byte of memory, because Ray starts what wants nothing anywhere, be it on the node that is lost.
        least = {"num_cpus": 0, "memory": 1}
        if gpus or want or not good:
            return least | {"num_gpus": gpus, "resources": want, "scheduling_strategy": "SPREAD"}
        here = ray.get_runtime_context().get_node_id()
        good.sort(key=lambda found: found != here)
        chosen = NodeAffinitySchedulingStrategy(node_id=good[self.moved % len(good)], soft=True)
        self.moved += 1
        return least | {"scheduling_strategy": chosen}

    def release(self) -> None:
        """Give everything back."""
        from ray.util.placement_group import remove_placement_group

        if self.group is not None:
            remove_placement_group(self.group)
            self.group = None


def _sum(several: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in several:
        for name, amount in one.items():
            total[name] = total.get(name, 0.0) + amount
    return total
