"""The loops of kernels.py as tensor operations, for replays on a GPU: no step waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from troop.replay.storage.kernels import CLOSING, FRESH, TERMINATED, TRUNCATED

TRIES = 4


def draw(
    random: Tensor, share: Tensor, heads: Tensor, length: int, span: int, margin: int, flags: Tensor
) -> Tensor:
    """Rows that are transitions, uniformly, as kernels.draw; one of closing rows only repeats another's."""
    wrapped = heads > length
    free = (heads.clamp_max(length) - span - wrapped * margin).clamp_min_(0)
    ends = free.cumsum(0)
    rows = random.shape[0]
    step = (torch.arange(rows, device=random.device, dtype=torch.float64) + share) * (ends[-1] / rows)
    stream = torch.searchsorted(ends, step.long().minimum(ends[-1] - 1), right=True)
    oldest = torch.where(wrapped, heads - length + margin, 0)[stream]
    place = torch.zeros_like(random)
    found = torch.zeros_like(random, dtype=torch.bool)
    for again in range(TRIES):
        number = random if again == 0 else (random * (2 * again + 1) + 7919 * again) & 0x3FFFFFFFFFFFFFFF
        at = stream * length + (oldest + ((number >> 30) * free[stream] >> 32)) % length
        place = torch.where(found, place, at)
        found |= (flags[at] & CLOSING) == 0
    chosen = torch.where(found, torch.arange(rows, device=random.device), found.to(torch.uint8).argmax())
    return place[chosen]


def windows(
    place: Tensor, length: int, reward: Tensor, flags: Tensor, powers: Tensor, final: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(reward, discount, successor) of the windows that start at `place`, as kernels.windows."""
    n = powers.shape[0] - 1
    base = place // length * length
    ahead = torch.arange(n, device=place.device)
    window = ((place - base).unsqueeze(1) + ahead).remainder_(length).add_(base.unsqueeze(1))
    flag = flags[window]
    stop = (flag & CLOSING).bool()
    stop[:, 1:] |= (flag[:, :-1] & (TERMINATED | TRUNCATED)).bool()
    counted = stop.logical_not_().to(torch.uint8).cumprod(1, dtype=torch.int64)  # [B, n]
    steps = counted.sum(1)
    total = (reward[window] * counted * powers[:n]).sum(1)
    ended = ((flag & final).bool() & counted.bool()).any(1)
    discount = powers[steps].masked_fill_(ended, 0.0)
    return total.float(), discount.float(), (place - base + steps).remainder_(length).add_(base)


def frame_stacks(place: Tensor, length: int, flags: Tensor, stack: int) -> Tensor:
    """Rows whose frames make up the stacks at `place`, [B, stack], oldest first, as kernels.histories."""
    base = place // length * length
    at, found = place, [place]
    for _ in range(stack - 1):
        before = (at - base - 1).remainder(length) + base
        at = torch.where((flags[at] & FRESH).bool(), at, before)
        found.append(at)
    return torch.stack(found[::-1], 1)
