"""Frame stacks of sequences, stored as single frames: each entry appends one frame to the stack before it."""

from __future__ import annotations

import torch
from torch import Tensor


def single_frames(stacks: Tensor, stack: int, first: Tensor) -> Tensor:
    """Return the frames [B, T + stack, c, ...] of stacks [T + 1, B, stack * c, ...].

    Sequence b begins at entry `first` [B], whose whole stack is kept; the stacks of later entries continue
    it. Entries before it are not kept.
    """
    entries, streams = stacks.shape[:2]
    shape = (entries, streams, stack, stacks.shape[2] // stack, *stacks.shape[3:])
    frames = stacks.reshape(shape)
    stored = torch.cat((torch.zeros_like(frames[: stack - 1, :, -1]), frames[:, :, -1]))
    columns = torch.arange(streams, device=stacks.device)
    for age in range(stack - 1):
        stored[first + age, columns] = frames[first, columns, age]
    assert len(stored) == entries + stack - 1
    return stored.transpose(0, 1)


def frame_stacks(frames: Tensor, stack: int) -> Tensor:
    """Return the stacks [B, T + 1, stack * c, ...] of the result of `single_frames`."""
    entries = frames.shape[1] - stack + 1
    return torch.stack([frames[:, age : age + entries] for age in range(stack)], 2).flatten(2, 3)
