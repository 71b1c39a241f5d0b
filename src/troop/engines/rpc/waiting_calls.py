"""WaitingCalls: calls of one batched method that wait to be joined."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from troop.core.remote import BatchLimits
from troop.engines.rpc.batching import NotJoinable, join_rows, layout, row_count, split_rows

C = TypeVar("C")  # a call


class WaitingCalls(Generic[C]):
    """Collects calls until they are a full batch or the oldest has waited for the deadline."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.calls: list[C] = []
        self._counts: list[int] = []  # rows of each
        self.rows, self._since = 0, 0.0

    def has_room(self, rows: int) -> bool:
        """Return whether a call of so many rows can join; the first one always can."""
        return not self.calls or self.rows + rows <= self.limits.max_rows

    def add(self, call: C, rows: int, now: float) -> None:
        """Append a call."""
        if not self.calls:
            self._since = now
        self.calls.append(call)
        self._counts.append(rows)
        self.rows += rows

    def keep(self, wanted: Callable[[C], bool]) -> None:
        """Forget the calls for which `wanted` does not hold."""
        kept = [(call, rows) for call, rows in zip(self.calls, self._counts, strict=True) if wanted(call)]
        self.calls, self._counts = [call for call, _ in kept], [rows for _, rows in kept]
        self.rows = sum(self._counts)

    def due_in(self, now: float) -> float:
        """Return the seconds until the batch must be made; 0 if it is full or overdue, inf without calls."""
        if not self.calls:
            return math.inf
        if self.rows >= self.limits.max_rows:
            return 0.0
        return max(0.0, self._since + self.limits.deadline_s - now)

    def take(self) -> list[C]:
        """Return and forget all calls."""
        calls, self.calls, self._counts, self.rows = self.calls, [], [], 0
        return calls


def invoke_joined(function: Any, all_args: list[tuple[Any, ...]]) -> list[Any]:  # noqa: ANN401
    """Return the result of each call; calls `function(args)` once for calls that can be joined."""
    if len(all_args) == 1:
        return [function(all_args[0])]
    if all_args and (joined := _join(all_args)) is not None:
        return split_rows(function(joined[0]), joined[1])
    groups = group_by_layout(all_args)
    if len(groups) == len(all_args) or len(groups) <= 1:
        return [function(args) for args in all_args]
    results: list[Any] = [None] * len(all_args)
    for group in groups:
        group_results = invoke_joined(function, [all_args[position] for position in group])
        for position, result in zip(group, group_results, strict=True):
            results[position] = result
    return results


def _join(all_args: list[tuple[Any, ...]]) -> tuple[Any, list[int]] | None:
    """Return the joined arguments and the rows of each call; None if they cannot be joined."""
    counts: list[int] = []
    for args in all_args:
        if (count := row_count(args)) is None:
            return None
        counts.append(count)
    try:
        return join_rows(all_args, counts), counts
    except NotJoinable:
        return None


def group_by_layout(all_args: list[tuple[Any, ...]]) -> list[list[int]]:
    """Return lists of positions of calls with equal layout, such as those without finished episodes."""
    groups: dict[Any, list[int]] = {}
    for position, args in enumerate(all_args):
        try:
            key: Any = layout(args)
        except TypeError:  # an argument is not hashable
            key = position
        groups.setdefault(key, []).append(position)
    return list(groups.values())
