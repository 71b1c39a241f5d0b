"""Host: some nodes in one thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from troop.core.errors import BadInput
from troop.core.program import Program, Schedule, construct, derive_seed
from troop.core.role import Metrics

OnBuild = Callable[[str], None]
"""Is told which node is about to be built, so that a failure has a name."""


def _ignore_name(name: str) -> None:
    """Nobody asked."""


def _torch() -> ModuleType | None:
    """Torch, if any role uses it: a host that does without starts in a tenth of the time."""
    return sys.modules.get("torch")


def _seed(seed: int) -> bool:
    if (torch := _torch()) is not None:
        torch.manual_seed(seed)
    return torch is not None


class Host:
    """Builds its nodes in order and lets them step; every engine is hosts plus a way to reach the others."""

    def __init__(
        self,
        program: Program,
        seed: int,
        resolve_remote: Callable[[str], Any] | None = None,
        on_build: OnBuild = _ignore_name,
    ) -> None:
        self.roles: dict[str, Any] = {}

        def find(name: str) -> Any:  # noqa: ANN401
            return (
                resolve_remote(name)
                if resolve_remote is not None and name not in self.roles
                else self.roles[name]
            )

        seeded = _seed(derive_seed(seed, program.name))
        for name, node in program.nodes.items():
            on_build(name)
            self.roles[name] = construct(node.build, find)
        if not seeded:  # a role may have been the first to import torch
            _seed(derive_seed(seed, program.name))
        stepping = {name: node for name, node in program.nodes.items() if hasattr(self.roles[name], "step")}
        self.active = [name for name, node in stepping.items() if node.schedule is None]
        self.scheduled: dict[str, Schedule] = {
            name: node.schedule for name, node in stepping.items() if node.schedule is not None
        }

    def step_all(self) -> list[Metrics]:
        """One step of every active role; the metrics of those that had something to do."""
        moved = [self.roles[name].step() for name in self.active]
        return [metrics for metrics in moved if metrics is not None]

    def gauges(self) -> dict[str, float]:
        """Readings that roles offer on the side."""
        read: dict[str, float] = {}
        for role in self.roles.values():
            if hasattr(role, "gauges"):
                read |= role.gauges()
        return read

    def notes(self) -> list[str]:
        """What roles had to say since they were built, once."""
        said: list[str] = []
        for role in self.roles.values():
            said += getattr(role, "notes", [])
            if hasattr(role, "notes"):
                role.notes.clear()
        return said

    def close(self) -> None:
        """Close what can be closed."""
        for role in self.roles.values():
            if hasattr(role, "close"):
                role.close()

    def state_dict(self) -> dict[str, Any]:
        """Parts named `role.part`, the policy by itself, and the random numbers."""
        parts: dict[str, Any] = {}
        for name, role in self.roles.items():
            if hasattr(role, "state_dict"):
                parts |= {f"{name}.{key}": part for key, part in role.state_dict().items()}
        return parts | {"policy": self.policy(), "rng": _random_state()}

    def policy(self) -> dict[str, Any]:
        """The newest policy, from the first role that has one."""
        for role in self.roles.values():
            if getattr(role, "of", "policy") != "policy":
                continue  # what it has are weights of another net
            if hasattr(role, "latest") and (newest := role.latest(-1)) is not None:
                return dict(newest[1])
        return {}

    def load_state_dict(self, state: dict[str, Any], only: Callable[[Any], bool] = lambda role: True) -> None:
        """Take back what `state_dict` gave; random numbers last, as rebuilding may have drawn some."""
        for name, role in self.roles.items():
            if hasattr(role, "load_state_dict") and only(role):
                prefix = f"{name}."
                parts = {key[len(prefix) :]: part for key, part in state.items() if key.startswith(prefix)}
                try:
                    role.load_state_dict(parts)
                except (KeyError, ValueError, RuntimeError) as error:
                    reason = str(error).strip().splitlines() or [type(error).__name__]
                    raise BadInput(
                        f"The checkpoint of {name!r} does not fit config.json: {reason[-1].strip()}"
                    ) from error
        _restore_random_state(state.get("rng", {}))


def _random_state() -> dict[str, Any]:
    torch = _torch()
    if torch is None:
        return {}
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _restore_random_state(state: dict[str, Any]) -> None:
    torch = _torch()
    if torch is None or "cpu" not in state:  # of an engine with another number of hosts
        return
    torch.set_rng_state(state["cpu"].cpu())
    if "cuda" in state and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([x.cpu() for x in state["cuda"]])
