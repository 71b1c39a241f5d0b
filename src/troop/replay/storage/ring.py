"""Streams: a time-ordered ring per env in which every observation is kept once.

The successor of a row is the next row of its stream. Where an episode ended, the next row is a *closing*
row: it holds the true final observation and is no transition. EnvPool's extra row after an end is
just that; for other backends the recorder adds it. So no observation is kept twice and none aside.
Of a stack of frames each row keeps the newest only: the others are those of the rows before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from troop.core.batch import Rollout
from troop.core.env import Continuous, EnvSpec, Field
from troop.replay.storage import kernels, kernels_torch
from troop.replay.storage.allocation import allocator, zeros
from troop.replay.storage.kernels import CLOSING, FRESH, TRUNCATED

ACTION = "action"


@dataclass(frozen=True)
class Layout:
    """Which fields a row has: float32 ones share one packed row, others have an array of their own."""

    packed: dict[str, tuple[int, int]]  # name -> first column, width
    loose: dict[str, Field]

    @staticmethod
    def of(spec: EnvSpec) -> Layout:
        """The layout of an env's rows."""
        chosen = Field((), torch.int64)
        action = Field((spec.action.size,)) if isinstance(spec.action, Continuous) else chosen
        packed: dict[str, tuple[int, int]] = {}
        loose: dict[str, Field] = {}
        column = 0
        for name, field in (spec.obs | {ACTION: action}).items():
            if field.dtype == torch.float32 and len(field.shape) == 1 and field.stack == 1:
                packed[name] = (column, field.shape[0])
                column += field.shape[0]
            else:
                loose[name] = field
        return Layout(packed, loose)

    @property
    def width(self) -> int:
        """Columns of a packed row."""
        return sum(width for _, width in self.packed.values())

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, with reward and flags."""
        loose = sum(torch.Size(field.frame).numel() * field.dtype.itemsize for field in self.loose.values())
        return 4 * self.width + loose + 4 + 1


class RingStorage:
    """`streams` rings of `length` rows; knows where rows are, not how they are drawn."""

    def __init__(
        self, spec: EnvSpec, streams: int, length: int, device: str = "cpu", folder: str = ""
    ) -> None:
        self.layout, self.streams, self.length = Layout.of(spec), streams, length
        self.device = torch.device(device)
        total = streams * length
        allocate = allocator(
            total * self.layout.row_bytes, device, folder, f"A replay of {total:,} rows of {spec.id}"
        )
        self.rows = allocate((total, self.layout.width), torch.float32)
        self.loose = {
            name: allocate((total, *field.frame), field.dtype) for name, field in self.layout.loose.items()
        }
        self.reward = zeros((total,), torch.float32, device)
        self.flags = zeros((total,), torch.uint8, device)
        self.heads = np.zeros(streams, dtype=np.int64)  # rows ever written, per stream; host side, no sync
        self.stack = max((field.stack for field in spec.obs.values()), default=1)

    @property
    def margin(self) -> int:
        """The oldest rows of a full ring that are there only for the stacks of those after them."""
        return self.stack - 1

    def __len__(self) -> int:
        """Rows held, closing ones included."""
        return int(np.minimum(self.heads, self.length).sum())

    @property
    def bytes(self) -> int:
        """Bytes allocated."""
        return sum(x.numel() * x.element_size() for x in self._arrays().values())

    def add(self, piece: Rollout) -> Tensor:
        """Append the piece's rows to their streams; returns their places, [T, B]."""
        time, count = piece.reward.shape
        assert time <= self.length, "a piece is longer than the ring"
        streams = piece.streams.numpy()
        before = self.heads[streams]
        position = (before + np.arange(time)[:, None]) % self.length
        self.heads[streams] += time
        place = torch.from_numpy(streams * self.length + position).to(self.device)
        flat = place.view(-1)
        values = piece.obs | {ACTION: piece.action}
        packed = [values[name].reshape(time * count, -1) for name in self.layout.packed]
        if packed:  # an env of images and choices has none
            self.rows.index_copy_(0, flat, packed[0] if len(packed) == 1 else torch.cat(packed, -1))
        for name, store in self.loose.items():
            value = values[name].reshape(time * count, *self.layout.loose[name].shape)
            store.index_copy_(0, flat, value[:, -store.shape[1] :] if store.dim() > 1 else value)
        self.reward.index_copy_(0, flat, piece.reward.reshape(-1))
        flags = piece.terminated.to(torch.uint8)  # TERMINATED is bit 1, TRUNCATED 2, CLOSING 4
        flags = flags + piece.truncated.to(torch.uint8) * TRUNCATED + piece.closing.to(torch.uint8) * CLOSING
        if self.stack > 1:
            flags = flags + self._fresh(values, before == 0).to(torch.uint8) * FRESH
        self.flags.index_copy_(0, flat, flags.to(torch.uint8).reshape(-1))
        return place

    def _fresh(self, values: dict[str, Tensor], first: np.ndarray[Any, Any]) -> Tensor:
        """Where a history of frames may begin, [T, B]: all frames of the stack are the same.

        Where that is so within an episode it does no harm: repeating the frame gives the same stack.
        """
        fresh: Tensor | bool = True
        for name, field in self.layout.loose.items():
            if field.stack > 1:
                frames = values[name].view(*values[name].shape[:2], field.stack, -1)
                fresh = fresh & (frames[:, :, 1:] == frames[:, :, :1]).flatten(2).all(-1)
        assert isinstance(fresh, Tensor)
        fresh[0] |= torch.from_numpy(first).to(fresh.device)  # nothing is known of what came before
        return fresh

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Forced reset of these streams or all: the newest row keeps its observation, as a closing row."""
        chosen = np.arange(self.streams) if streams is None else streams.numpy()
        written = chosen[self.heads[chosen] > 0]
        place = torch.from_numpy(written * self.length + (self.heads[written] - 1) % self.length)
        place = place.to(self.device)
        self.flags[place] = (self.flags[place] & FRESH) | CLOSING
        self.reward[place] = 0.0

    def fields(self, place: Tensor) -> dict[str, Tensor]:
        """Every named field of the rows at `place` [B]; one gather for all packed ones."""
        found: dict[str, Tensor] = {}
        if self.layout.packed:
            rows = self.rows.index_select(0, place)
            found = {
                name: rows[:, first : first + width] for name, (first, width) in self.layout.packed.items()
            }
        history = self._histories(place) if self.stack > 1 else place
        for name, store in self.loose.items():
            field = self.layout.loose[name]
            if field.stack == 1:
                found[name] = store.index_select(0, place)
                continue
            frames = store.index_select(0, history[:, -field.stack :].reshape(-1))
            found[name] = frames.view(len(place), *field.shape)
        return found

    def _histories(self, place: Tensor) -> Tensor:
        if self.device.type != "cpu":
            return kernels_torch.frame_stacks(place, self.length, self.flags, self.stack)
        history = torch.empty(len(place), self.stack, dtype=torch.int64)
        kernels.frame_stacks(place.numpy(), self.length, self.flags.numpy(), history.numpy())
        return history

    def state_dict(self) -> dict[str, Any]:
        """The rows in use and the heads."""
        used = int(min(self.heads.max(initial=0), self.length))
        state: dict[str, Any] = {name: self._by_stream(x)[:, :used] for name, x in self._arrays().items()}
        heads = torch.from_numpy(self.heads.copy())
        return state | {"heads": heads, "length": self.length}

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Take back as many streams as there are here, newest rows first; returns the rows dropped."""
        heads, length, used = state["heads"].numpy(), int(state["length"]), state["rows"].shape[1]
        common, held = min(len(heads), self.streams), np.minimum(heads, length)
        for name, x in self._arrays().items():
            mine = self._by_stream(x)
            if length == self.length:
                mine[:common, :used] = state[name][:common].to(self.device)
                continue
            for stream in range(common):  # rings of another length: lay the newest rows out anew
                newest = np.arange(heads[stream] - min(held[stream], self.length), heads[stream]) % length
                mine[stream, : len(newest)] = state[name][stream, torch.from_numpy(newest)].to(self.device)
        kept = heads[:common] if length == self.length else np.minimum(held[:common], self.length)
        self.heads[:common] = kept
        return int(held.sum() - np.minimum(kept, self.length).sum())

    def _by_stream(self, x: Tensor) -> Tensor:
        return x.view(self.streams, self.length, *x.shape[1:])

    def _arrays(self) -> dict[str, Tensor]:
        arrays = {"rows": self.rows, "reward": self.reward, "flags": self.flags}
        return arrays | {f"loose_{name}": store for name, store in self.loose.items()}
