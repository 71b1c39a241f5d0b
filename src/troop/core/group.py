"""Group: copies of a role that meet in collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # a host whose roles do not use torch starts ten times faster without importing it
    from torch import Tensor


class Group(Protocol):
    """A group, as one of its members sees it.

    A collective returns when every member has called it. All members call the same collectives in the same
    order; a member that leaves makes the others fail, and the engine restarts the group as one.
    """

    rank: int
    size: int

    @property
    def pause_requested(self) -> bool:
        """Whether the engine waits for the end of the round to pause the group."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """Collective. Replace x by its sum over all members, equal to the last bit on each; return it."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """Collective. Return the x of all members [size, ...]; it has one shape on all of them."""
        ...

    def broadcast_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Collective. Return the state of rank 0: nested dicts of tensors, numbers, strings and lists."""
        ...

    def end_round(self) -> None:
        """Collective. Mark a point at which the engine may pause the group.

        If the engine has requested a pause from any member, all of them pause after their current step.
        """
        ...

    def add_finished(self, number: int) -> None:
        """Count this member as finished with rollout `number`."""
        ...

    def count_finished(self, number: int) -> int:
        """Return how many members have finished rollout `number`."""
        ...


class SoloGroup:
    """A group of one member, for which every collective is trivial."""

    rank, size, pause_requested = 0, 1, False

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Return x [1, ...]."""
        return x.unsqueeze(0)

    def broadcast_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state."""
        return state

    def end_round(self) -> None:
        """Do nothing: the engine may pause after every step."""

    def add_finished(self, number: int) -> None:
        """Do nothing: no other member waits."""

    def count_finished(self, number: int) -> int:
        """Return 0: no other member can be finished first."""
        return 0
