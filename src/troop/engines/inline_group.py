"""InlineGroup: members of a group on the inline engine take turns, one running at a time."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from troop.core.env_calls import EngineInterrupt, acting_for
from troop.core.group import Group, SoloGroup
from troop.core.program import GroupRef
from troop.core.role import Metrics

JOIN_S = 0.1  # how long the main thread waits at a time, so that signals are handled


class GroupShutdown(EngineInterrupt):
    """Raised in a member that waits when another one has failed."""


class InlineGroup:
    """Steps its members. A member runs until its step ends or until it waits for the others in a collective.

    Every member has a thread, but only one of them runs at any time, in an order that depends on nothing but
    the program. A member that others wait for steps again; if it has nothing to do yet, those that wait are
    continued in a later call of `step_all`.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._threads: dict[int, threading.Thread] = {}
        self._turn = size  # rank of the member that runs; `size`: no member runs
        self._idle: set[int] = set()  # members between two steps
        self._stepped: set[int] = set()  # members that have made a step in this call
        self._without_work: set[int] = set()  # members whose step had nothing to do in this call
        self._values: dict[int, Any] = {}  # what waiting members have brought to the current collective
        self._gathered: dict[int, list[Any]] = {}  # all values, for members that can continue
        self._metrics: list[Metrics | None] = []
        self._error: BaseException | None = None

    def step_all(self, steps: list[Callable[[], Metrics | None]]) -> list[Metrics | None]:
        """Step each member that does not wait, at least once; return the results of all steps that ended."""
        self._idle = set(range(self.size)) - set(self._values)
        self._metrics, self._stepped, self._without_work = [], set(), set()
        caller = threading.get_ident()
        for rank in self._idle:
            self._threads[rank] = threading.Thread(
                target=self._run, args=(rank, steps[rank], caller), daemon=True
            )
        self._turn = min(self._idle)
        for rank in sorted(self._idle):
            self._threads[rank].start()
        with self._changed:
            while self._turn != self.size and self._error is None:
                self._changed.wait(JOIN_S)
        if self._error is not None:
            raise self._error
        for rank in set(range(self.size)) - set(self._values):
            self._threads[rank].join()
        return self._metrics

    def close(self) -> None:
        """End the threads of members that wait."""
        with self._changed:
            self._error = self._error or GroupShutdown()
            self._changed.notify_all()

    def _run(self, rank: int, step: Callable[[], Metrics | None], caller: int) -> None:
        try:
            while self._wait_turn(rank, self.size) == rank:
                self._idle.discard(rank)
                with acting_for(caller):  # so that the engine sees an env that does not return
                    metrics = step()
                self._metrics.append(metrics)
                if metrics is None:
                    self._without_work.add(rank)
                self._idle.add(rank)
                self._stepped.add(rank)
                self._pass_turn(rank)
        except GroupShutdown:
            pass
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def exchange(self, rank: int, value: Any) -> list[Any]:  # noqa: ANN401
        """Collective. Return the values of all members, by rank."""
        self._values[rank] = value
        if len(self._values) == self.size:
            gathered = [self._values[member] for member in range(self.size)]
            self._gathered, self._values = dict.fromkeys(range(self.size), gathered), {}
        self._pass_turn(rank)
        self._wait_turn(rank)
        return self._gathered.pop(rank)

    def _wait_turn(self, *turns: int) -> int:
        """Wait until it is one of these turns; return which. Raises GroupShutdown if a member has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._turn in turns or self._error is not None)
        if self._error is not None:
            raise GroupShutdown
        return self._turn

    def _pass_turn(self, rank: int) -> None:
        """Let the next member run: one that can continue, else one that has not stepped or is waited for."""
        order = [(rank + 1 + i) % self.size for i in range(self.size)]
        continuing = [member for member in order if member in self._gathered]
        idle = [member for member in order if member in self._idle]
        fresh = [member for member in idle if member not in self._stepped]
        needed = [member for member in idle if self._values and member not in self._without_work]
        with self._changed:
            self._turn = next(iter(continuing or fresh or needed), self.size)
            self._changed.notify_all()


class InlineMember:
    """A member of an InlineGroup."""

    def __init__(self, group: InlineGroup, rank: int) -> None:
        self.group, self.rank, self.size = group, rank, group.size

    pause_requested = False

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
        """Do nothing: the engine may pause after every step."""

    def add_finished(self, number: int) -> None:
        """Do nothing."""

    def count_finished(self, number: int) -> int:
        """Return 0: members that take turns are not late."""
        return 0


class InlineGroups:
    """The groups of a program on the inline engine."""

    def __init__(self) -> None:
        self._groups: dict[str, InlineGroup] = {}
        self._members: dict[GroupRef, InlineMember] = {}

    def join(self, ref: GroupRef) -> Group:
        """Return the member at this place."""
        if ref.size == 1:
            return SoloGroup()
        group = self._groups.setdefault(ref.group, InlineGroup(ref.size))
        return self._members.setdefault(ref, InlineMember(group, ref.rank))

    def close(self) -> None:
        """End all groups."""
        for group in self._groups.values():
            group.close()

    def step_all(self, name: str, steps: list[Callable[[], Metrics | None]]) -> list[Metrics | None]:
        """Step the members of a group."""
        return self._groups[name].step_all(steps)
