"""Observations alone: all that a policy learns from once critics judge its actions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from troop.core.batch import Rollout, Transition
from troop.core.env import EnvSpec
from troop.replay.storage.allocation import allocator


def observations_only(piece: Rollout) -> Rollout | None:
    """The observations of a piece that were acted on, [1, K], and nothing else; None if there are none.

    This is what travels to a store of observations: neither actions nor rewards nor ends.
    """
    acted = ~piece.closing.flatten()
    rows = int(acted.sum())
    if not rows:
        return None
    flat = {name: x.flatten(0, 1) for name, x in piece.obs.items()}
    if rows < len(acted):
        flat = {name: x[acted] for name, x in flat.items()}
    obs = {name: x.unsqueeze(0) for name, x in flat.items()}
    nothing, no = piece.reward[:0], piece.closing[:0]
    closing = torch.zeros(1, rows, dtype=torch.bool)
    return Rollout(piece.streams[:0], obs, nothing, nothing, no, no, closing)


class ObservationBuffer:
    """A Sink and Source: one ring of the newest observations, drawn uniformly.

    Batches carry observations only; their other fields are empty.
    """

    def __init__(
        self, spec: EnvSpec, capacity: int, seed: int, device: str = "cpu", folder: str = ""
    ) -> None:
        self.capacity, self.device = capacity, torch.device(device)
        each = sum(torch.Size(field.shape).numel() * field.dtype.itemsize for field in spec.obs.values())
        allocate = allocator(
            capacity * each, device, folder, f"A replay of {capacity:,} observations of {spec.id}"
        )
        self.fields = {
            name: allocate((capacity, *field.shape), field.dtype) for name, field in spec.obs.items()
        }
        self.written = 0  # rows ever
        self.generator = torch.Generator(device).manual_seed(seed)

    def __len__(self) -> int:
        """Rows held."""
        return min(self.written, self.capacity)

    @property
    def sample_age(self) -> float:
        """Rows that came since those of a batch did, on average: half of what is held."""
        return len(self) / 2

    def add(self, piece: Rollout) -> None:
        """Keep what was `observations_only`; the oldest rows give way."""
        for name, store in self.fields.items():
            rows = piece.obs[name][0][-self.capacity :]
            at = (self.written + piece.obs[name].shape[1] - len(rows)) % self.capacity
            fits = min(len(rows), self.capacity - at)
            store[at : at + fits] = rows[:fits]
            store[: len(rows) - fits] = rows[fits:]
        self.written += int(piece.closing.shape[1])

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Nothing: no row leans on another."""

    def sample(self, rows: int) -> Transition | None:
        """Exactly `rows` observations; None while there are none."""
        if not self.written:
            return None
        place = torch.randint(len(self), (rows,), generator=self.generator, device=self.device)
        obs = {name: store.index_select(0, place) for name, store in self.fields.items()}
        nothing = torch.zeros(rows, device=self.device)
        return Transition(obs, nothing[:0], nothing, nothing, {})

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """All rows matter the same."""

    def state_dict(self) -> dict[str, Any]:
        """The rows in use as they lie, how many there ever were, and the random state."""
        rows = {name: x[: len(self)] for name, x in self.fields.items()}
        counts = {"written": self.written, "capacity": self.capacity}
        return {"rows": rows, "rng": self.generator.get_state()} | counts

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Take back the newest rows there is room for; returns how many had to be dropped."""
        written, capacity = int(state["written"]), int(state["capacity"])
        held = min(written, capacity)
        kept = min(held, self.capacity)
        newest = torch.arange(written - kept, written) % capacity
        self.written = written if capacity == self.capacity else kept
        for name, store in self.fields.items():
            if capacity == self.capacity:
                store[:held] = state["rows"][name].to(self.device)
            else:  # a ring of another size: lay the newest rows out anew
                store[:kept] = state["rows"][name][newest].to(self.device)
        if state["rng"].numel() == self.generator.get_state().numel():  # else it is of another kind of device
            self.generator.set_state(state["rng"].cpu())
        return held - kept
