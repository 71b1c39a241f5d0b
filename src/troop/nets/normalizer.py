"""Running mean and standard deviation of observations."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Normalizer(nn.Module):
    """(x - mean) / (std + eps), column-wise; `update` is explicit, `forward` has no side effect.

    eps is large on purpose (0.01): a column that has hardly moved yet must not be blown up.
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
        # What forward needs, kept ready: x * scale + offset is one fused operation.
        self.register_buffer("scale", torch.full((columns,), 1 / (1 + eps)))
        self.register_buffer("offset", torch.zeros(columns))

    def forward(self, x: Tensor) -> Tensor:
        """[B, columns] -> [B, columns], the first columns only if x is narrower (a policy's view)."""
        columns = x.shape[-1]
        return torch.addcmul(self.offset[:columns], x, self.scale[:columns])

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Merge the rows of x [B, columns] into the statistics (Chan et al. 1979).

        The squared difference of means is that *before* the mean moves; taking it afterwards, as the
        reference does, underestimates the variance as long as batches are not small against the count.
        """
        var, mean = torch.var_mean(x.to(self.mean.dtype), 0, correction=0)
        rows = x.shape[0]
        share = rows / self.count.add_(rows)
        delta = mean - self.mean
        merged = torch.lerp(self.var, var + delta.square() * (1 - share), share)
        # Where float32 overflows (observations of 1e30) the column keeps what it knew.
        sound = merged - merged == 0
        torch.where(sound, torch.addcmul(self.mean, delta, share), self.mean, out=self.mean)
        torch.where(sound, merged, self.var, out=self.var)
        torch.div(1.0, self.var.sqrt().add_(self.eps), out=self.scale)
        torch.mul(self.mean, self.scale, out=self.offset).neg_()
