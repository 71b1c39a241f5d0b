"""Random shifts against DrQ-v2's own formula: replication padding and a bilinear grid."""

import torch
from torch.nn import functional

from troop.functional.random_shift import random_shift


def grid_shift(images, pad, offsets):
    """DrQ-v2: pad by replication, sample a grid of pixel centres moved by whole pixels, bilinearly."""
    rows, _, side, _ = images.shape
    padded = functional.pad(images.float(), (pad,) * 4, "replicate")
    step = 2 / (side + 2 * pad)
    centres = -1 + step / 2 + step * torch.arange(side)
    grid = torch.stack((centres.expand(side, side), centres[:, None].expand(side, side)), -1)
    moved = grid.expand(rows, side, side, 2) + (offsets + pad).view(rows, 1, 1, 2) * step
    return functional.grid_sample(padded, moved, mode="bilinear", align_corners=False)


def test_equals_bilinear_sampling_of_the_padded_image():
    images = torch.randint(0, 256, (20, 3, 9, 9), dtype=torch.uint8)
    torch.manual_seed(3)
    shifted = random_shift(images, 4)
    torch.manual_seed(3)
    y, x = torch.randint(-4, 5, (2, 20, 1))
    expected = grid_shift(images, 4, torch.cat((x, y), 1))
    assert shifted.dtype == torch.uint8 and (shifted.float() - expected).abs().max() < 0.01
    assert {int(v) for v in (*y, *x)} == set(range(-4, 5))  # every offset occurs


def test_a_ramp_moves_by_the_offset_of_its_row():
    rows = torch.arange(6.0).view(1, 1, 6, 1).expand(50, 2, 6, 5)
    torch.manual_seed(0)
    moved = random_shift(rows, 2)
    offsets = moved[:, 0, 3, 0] - 3
    expected = (torch.arange(6.0) + offsets[:, None]).clamp(0, 5)
    assert torch.equal(moved, expected[:, None, :, None].expand_as(moved)) and offsets.unique().numel() == 5
