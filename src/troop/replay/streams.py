"""Streams: a time-ordered ring per env in which every observation is kept once.

The successor of a row is the next row of its stream. Where an episode ended, the next row is a *closing*
row: it holds the true final observation and is no transition. EnvPool's extra row after an end is
just that; for other backends the recorder adds it. So no observation is kept twice and none aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from troop.core.batch import Rows
from troop.core.env import Continuous, EnvSpec, Obs
from troop.core.errors import SetupProblem

TERMINATED, TRUNCATED, CLOSING, NEAR = 1, 2, 4, 8  # NEAR: an end, or the ring's, is within reach
ACTION = "action"


@dataclass(frozen=True)
class Layout:
    """Which fields a row has: float32 ones share one packed row, others have an array of their own."""

    packed: dict[str, tuple[int, int]]  # name -> first column, width
    loose: dict[str, tuple[tuple[int, ...], torch.dtype]]

    @staticmethod
    def of(spec: EnvSpec) -> Layout:
        """The layout of an env's rows."""
        fields = {name: (field.shape, field.dtype) for name, field in spec.obs.items()}
        if isinstance(spec.action, Continuous):
            fields[ACTION] = ((spec.action.size,), torch.float32)
        else:
            fields[ACTION] = ((), torch.int64)
        packed: dict[str, tuple[int, int]] = {}
        loose: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        column = 0
        for name, (shape, dtype) in fields.items():
            if dtype == torch.float32 and len(shape) == 1:
                packed[name] = (column, shape[0])
                column += shape[0]
            else:
                loose[name] = (shape, dtype)
        return Layout(packed, loose)

    @property
    def width(self) -> int:
        """Columns of a packed row."""
        return sum(width for _, width in self.packed.values())

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, with reward and flags."""
        loose = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in self.loose.values())
        return 4 * self.width + loose + 4 + 1


def refuse_if_too_large(needed: int, device: str, what: str) -> None:
    """Raise SetupProblem, with the numbers, before an allocation that cannot succeed."""
    kind = torch.device(device)
    free = torch.cuda.mem_get_info(kind)[0] if kind.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise SetupProblem(
            f"{what} needs {needed / 1e9:.2f} GB on {device} but {free / 1e9:.2f} GB are free; "
            "lower --system.capacity (rows), or --envs."
        )


class Streams:
    """`streams` rings of `length` rows; knows where rows are, not how they are drawn.

    A row whose window of `reach` rows is cut by an end or by the ring's own is marked NEAR when that is
    known, so that whoever draws it need look no further if it is not. GPUs look anyway: marking would wait.
    """

    def __init__(self, spec: EnvSpec, streams: int, length: int, device: str = "cpu", reach: int = 0) -> None:
        self.layout, self.streams, self.length = Layout.of(spec), streams, length
        self.reach = reach if torch.device(device).type == "cpu" else 0
        self.device = torch.device(device)
        total = streams * length
        refuse_if_too_large(total * self.layout.row_bytes, device, f"A replay of {total:,} rows of {spec.id}")
        self.rows = torch.zeros(total, self.layout.width, device=device)
        self.loose = {
            name: torch.zeros(total, *shape, dtype=dtype, device=device)
            for name, (shape, dtype) in self.layout.loose.items()
        }
        self.reward = torch.zeros(total, device=device)
        self.flags = torch.zeros(total, dtype=torch.uint8, device=device)
        self.heads = np.zeros(streams, dtype=np.int64)  # rows ever written, per stream; host side, no sync

    def __len__(self) -> int:
        """Rows held, closing ones included."""
        return int(np.minimum(self.heads, self.length).sum())

    @property
    def bytes(self) -> int:
        """Bytes allocated."""
        return sum(x.numel() * x.element_size() for x in self._arrays().values())

    def add(self, piece: Rows) -> Tensor:
        """Append the piece's rows to their streams; returns their places, [T, B]."""
        time, count = piece.reward.shape
        assert time <= self.length, "a piece is longer than the ring"
        streams = piece.streams.numpy()
        position = (self.heads[streams] + np.arange(time)[:, None]) % self.length
        self.heads[streams] += time
        place = torch.from_numpy(streams * self.length + position).to(self.device)
        flat = place.view(-1)
        values = piece.obs | {ACTION: piece.action}
        packed = [values[name].reshape(time * count, -1) for name in self.layout.packed]
        if packed:  # an env of images and choices has none
            self.rows.index_copy_(0, flat, packed[0] if len(packed) == 1 else torch.cat(packed, -1))
        for name, store in self.loose.items():
            store.index_copy_(0, flat, values[name].reshape(time * count, *store.shape[1:]))
        self.reward.index_copy_(0, flat, piece.reward.reshape(-1))
        flags = piece.terminated.to(torch.uint8)  # TERMINATED is bit 1, TRUNCATED 2, CLOSING 4
        flags = flags + piece.truncated.to(torch.uint8) * TRUNCATED + piece.closing.to(torch.uint8) * CLOSING
        if self.reach:
            ends = flags != 0
            flags = flags + torch.from_numpy(position >= self.length - self.reach) * NEAR
        self.flags.index_copy_(0, flat, flags.to(torch.uint8).reshape(-1))
        if self.reach and ends.any():
            which = ends.nonzero().numpy()
            self._mark(streams[which[:, 1]], position[which[:, 0], which[:, 1]])
        return place

    def _mark(self, streams: np.ndarray[Any, Any], position: np.ndarray[Any, Any]) -> None:
        """The rows before these ends have windows that they cut."""
        for back in range(1, self.reach):
            place = torch.from_numpy(streams * self.length + (position - back) % self.length)
            self.flags[place] |= NEAR

    def cut(self) -> None:
        """Forced reset of every stream: the newest row keeps its observation but is a transition no more."""
        written = np.flatnonzero(self.heads > 0)
        last = written * self.length + (self.heads[written] - 1) % self.length
        place = torch.from_numpy(last).to(self.device)
        self.flags[place] = CLOSING | (NEAR if self.reach else 0)
        self.reward[place] = 0.0
        self._mark(written, (self.heads[written] - 1) % self.length)

    def fields(self, place: Tensor) -> dict[str, Tensor]:
        """Every named field of the rows at `place` [B]; one gather for all packed ones."""
        rows = self.rows.index_select(0, place)
        found = {name: rows[:, first : first + width] for name, (first, width) in self.layout.packed.items()}
        return found | {name: store.index_select(0, place) for name, store in self.loose.items()}

    def state_dict(self) -> dict[str, Any]:
        """The rows in use and the heads."""
        used = int(min(self.heads.max(initial=0), self.length))
        state: dict[str, Any] = {name: self._by_stream(x)[:, :used] for name, x in self._arrays().items()}
        heads = torch.from_numpy(self.heads.copy())
        return state | {"heads": heads, "length": self.length, "reach": self.reach}

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
        if self.reach and (length != self.length or state.get("reach") != self.reach):
            self.flags |= NEAR  # marked for other windows or not at all: look at each until it is overwritten
        kept = heads[:common] if length == self.length else np.minimum(held[:common], self.length)
        self.heads[:common] = kept
        return int(held.sum() - np.minimum(kept, self.length).sum())

    def _by_stream(self, x: Tensor) -> Tensor:
        return x.view(self.streams, self.length, *x.shape[1:])

    def _arrays(self) -> dict[str, Tensor]:
        arrays = {"rows": self.rows, "reward": self.reward, "flags": self.flags}
        return arrays | {f"loose_{name}": store for name, store in self.loose.items()}


def named(fields: dict[str, Tensor]) -> Obs:
    """The observations among fields."""
    return {name: x for name, x in fields.items() if name != ACTION}
