"""Pixel control (Jaderberg et al. 2016, section 3.1): pseudo-rewards for changing the image."""

from __future__ import annotations

from torch import Tensor


def cell_grid(height: int, width: int, cells: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the number of cells and the size of a cell, (rows, columns) each, of a grid over an image.

    The grid has at most `cells` cells along each side and is central: 20 give the paper's 20x20 cells of 4x4
    pixels in the central 80x80 pixels of an image of 84x84.
    """
    sizes = [max(1, side // cells) for side in (height, width)]
    counts = [min(cells, side // size) for side, size in zip((height, width), sizes, strict=True)]
    return (counts[0], counts[1]), (sizes[0], sizes[1])


def pixel_change(image: Tensor, successor: Tensor, cells: int) -> Tensor:
    """Return the mean absolute change of each cell [N, rows, columns] between images [N, C, H, W].

    Pixels are in [0, 1]; the mean is over the channels and pixels of a cell.
    """
    height, width = image.shape[-2:]
    counts, sizes = cell_grid(height, width, cells)
    top, left = (
        (side - count * size) // 2 for side, count, size in zip((height, width), counts, sizes, strict=True)
    )
    change = (successor - image).abs().mean(-3)
    change = change[:, top : top + counts[0] * sizes[0], left : left + counts[1] * sizes[1]]
    return change.reshape(-1, counts[0], sizes[0], counts[1], sizes[1]).mean((2, 4))
