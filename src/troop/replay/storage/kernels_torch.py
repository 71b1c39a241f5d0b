"""The functions of kernels.py as tensor operations, for replays on a GPU: none synchronises with the host."""

from __future__ import annotations

import torch
from torch import Tensor

from troop.replay.storage.kernels import CLOSING, STACK_START, TERMINATED, TRUNCATED

MAX_TRIES = 8  # random numbers per row of a batch


def draw_slots(
    random: Tensor, shift: Tensor, rows_written: Tensor, length: int, n: int, margin: int, flags: Tensor
) -> Tensor:
    """Draw rows that are transitions, as kernels.draw_slots; `random` [MAX_TRIES, B] is below 2^62.

    A row takes its first draw that is not a closing row. A row without one repeats a random valid row of the
    batch.
    """
    full = rows_written > length
    windows = (rows_written.clamp_max(length) - n - full * margin).clamp_min_(0)
    ends = windows.cumsum(0)
    rows = random.shape[1]
    target = (torch.arange(rows, device=random.device, dtype=torch.float64) + shift) * (ends[-1] / rows)
    stream = torch.searchsorted(ends, target.long().minimum(ends[-1] - 1), right=True)
    oldest = torch.where(full, rows_written - length + margin, 0)[stream]
    candidates = stream * length + (oldest + ((random >> 30) * windows[stream] >> 32)) % length
    valid = (flags[candidates] & CLOSING) == 0  # [MAX_TRIES, B]
    slots = candidates.gather(0, valid.to(torch.uint8).argmax(0, keepdim=True)).squeeze(0)
    found = valid.any(0)
    # Row i of the batch if it is valid, else the valid row whose rank is the lower half of its first number.
    valid_up_to = found.cumsum(0)
    rank = (random[0] & (2**30 - 1)) * valid_up_to[-1] >> 30
    substitute = torch.searchsorted(valid_up_to, rank, right=True).clamp_max_(rows - 1)
    return slots[torch.where(found, torch.arange(rows, device=random.device), substitute)]


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
