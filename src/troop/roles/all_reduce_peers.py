"""AllReducePeers: copies of a learner that average their gradients in every step (data parallelism)."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from troop.core.group import Group
from troop.core.peers import MakeOptimizer, Moments

NO_SAMPLES = Moments(torch.zeros(()), torch.zeros(()), torch.zeros(()), torch.zeros(()))


class AllReducePeers:
    """The members of a group make the same optimizer steps, so that their weights stay bit-equal."""

    def __init__(self, group: Group) -> None:
        self.group, self.size = group, group.size

    def optimizer(self, parameters: list[nn.Parameter], make: MakeOptimizer) -> Optimizer:
        """Return `make(parameters)`: equal gradients make equal steps."""
        return make(parameters)

    def average_gradient(self, gradient: Tensor, loss: Tensor) -> None:
        """Average the gradient; its first element becomes NaN on all members if a loss is not finite."""
        if self.size == 1:
            return
        gradient[:1].add_(loss.detach() * 0)
        self.group.all_reduce(gradient).div_(self.size)

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of x over all members."""
        return x if self.size == 1 else self.group.all_reduce(x.clone()) / self.size

    def merge_moments(self, name: str, batch: Moments, own: Moments) -> Moments | None:
        """Return the statistics of rank 0 merged with the batches of the others, in the order of ranks."""
        if self.size == 1:
            return None
        return merge_members(self.group, batch, own)

    def period_elapsed(self, updates: int, period: int) -> bool:
        """Return whether `updates`, equal on all members, is a multiple of `period`."""
        return updates % period == 0


class ReplayPeers(AllReducePeers):
    """Shares the statistics of replays, whose numbers of `merge_moments` calls may differ between members.

    Batches are kept until `exchange`, which all members call equally often.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._kept = NO_SAMPLES

    def merge_moments(self, name: str, batch: Moments, own: Moments) -> Moments | None:
        """Keep the batch for the next exchange; return None."""
        self._kept = self._kept.merge(batch.to("cpu"))
        return None

    def exchange(self, own: Moments) -> Moments:
        """Return `own` of rank 0, which includes what it kept, merged with what the others kept."""
        kept, self._kept = self._kept, NO_SAMPLES
        return own if self.size == 1 else merge_members(self.group, kept, own)


def merge_members(group: Group, batch: Moments, own: Moments) -> Moments:
    """Collective. Return the statistics `own` of rank 0, which include its batch, and the others' batches."""
    device, dtype = own.mean.device, own.mean.dtype
    gathered = group.all_gather(torch.cat((_flat(own), _flat(batch))))
    width = gathered.shape[1] // 2
    parts = [gathered[0, :width], *gathered[1:, width:]]
    merged = reduce(Moments.merge, (_from_flat(part, own) for part in parts))
    return merged.to(device, dtype)


def _flat(moments: Moments) -> Tensor:
    """Return count, mean, variance and largest magnitude as one vector in double precision."""
    parts = [x for x in moments.as_dict().values() if x is not None]
    return torch.cat([x.detach().double().reshape(-1) for x in parts]).cpu()


def _from_flat(flat: Tensor, like: Moments) -> Moments:
    fields, start = {}, 0
    for name, x in like.as_dict().items():
        if x is not None:
            fields[name] = flat[start : start + x.numel()].view(x.shape)
            start += x.numel()
    return Moments(**fields)
