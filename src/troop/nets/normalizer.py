"""Running mean and standard deviation of observations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NORMALIZER_WARMUP = 1000  # updates in which every batch is merged
MERGE_EVERY = 10  # afterwards one batch in this many is merged, with this weight


class Normalizer(nn.Module):
    """(x - mean) / (std + eps) per column; `update` is explicit and `forward` has no side effect.

    eps is large (0.01), so that a column that is almost constant so far is not amplified.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    scale: Tensor
    offset: Tensor

    def __init__(self, columns: int, eps: float = 1e-2) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("var", torch.ones(columns))
        self.register_buffer("count", torch.zeros(()))
        # Precomputed for forward: x * scale + offset is one fused operation.
        self.register_buffer("scale", torch.full((columns,), 1 / (1 + eps)))
        self.register_buffer("offset", torch.zeros(columns))

    @staticmethod
    def merge_weight(updates: int) -> int:
        """Return the weight of the batch after `updates` updates in the statistics; 0: it is not merged.

        After the warm-up one batch hardly moves the statistics, so one in `MERGE_EVERY` stands for all.
        """
        if updates < NORMALIZER_WARMUP:
            return 1
        return MERGE_EVERY if updates % MERGE_EVERY == 0 else 0

    def forward(self, x: Tensor) -> Tensor:
        """[B, columns] -> [B, columns]; a narrower x uses the statistics of the first columns (the actor)."""
        columns = x.shape[-1]
        return torch.addcmul(self.offset[:columns], x, self.scale[:columns])

    @torch.no_grad()
    def update(self, x: Tensor, weight: int = 1) -> tuple[Tensor, Tensor]:
        """Merge the rows of x [B, columns], counted `weight` times; return their mean and variance [columns].

        The merge (Chan et al. 1979) uses the difference of means *before* the mean moves. Using the one
        after it, as the reference code does, underestimates the variance while batches are large relative to
        the count.
        """
        var, mean = torch.var_mean(x.to(self.mean.dtype), 0, correction=0)
        rows = x.shape[0] * weight
        fraction = rows / self.count.add_(rows)
        delta = mean - self.mean
        merged = torch.lerp(self.var, var + delta.square() * (1 - fraction), fraction)
        finite = merged - merged == 0  # a column that overflows float32 keeps its statistics
        torch.where(finite, torch.addcmul(self.mean, delta, fraction), self.mean, out=self.mean)
        torch.where(finite, merged, self.var, out=self.var)
        self._update_scale()
        return mean, var

    @torch.no_grad()
    def load(self, count: Tensor, mean: Tensor, var: Tensor) -> None:
        """Replace the statistics."""
        for own, x in ((self.count, count), (self.mean, mean), (self.var, var)):
            own.copy_(x)
        self._update_scale()

    def _update_scale(self) -> None:
        torch.div(1.0, self.var.sqrt().add_(self.eps), out=self.scale)
        torch.mul(self.mean, self.scale, out=self.offset).neg_()
