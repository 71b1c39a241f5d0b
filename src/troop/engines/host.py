"""Host: builds some nodes of a program and runs them in one thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from troop.core.errors import BadInput
from troop.core.group import Group
from troop.core.program import GroupRef, Program, Schedule, construct, derive_seed, join_alone
from troop.core.role import (
    Checkpointable,
    Closeable,
    HasFiles,
    HasGauges,
    HasNotes,
    Metrics,
    NamesModule,
    PublishesWeights,
    Role,
)
from troop.engines.stall_monitor import StepInterrupted


class LocalGroups(Protocol):
    """Groups whose members are all on one host."""

    def step_all(self, name: str, steps: list[Callable[[], Metrics | None]], /) -> list[Metrics | None]:
        """Step the members of the group `name` together."""
        ...

    def close(self) -> None:
        """End all groups."""
        ...


OnBuild = Callable[[str], None]
"""Called with the name of each node right before it is built."""


def _torch() -> ModuleType | None:
    """Return torch if a role has imported it: a host without torch starts ten times faster."""
    return sys.modules.get("torch")


def _seed(seed: int) -> bool:
    if (torch := _torch()) is not None:
        torch.manual_seed(seed)
    return torch is not None


class Host:
    """Builds its nodes in order and steps them. Engines differ in how a host reaches nodes of other hosts."""

    def __init__(
        self,
        program: Program,
        seed: int,
        resolve_remote: Callable[[str], Any] | None = None,
        on_build: OnBuild = lambda name: None,
        join: Callable[[GroupRef], Group] = join_alone,
        groups: LocalGroups | None = None,
    ) -> None:
        self.roles: dict[str, Any] = {}

        def resolve(name: str) -> Any:  # noqa: ANN401
            if name in self.roles or resolve_remote is None:
                return self.roles[name]
            return resolve_remote(name)

        seeded = _seed(derive_seed(seed, program.name))
        for name, node in program.nodes.items():
            on_build(name)
            self.roles[name] = construct(node.build, resolve, join)
        if not seeded:  # a role may have been the first to import torch
            _seed(derive_seed(seed, program.name))
        stepping = {name: node for name, node in program.nodes.items() if isinstance(self.roles[name], Role)}
        self.active = [name for name, node in stepping.items() if node.schedule is None]
        self.groups: dict[str, list[str]] = {}  # active nodes that this host steps together, by group
        if groups is not None:
            for name in self.active:
                ref = program.nodes[name].group_ref
                if ref is not None and ref.size > 1:
                    self.groups.setdefault(ref.group, []).append(name)
        self._local_groups = groups
        self.scheduled: dict[str, Schedule] = {
            name: node.schedule for name, node in stepping.items() if node.schedule is not None
        }

    def step_all(self) -> list[Metrics]:
        """Step every active role once; return the metrics of those that had something to do."""
        together = {name for names in self.groups.values() for name in names}
        results = [self.roles[name].step() for name in self.active if name not in together]
        for group, names in self.groups.items():
            assert self._local_groups is not None
            results += self._local_groups.step_all(group, [self.roles[name].step for name in names])
        return [metrics for metrics in results if metrics is not None]

    def gauges(self) -> dict[str, float]:
        """Return the gauges of all roles."""
        readings: Metrics = {}
        for role in self.roles.values():
            if isinstance(role, HasGauges):
                readings |= role.gauges()
        return {name: x if isinstance(x, int | float) else float(x) for name, x in readings.items()}

    def notes(self) -> list[str]:
        """Return and clear the notes of all roles."""
        notes: list[str] = []
        for role in self.roles.values():
            if isinstance(role, HasNotes):
                notes += role.notes
                role.notes.clear()
        return notes

    def files(self) -> dict[str, str]:
        """Return and clear the files of all roles."""
        files: dict[str, str] = {}
        for role in self.roles.values():
            if isinstance(role, HasFiles):
                files |= role.files
                role.files.clear()
        return files

    def close(self) -> list[str]:
        """Close all roles that hold resources; return one message for each that cannot be closed."""
        problems = []
        if self._local_groups is not None:
            self._local_groups.close()
        for name, role in self.roles.items():
            try:
                if isinstance(role, Closeable):
                    role.close()
            except (Exception, StepInterrupted) as error:
                reason = getattr(error, "fault", None) or f"{type(error).__name__}: {error}"
                problems.append(f"{name} could not be closed: {reason}")
        return problems

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all roles, keyed `role.part`, and `policy` and `rng` of this host."""
        state: dict[str, Any] = {}
        for name, role in self.roles.items():
            if isinstance(role, Checkpointable):
                state |= {f"{name}.{key}": part for key, part in role.state_dict().items()}
        return state | {"policy": self.policy(), "rng": _rng_state()}

    def policy(self) -> dict[str, Any]:
        """Return the newest weights of the policy, from the first role that has them; empty if none has."""
        for role in self.roles.values():
            if isinstance(role, NamesModule) and role.module_name != "policy":
                continue
            if isinstance(role, PublishesWeights) and (newest := role.latest(-1)) is not None:
                return dict(newest[1])
        return {}

    def load_state_dict(self, state: dict[str, Any], only: Callable[[Any], bool] = lambda role: True) -> None:
        """Restore the roles for which `only(role)` holds, then the random number generators.

        The generators come last because rebuilding a role may draw random numbers. Raises BadInput if the
        state does not fit a role.
        """
        for name, role in self.roles.items():
            if isinstance(role, Checkpointable) and only(role):
                prefix = f"{name}."
                parts = {key[len(prefix) :]: part for key, part in state.items() if key.startswith(prefix)}
                try:
                    role.load_state_dict(parts)
                except Exception as error:  # the file may hold anything
                    reason = str(error).strip().splitlines() or [type(error).__name__]
                    raise BadInput(
                        f"The checkpoint of {name!r} does not fit config.json: {reason[-1].strip()}"
                    ) from error
        _load_rng_state(state.get("rng", {}))


def _rng_state() -> dict[str, Any]:
    torch = _torch()
    if torch is None:
        return {}
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _load_rng_state(state: dict[str, Any]) -> None:
    torch = _torch()
    if torch is None or "cpu" not in state:  # the checkpoint is from an engine with other hosts
        return
    try:
        torch.set_rng_state(state["cpu"].cpu())
        if "cuda" in state and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all([x.cpu() for x in state["cuda"]])
    except (AttributeError, TypeError, RuntimeError) as error:
        raise BadInput(f"The checkpoint has damaged random number generators: {error}.") from error
