"""InlineGroup: members of a group on the inline engine take turns, one running at a time."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from troop.core.group import Group, SoloGroup
from troop.core.program import Seat
from troop.core.role import Metrics

JOIN_S = 0.1  # how long the main thread waits at a time, so that signals are handled


class TurnStopped(BaseException):
    """Raised in a member that waits when another one has failed."""


class InlineGroup:
    """Runs one step of each member. A member runs until its step ends or until it waits for the others.

    Every member has a thread, but only one of them runs at any time, in an order that depends on nothing but
    the program. A member that has ended its step steps again if others wait for it in a collective.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._turn = -1  # rank of the member that runs
        self._idle: set[int] = set()  # members between two steps
        self._stepped: set[int] = set()
        self._values: dict[int, Any] = {}  # what waiting members have brought to the current collective
        self._results: dict[int, list[Any]] = {}  # of members that can continue
        self._error: BaseException | None = None

    def step_all(self, steps: list[Callable[[], Metrics | None]]) -> list[Metrics | None]:
        """Call each function once, or more often if others wait for it; return all results."""
        self._idle, self._error = set(range(self.size)), None
        self._stepped.clear()
        results: list[Metrics | None] = []
        self._turn = 0
        threads = [
            threading.Thread(target=self._run, args=(rank, step, results), daemon=True)
            for rank, step in enumerate(steps)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(JOIN_S)
        if self._error is not None:
            raise self._error
        return results

    def _run(self, rank: int, step: Callable[[], Metrics | None], results: list[Metrics | None]) -> None:
        try:
            while self._wait_turn(rank):
                self._idle.discard(rank)
                results.append(step())
                self._idle.add(rank)
                self._stepped.add(rank)
                self._pass_turn(rank)
        except TurnStopped:
            pass
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def exchange(self, rank: int, value: Any) -> list[Any]:  # noqa: ANN401
        """Collective. Return the values of all members, by rank."""
        self._values[rank] = value
        if len(self._values) == self.size:
            everything = [self._values[member] for member in range(self.size)]
            self._results = {member: everything for member in range(self.size)}
            self._values = {}
        self._pass_turn(rank)
        self._wait_turn(rank)
        return self._results.pop(rank)

    def _wait_turn(self, rank: int) -> bool:
        """Wait for the turn; return False if the round is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._turn in (rank, self.size) or self._error is not None)
        if self._error is not None:
            raise TurnStopped
        return self._turn == rank

    def _pass_turn(self, rank: int) -> None:
        """Let the next member run: one that can continue, else one that has not stepped or is waited for."""
        order = [(rank + 1 + i) % self.size for i in range(self.size)]
        continuing = [member for member in order if member in self._results]
        needed = [member for member in order if member in self._idle]
        fresh = [member for member in needed if member not in self._stepped]
        candidates = continuing or fresh or (needed if self._values else [])
        with self._changed:
            self._turn = candidates[0] if candidates else self.size
            self._changed.notify_all()


class InlineMember:
    """A member of an InlineGroup."""

    def __init__(self, group: InlineGroup, rank: int) -> None:
        self.group, self.rank, self.size = group, rank, group.size

    def all_reduce(self, x: Tensor) -> Tensor:
        """Replace x by the sum, added in the order of ranks."""
        parts = self.group.exchange(self.rank, x.clone())
        return x.copy_(torch.stack(parts).sum(0))

    def all_gather(self, x: Tensor) -> Tensor:
        """Return the x of all members, by rank."""
        return torch.stack(self.group.exchange(self.rank, x.clone()))

    def broadcast_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of rank 0."""
        sent = copy.deepcopy(state) if self.rank == 0 else None  # rank 0 continues before the others load it
        received: dict[str, Any] = self.group.exchange(self.rank, sent)[0]
        return received

    def end_round(self) -> None:
        """Do nothing: a step of the engine ends when no member waits for another."""

    def add_finished(self, number: int) -> None:
        """Do nothing."""

    def count_finished(self, number: int) -> int:
        """Return 0: members that take turns are not late."""
        return 0


class InlineGroups:
    """The groups of a program on the inline engine."""

    def __init__(self) -> None:
        self._groups: dict[str, InlineGroup] = {}
        self._members: dict[Seat, InlineMember] = {}

    def join(self, seat: Seat) -> Group:
        """Return the member at this place."""
        if seat.size == 1:
            return SoloGroup()
        group = self._groups.setdefault(seat.group, InlineGroup(seat.size))
        return self._members.setdefault(seat, InlineMember(group, seat.rank))

    def step_all(self, name: str, steps: list[Callable[[], Metrics | None]]) -> list[Metrics | None]:
        """Step the members of a group."""
        return self._groups[name].step_all(steps)
