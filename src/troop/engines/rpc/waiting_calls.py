"""WaitingCalls: calls of one batched method that wait to be joined."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from troop.core.remote import BatchLimits
from troop.engines.rpc.batching import NotJoinable, join_rows, row_count, split_rows

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
    """Return the result of each call; calls `function(args)` once if the arguments can be joined."""
    counts = [row_count(args) for args in all_args]
    if len(all_args) > 1 and all(count is not None for count in counts):
        known_counts = [count or 0 for count in counts]
        try:
            joined = join_rows(all_args, known_counts)
        except NotJoinable:
            pass
        else:
            return split_rows(function(joined), known_counts)
    return [function(args) for args in all_args]
