"""C5 Role: a plain class whose `step()` does one bounded piece of work, or returns None if there was none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # a host whose roles do without torch starts in a tenth of the time
    from torch import Tensor

Metrics = dict[str, "float | int | Tensor"]
"""Names to numbers. `count/*` are summed over roles and time, all others are averaged until logged.
Tensors stay tensors until a line is written, so that no update waits for a read."""


class Role(Protocol):
    """What an engine loops over."""

    def step(self) -> Metrics | None:
        """One bounded piece of work; None if there was nothing to do."""
        ...


class Checkpointable(Protocol):
    """A role with something to lose.

    An engine that rebuilds a role after its death lets it take back the newest checkpoint, unless the class
    says `restart_fresh = True`: an actor then starts new episodes instead of living old ones again. After
    that it calls `cut()`, if there is one: peers went on meanwhile, so what comes next is no continuation.
    """

    def state_dict(self) -> dict[str, Any]:
        """Nested dicts of tensors, numbers, strings and lists."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        ...
