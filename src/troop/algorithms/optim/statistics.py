"""Running statistics that all copies of a learner share."""

from __future__ import annotations

import torch
from torch import Tensor

from troop.core.peers import Moments, Peers
from troop.nets.normalizer import Normalizer


def merge_batch(
    normalizer: Normalizer, x: Tensor, weight: int, peers: Peers, name: str = "observations"
) -> None:
    """Merge the rows of x [B, columns], counted `weight` times, into the statistics `name` of all copies."""
    mean, var = normalizer.update(x, weight)
    batch = Moments(torch.tensor(float(len(x) * weight), device=mean.device), mean, var)
    own = Moments(normalizer.count, normalizer.mean, normalizer.var)
    if (shared := peers.merge_moments(name, batch, own)) is not None:
        normalizer.load(shared.count, shared.mean, shared.var)
