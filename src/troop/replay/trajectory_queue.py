"""TrajectoryQueue: trajectories in the order of arrival, each returned once."""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import torch
from torch import Tensor

from troop.core.batch import Trajectory, join_trajectories
from troop.core.role import Metrics


class TrajectoryQueue:
    """Returns batches of env streams, oldest first.

    Actors send while fewer than `capacity` streams and `max_bytes` wait (`wants_data`), and always while
    fewer than one batch waits: the excess is at most the trajectories in flight. No stream is dropped.
    """

    def __init__(
        self, capacity: int, max_bytes: int = 1 << 62, batch_size: int = 1, name: str = "queue"
    ) -> None:
        self.capacity, self.max_bytes, self.batch_size, self.name = capacity, max_bytes, batch_size, name
        self._waiting: deque[Trajectory] = deque()
        self.nbytes = 0  # of what waits

    def __len__(self) -> int:
        """Number of streams that wait."""
        return sum(len(trajectory) for trajectory in self._waiting)

    @property
    def sample_age(self) -> float:
        """0: rows are returned in the order of arrival."""
        return 0.0

    @property
    def reward_scale(self) -> None:
        """None: rewards are returned as they are."""
        return None

    def add(self, trajectory: Trajectory, /) -> None:
        """Append the streams; they are never dropped, also beyond `capacity`."""
        self._waiting.append(trajectory)
        self.nbytes += trajectory.nbytes

    def wants_data(self) -> Literal[True] | None:
        """Return True while less than the bounds or less than one batch waits, else None."""
        within = len(self) < self.capacity and self.nbytes < self.max_bytes
        return True if within or len(self) < self.batch_size else None

    def sample(self, rows: int) -> Trajectory | None:
        """Return the `rows` oldest streams; None while there are fewer."""
        if len(self) < rows:
            return None
        parts: list[Trajectory] = []
        missing = rows
        while missing:
            part = self._waiting.popleft()
            if len(part) > missing:
                columns = torch.arange(len(part), device=part.reward.device)
                self._waiting.appendleft(part.columns(columns[missing:]))
                part = part.columns(columns[:missing])
            parts.append(part)
            missing -= len(part)
        self.nbytes = sum(trajectory.nbytes for trajectory in self._waiting)
        return join_trajectories(parts)

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Do nothing: a trajectory is complete in itself."""

    def gauges(self) -> Metrics:
        """Return the number of streams that wait, how many may, and their bytes."""
        waiting = {"rows": len(self), "capacity": self.capacity, "bytes": self.nbytes}
        return {f"{self.name}/{key}": value for key, value in waiting.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict: waiting trajectories are not saved."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Return 0: nothing was saved."""
        return 0
