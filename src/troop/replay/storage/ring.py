"""RingStorage: one time-ordered ring of rows per env stream, with every observation stored once.

The successor of a row is the next row of its stream. Where an episode ended, the next row is a *closing*
row: it holds the final observation and is not a transition. EnvPool's extra row after an episode end is
one; for other backends the recorder adds it. So no observation is stored twice, and none in a separate
place. Of a frame stack each row stores only the newest frame: the others are those of the rows before it. A
row whose older frames are not stored is marked as a closing row and serves only the stacks of later rows.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from troop.core.batch import Rollout
from troop.core.env import Continuous, EnvSpec, Field
from troop.replay.storage import kernels, kernels_torch
from troop.replay.storage.allocation import allocator, zeros
from troop.replay.storage.kernels import CLOSING, STACK_START, TRUNCATED

ACTION = "action"
STREAM_COUNTS = ("rows_written", "missing_frames")


@dataclass(frozen=True)
class Layout:
    """The fields of a row: float32 vectors share one packed array, other fields have an array each."""

    packed: dict[str, tuple[int, int]]  # name -> first column, width
    separate: dict[str, Field]

    @staticmethod
    def of(spec: EnvSpec) -> Layout:
        """Return the layout of the rows of an env."""
        action = Field((), torch.int64)
        if isinstance(spec.action, Continuous):
            action = Field((spec.action.size,))
        packed: dict[str, tuple[int, int]] = {}
        separate: dict[str, Field] = {}
        column = 0
        for name, field in (spec.obs | {ACTION: action}).items():
            if field.dtype == torch.float32 and len(field.shape) == 1 and field.stack == 1:
                packed[name] = (column, field.shape[0])
                column += field.shape[0]
            else:
                separate[name] = field
        return Layout(packed, separate)

    @property
    def width(self) -> int:
        """Columns of the packed array."""
        return sum(width for _, width in self.packed.values())

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, including reward and flags."""
        separate = sum(
            torch.Size(field.frame).numel() * field.dtype.itemsize for field in self.separate.values()
        )
        return 4 * self.width + separate + 4 + 1


class RingStorage:
    """`num_streams` rings of `length` rows each.

    Rows are addressed by slots: stream * length + position in the ring.
    """

    def __init__(
        self, spec: EnvSpec, num_streams: int, length: int, device: str = "cpu", directory: str = ""
    ) -> None:
        self.layout, self.num_streams, self.length = Layout.of(spec), num_streams, length
        self.device = torch.device(device)
        total = num_streams * length
        allocate = allocator(
            total * self.layout.row_bytes, device, directory, f"A replay of {total:,} rows of {spec.id}"
        )
        self.rows = allocate((total, self.layout.width), torch.float32)
        self.separate = {
            name: allocate((total, *field.frame), field.dtype) for name, field in self.layout.separate.items()
        }
        self.reward = zeros((total,), torch.float32, device)
        self.flags = zeros((total,), torch.uint8, device)
        # Rows ever written to each stream; on the host, so that reading it does not wait for a GPU.
        self.rows_written = np.zeros(num_streams, dtype=np.int64)
        self.stack = max((field.stack for field in spec.obs.values()), default=1)
        # Number of next rows of each stream whose stacks need frames from before the stream's newest start.
        self.missing_frames = np.full(num_streams, self.stack_margin)

    @property
    def stack_margin(self) -> int:
        """Number of oldest rows of a full ring that serve only the frame stacks of later rows."""
        return self.stack - 1

    def __len__(self) -> int:
        """Number of rows stored, including closing rows."""
        return int(np.minimum(self.rows_written, self.length).sum())

    @property
    def bytes(self) -> int:
        """Bytes allocated."""
        return sum(x.numel() * x.element_size() for x in self._arrays().values())

    def add(self, rollout: Rollout) -> Tensor:
        """Append the rows of the rollout to their streams; return their slots, [T, B]."""
        time, count = rollout.reward.shape
        assert time <= self.length, "a rollout is longer than the ring"
        streams = rollout.streams.numpy()
        before = self.rows_written[streams]
        position = (before + np.arange(time)[:, None]) % self.length
        self.rows_written[streams] += time
        slots = torch.from_numpy(streams * self.length + position).to(self.device)
        flat = slots.view(-1)
        fields = rollout.obs | {ACTION: rollout.action}
        packed = [fields[name].reshape(time * count, -1) for name in self.layout.packed]
        if packed:  # an env with image observations and discrete actions has none
            self.rows.index_copy_(0, flat, packed[0] if len(packed) == 1 else torch.cat(packed, -1))
        for name, array in self.separate.items():
            value = fields[name].reshape(time * count, *self.layout.separate[name].shape)
            array.index_copy_(0, flat, value[:, -array.shape[1] :] if array.dim() > 1 else value)
        self.reward.index_copy_(0, flat, rollout.reward.reshape(-1))
        self.flags.index_copy_(0, flat, self._flags(rollout).reshape(-1))
        return slots

    def close_incomplete_stacks(self, rollout: Rollout) -> Rollout:
        """Mark rows of the rollout as closing rows if frames of their stacks are not stored.

        These are the first rows of an empty or ended stream if they continue an episode: the actors may be
        ahead of a restored replay. Call it once per rollout, before `add`.
        """
        streams = rollout.streams.numpy()
        missing = self.missing_frames[streams]
        if not missing.any():
            return rollout
        starts = self._stack_starts(rollout.obs).cpu().numpy()
        incomplete = np.zeros_like(starts)
        for t in range(len(starts)):
            missing[starts[t]] = 0
            incomplete[t] = missing > 0
            missing = np.maximum(missing - 1, 0)
        self.missing_frames[streams] = missing
        closing = rollout.closing | torch.from_numpy(incomplete).to(rollout.closing.device)
        return dataclasses.replace(rollout, closing=closing)

    def _flags(self, rollout: Rollout) -> Tensor:
        """Return the flags of the rollout's rows, [T, B]."""
        flags = rollout.terminated.to(torch.uint8)  # TERMINATED is 1
        flags = flags + rollout.truncated.to(torch.uint8) * TRUNCATED
        flags = flags + rollout.closing.to(torch.uint8) * CLOSING
        if self.stack > 1:
            flags = flags + self._stack_starts(rollout.obs).to(torch.uint8) * STACK_START
        return flags.to(torch.uint8)

    def _stack_starts(self, obs: dict[str, Tensor]) -> Tensor:
        """Return where frame stacks start, [T, B]: all frames of the stack are equal.

        Within an episode such a row is harmless: repeating its frame gives the same stack.
        """
        starts: Tensor | bool = True
        for name, field in self.layout.separate.items():
            if field.stack > 1:
                frames = obs[name].view(*obs[name].shape[:2], field.stack, -1)
                starts = starts & (frames[:, :, 1:] == frames[:, :, :1]).flatten(2).all(-1)
        assert isinstance(starts, Tensor)
        return starts

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Turn the newest row of these streams (None: all) into a closing row, after a forced reset."""
        chosen = np.arange(self.num_streams) if streams is None else streams.numpy()
        written = chosen[self.rows_written[chosen] > 0]
        slots = torch.from_numpy(written * self.length + (self.rows_written[written] - 1) % self.length)
        slots = slots.to(self.device)
        self.flags[slots] = (self.flags[slots] & STACK_START) | CLOSING
        self.reward[slots] = 0.0
        self.missing_frames[chosen] = self.stack_margin

    def fields(self, slots: Tensor) -> dict[str, Tensor]:
        """Return every named field of the rows at `slots` [B]; one gather for all packed ones."""
        fields: dict[str, Tensor] = {}
        if self.layout.packed:
            rows = self.rows.index_select(0, slots)
            fields = {name: rows[:, c : c + width] for name, (c, width) in self.layout.packed.items()}
        stacks = self._frame_stacks(slots) if self.stack > 1 else slots
        for name, array in self.separate.items():
            field = self.layout.separate[name]
            if field.stack == 1:
                fields[name] = array.index_select(0, slots)
                continue
            frames = array.index_select(0, stacks[:, -field.stack :].reshape(-1))
            fields[name] = frames.view(len(slots), *field.shape)
        return fields

    def _frame_stacks(self, slots: Tensor) -> Tensor:
        if self.device.type != "cpu":
            return kernels_torch.frame_stacks(slots, self.length, self.flags, self.stack)
        stacks = torch.empty(len(slots), self.stack, dtype=torch.int64)
        kernels.frame_stacks(slots.numpy(), self.length, self.flags.numpy(), stacks.numpy())
        return stacks

    def state_dict(self) -> dict[str, Any]:
        """Return the rows in use and the number of rows written per stream."""
        used = int(min(self.rows_written.max(initial=0), self.length))
        state: dict[str, Any] = {name: self._by_stream(x)[:, :used] for name, x in self._arrays().items()}
        counts = {name: torch.from_numpy(getattr(self, name).copy()) for name in STREAM_COUNTS}
        return state | counts | {"length": self.length}

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Restore the streams that exist here, newest rows first; return the number of rows dropped."""
        written, length = state["rows_written"].numpy(), int(state["length"])
        used = state["rows"].shape[1]
        common, stored = min(len(written), self.num_streams), np.minimum(written, length)
        for name, x in self._arrays().items():
            target = self._by_stream(x)
            if length == self.length:
                target[:common, :used] = state[name][:common].to(self.device)
                continue
            for stream in range(common):  # rings of another length: write the newest rows from position 0 on
                count = min(stored[stream], self.length)
                newest = np.arange(written[stream] - count, written[stream]) % length
                target[stream, : len(newest)] = state[name][stream, torch.from_numpy(newest)].to(self.device)
        restored = written[:common] if length == self.length else np.minimum(stored[:common], self.length)
        self.rows_written[:common] = restored
        self.missing_frames[:common] = state["missing_frames"].numpy()[:common]
        self._close_first_rows(np.flatnonzero(restored < written[:common]))
        return int(stored.sum() - np.minimum(restored, self.length).sum())

    def _close_first_rows(self, streams: np.ndarray[Any, Any]) -> None:
        """Mark the oldest rows of relocated streams as closing rows where frames of their stacks are lost."""
        first = self._by_stream(self.flags)[:, : self.stack_margin]
        chosen = first[streams]
        before_start = ((chosen & STACK_START) > 0).cumsum(1) == 0
        first[streams] = torch.where(before_start, chosen | CLOSING, chosen)

    def _by_stream(self, x: Tensor) -> Tensor:
        return x.view(self.num_streams, self.length, *x.shape[1:])

    def _arrays(self) -> dict[str, Tensor]:
        arrays = {"rows": self.rows, "reward": self.reward, "flags": self.flags}
        return arrays | {f"separate_{name}": array for name, array in self.separate.items()}
