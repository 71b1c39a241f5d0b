"""Placement: the resources that hosts request, and the nodes on which Ray places their actors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from troop.core.config import suggest
from troop.core.errors import BadInput, SetupProblem
from troop.engines.pool import HostHandle, may_step

MIN_CPUS = 0.001  # CPUs of a host that only serves calls: Ray rejects empty bundles


@dataclass(frozen=True)
class ResourceRequest:
    """An amount of a resource for each host of a role; an empty role stands for all hosts that step."""

    role: str
    resource: str  # Ray's name of the resource
    amount: float


def parse_requests(texts: tuple[str, ...], flag: str, resource: str = "") -> list[ResourceRequest]:
    """Parse `role=amount` or `amount` or, without a `resource`, `role:resource=amount`; else BadInput."""
    requests = []
    for text in texts:
        role, equals, number = text.rpartition("=")
        name = resource
        if not resource:
            role, _, name = role.partition(":")
        try:
            amount = float(number)
        except ValueError:
            amount = -1.0
        complete = bool(role) == bool(equals) if resource else bool(role and name)
        if not (complete and 0 <= amount < math.inf):
            form = "role=2 or 2" if resource else "role:resource=2"
            raise BadInput(f"--engine.{flag} is {text!r}; it must look like {form}.")
        requests.append(ResourceRequest(role, name, amount))
    return requests


def role_of(host: str) -> str:
    """Return the role in the name of a host: `actor` for both `actor/3` and `actor3`."""
    return host.split("/")[0].rstrip("0123456789") or host


def resource_bundles(
    hosts: Mapping[str, HostHandle], requests: list[ResourceRequest]
) -> dict[str, dict[str, float]]:
    """Return the resources of each host by name; BadInput if a request names a role that no host has.

    A request for a role overrides one for all hosts, and a request for a single host overrides both.
    """
    roles = {role_of(name) for name in hosts} | set(hosts)
    for request in requests:
        if request.role and request.role not in roles:
            near = suggest(request.role, roles, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; its roles are {', '.join(sorted(roles))}."
            raise BadInput(f"The program has no role {request.role!r} to reserve resources for{hint}")
    bundles: dict[str, dict[str, float]] = {}
    for name, host in hosts.items():
        steps = may_step(host)
        bundle = {"CPU": 1.0 if steps else MIN_CPUS}
        for target in dict.fromkeys(("", role_of(name), name)):
            for request in requests:
                if request.role == target and (request.role or steps):
                    bundle[request.resource] = request.amount
        bundle["CPU"] = max(bundle["CPU"], MIN_CPUS)
        bundles[name] = {resource: amount for resource, amount in bundle.items() if amount > 0}
    return bundles


@dataclass
class Placement:
    """One Ray placement group for all hosts; a host whose node is lost is placed on a living node."""

    bundles: dict[str, dict[str, float]]  # host -> resource -> amount
    strategy: str
    group: Any = None  # Ray placement group
    lost_nodes: set[str] = field(default_factory=set)  # ids of the nodes that do not respond
    relocations: int = 0  # hosts that moved to another node

    def reserve(self, seconds: float) -> None:
        """Reserve the resources of all hosts; SetupProblem if they are not free within `seconds`."""
        import ray
        from ray.util.placement_group import placement_group

        self.group = placement_group(list(self.bundles.values()), strategy=self.strategy.upper())
        if self.group.wait(seconds):
            return
        self.release()
        requested, total = _sum(list(self.bundles.values())), ray.cluster_resources()
        free = ray.available_resources()
        short = [name for name in requested if requested[name] > free.get(name, 0.0)] or list(requested)
        text = "; ".join(
            f"{requested[name]:.4g} {name} of {total.get(name, 0):.4g} ({free.get(name, 0):.4g} free)"
            for name in short
        )
        raise SetupProblem(
            f"The Ray cluster could not place {len(self.bundles)} hosts within {seconds:.0f} s: "
            f"they request {text}. Lower the number of actors or --engine.cpus, or add nodes."
        )

    def options(self, host: str, last_node: str) -> dict[str, Any]:
        """Return the options of a host's actor; `last_node` is the node of its previous actor, or empty."""
        import ray
        from ray.util.scheduling_strategies import (
            NodeAffinitySchedulingStrategy,
            PlacementGroupSchedulingStrategy,
        )

        resources = dict(self.bundles[host])
        cpus, gpus = resources.pop("CPU", 0.0), resources.pop("GPU", 0.0)
        alive = [] if not last_node else [str(node["NodeID"]) for node in ray.nodes() if node["Alive"]]
        usable = [node for node in alive if node not in self.lost_nodes]
        if not last_node or last_node in usable:
            bundle: Any = PlacementGroupSchedulingStrategy(
                placement_group=self.group,
                placement_group_bundle_index=list(self.bundles).index(host),
            )
            return {
                "num_cpus": cpus,
                "num_gpus": gpus,
                "resources": resources,
                "scheduling_strategy": bundle,
            }
        # The host's bundle is lost with its node, which Ray may notice only after a minute. The remaining
        # nodes may have no free CPUs, so the actor requests none. It requests one byte of memory because Ray
        # places an actor without any requests on any node, even on the lost one.
        minimal = {"num_cpus": 0, "memory": 1}
        if gpus or resources or not usable:
            return minimal | {"num_gpus": gpus, "resources": resources, "scheduling_strategy": "SPREAD"}
        this_node = ray.get_runtime_context().get_node_id()
        usable.sort(key=lambda node: node != this_node)
        target = usable[self.relocations % len(usable)]
        self.relocations += 1
        return minimal | {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=target, soft=True)}

    def release(self) -> None:
        """Return all reserved resources to the cluster."""
        from ray.util.placement_group import remove_placement_group

        if self.group is not None:
            remove_placement_group(self.group)
            self.group = None


def _sum(bundles: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    return total
