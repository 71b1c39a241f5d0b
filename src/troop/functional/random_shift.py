"""Random shifts of images, the augmentation of DrQ-v2 (Yarats et al. 2021, 2107.09645)."""

from __future__ import annotations

import torch
from torch import Tensor


def random_shift(images: Tensor, pad: int) -> Tensor:
    """Shift each image of [B, C, H, W] by up to `pad` pixels along both axes; the border is replicated.

    All channels of a row (its stacked frames) move together. DrQ-v2 pads by replication and samples a grid
    bilinearly at an offset of whole pixels, where interpolation copies pixels; this copies them directly,
    in any dtype.
    """
    rows, channels, height, width = images.shape
    offsets = torch.randint(-pad, pad + 1, (2, rows, 1), device=images.device)
    y, x = (
        (torch.arange(size, device=images.device) + offset).clamp_(0, size - 1)
        for size, offset in zip((height, width), offsets, strict=True)
    )
    index = (y.unsqueeze(-1) * width + x.unsqueeze(-2)).view(rows, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).view_as(images)
