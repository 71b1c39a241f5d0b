"""ObservationBuffer: observations without actions and rewards, all that the actor learner of PQL needs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from troop.core.batch import Rollout, Transition
from troop.core.env import EnvSpec
from troop.replay.storage.allocation import allocator


def observations_only(rollout: Rollout) -> Rollout | None:
    """Return the observations that were acted on, [1, K], and no other field; None if there are none.

    The other fields stay empty so that only observations are sent to the buffer's host.
    """
    valid = ~rollout.closing.flatten()
    rows = int(valid.sum())
    if not rows:
        return None
    flat = {name: x.flatten(0, 1) for name, x in rollout.obs.items()}
    if rows < len(valid):
        flat = {name: x[valid] for name, x in flat.items()}
    obs = {name: x.unsqueeze(0) for name, x in flat.items()}
    empty, empty_mask = rollout.reward[:0], rollout.closing[:0]
    closing = torch.zeros(1, rows, dtype=torch.bool)
    return Rollout(rollout.streams[:0], obs, empty, empty, empty_mask, empty_mask, closing)


class ObservationBuffer:
    """A ReplayBuffer of observations, sampled uniformly; the other fields of its batches are empty."""

    def __init__(
        self, spec: EnvSpec, capacity: int, seed: int, device: str = "cpu", directory: str = ""
    ) -> None:
        self.capacity, self.device, self.reward_scale = capacity, torch.device(device), None
        row_bytes = sum(torch.Size(field.shape).numel() * field.dtype.itemsize for field in spec.obs.values())
        allocate = allocator(
            capacity * row_bytes, device, directory, f"A replay of {capacity:,} observations of {spec.id}"
        )
        self.fields = {
            name: allocate((capacity, *field.shape), field.dtype) for name, field in spec.obs.items()
        }
        self.rows_written = 0
        self.generator = torch.Generator(device).manual_seed(seed)

    def __len__(self) -> int:
        """Number of rows stored."""
        return min(self.rows_written, self.capacity)

    @property
    def sample_age(self) -> float:
        """Mean age of sampled rows, in rows added since: half of the rows stored."""
        return len(self) / 2

    def add(self, rollout: Rollout) -> None:
        """Append the result of `observations_only`; it overwrites the oldest rows of a full buffer."""
        for name, array in self.fields.items():
            rows = rollout.obs[name][0][-self.capacity :]
            start = (self.rows_written + rollout.obs[name].shape[1] - len(rows)) % self.capacity
            fitting = min(len(rows), self.capacity - start)
            array[start : start + fitting] = rows[:fitting]
            array[: len(rows) - fitting] = rows[fitting:]
        self.rows_written += int(rollout.closing.shape[1])

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Do nothing: rows do not depend on each other."""

    def sample(self, rows: int) -> Transition | None:
        """Return exactly `rows` observations; None while the buffer is empty."""
        if not self.rows_written:
            return None
        slots = torch.randint(len(self), (rows,), generator=self.generator, device=self.device)
        obs = {name: array.index_select(0, slots) for name, array in self.fields.items()}
        zeros = torch.zeros(rows, device=self.device)
        return Transition(obs, zeros[:0], zeros, zeros, {})

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Do nothing: all rows have the same priority."""

    def state_dict(self) -> dict[str, Any]:
        """Return the rows in use, the number of rows written and the state of the random generator."""
        rows = {name: x[: len(self)] for name, x in self.fields.items()}
        counts = {"rows_written": self.rows_written, "capacity": self.capacity}
        return {"rows": rows, "rng": self.generator.get_state()} | counts

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Restore the newest rows that fit; return the number of rows dropped."""
        written, capacity = int(state["rows_written"]), int(state["capacity"])
        stored = min(written, capacity)
        restored = min(stored, self.capacity)
        newest = torch.arange(written - restored, written) % capacity
        self.rows_written = written if capacity == self.capacity else restored
        for name, array in self.fields.items():
            if capacity == self.capacity:
                array[:stored] = state["rows"][name].to(self.device)
            else:  # a ring of another size: write the newest rows from position 0 on
                array[:restored] = state["rows"][name][newest].to(self.device)
        if state["rng"].numel() == self.generator.get_state().numel():  # else saved on another device type
            self.generator.set_state(state["rng"].cpu())
        return stored - restored
