"""The functions of kernels.py as tensor operations, for replays on a GPU: none synchronises with the host."""

from __future__ import annotations

import torch
from torch import Tensor

from troop.replay.storage.kernels import CLOSING, STACK_START, TERMINATED, TRUNCATED

MAX_TRIES = 4


def draw_slots(
    random: Tensor, shift: Tensor, rows_written: Tensor, length: int, n: int, margin: int, flags: Tensor
) -> Tensor:
    """Draw rows that are transitions, as kernels.draw_slots; a row without a valid draw repeats another's."""
    full = rows_written > length
    windows = (rows_written.clamp_max(length) - n - full * margin).clamp_min_(0)
    ends = windows.cumsum(0)
    rows = random.shape[0]
    target = (torch.arange(rows, device=random.device, dtype=torch.float64) + shift) * (ends[-1] / rows)
    stream = torch.searchsorted(ends, target.long().minimum(ends[-1] - 1), right=True)
    oldest = torch.where(full, rows_written - length + margin, 0)[stream]
    slots = torch.zeros_like(random)
    valid = torch.zeros_like(random, dtype=torch.bool)
    for attempt in range(MAX_TRIES):
        number = random
        if attempt:
            number = (random * (2 * attempt + 1) + 7919 * attempt) & 0x3FFFFFFFFFFFFFFF
        candidate = stream * length + (oldest + ((number >> 30) * windows[stream] >> 32)) % length
        slots = torch.where(valid, slots, candidate)
        valid |= (flags[candidate] & CLOSING) == 0
    chosen = torch.where(valid, torch.arange(rows, device=random.device), valid.to(torch.uint8).argmax())
    return slots[chosen]


def n_step_returns(
    slots: Tensor, length: int, reward: Tensor, flags: Tensor, gamma_powers: Tensor, final: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (reward, discount, successor) of the windows at `slots`, as kernels.n_step_returns."""
    n = gamma_powers.shape[0] - 1
    base = slots // length * length
    offsets = torch.arange(n, device=slots.device)
    window = ((slots - base).unsqueeze(1) + offsets).remainder_(length).add_(base.unsqueeze(1))
    flag = flags[window]
    stop = (flag & CLOSING).bool()
    stop[:, 1:] |= (flag[:, :-1] & (TERMINATED | TRUNCATED)).bool()
    counted = stop.logical_not_().to(torch.uint8).cumprod(1, dtype=torch.int64)  # [B, n]
    steps = counted.sum(1)
    total = (reward[window] * counted * gamma_powers[:n]).sum(1)
    ended = ((flag & final).bool() & counted.bool()).any(1)
    discount = gamma_powers[steps].masked_fill_(ended, 0.0)
    return total.float(), discount.float(), (slots - base + steps).remainder_(length).add_(base)


def frame_stacks(slots: Tensor, length: int, flags: Tensor, stack: int) -> Tensor:
    """Return the slots of the frames that form the stacks at `slots`, [B, stack], oldest first."""
    base = slots // length * length
    slot, newest_first = slots, [slots]
    for _ in range(stack - 1):
        before = (slot - base - 1).remainder(length) + base
        slot = torch.where((flags[slot] & STACK_START).bool(), slot, before)
        newest_first.append(slot)
    return torch.stack(newest_first[::-1], 1)
