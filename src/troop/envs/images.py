"""Pictures of any backend become planes, channels first: uint8 as it comes, anything else float32."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from troop.core.errors import BadInput

WIDEST_PLANES = 32  # a choice of more values than this beside a picture is not drawn into it
SMALLEST_SIDE = 5  # Catch is 10 x 5; smaller grids of numbers are tables


def looks_like_image(
    shape: Sequence[int], dtype: np.dtype, low: ArrayLike, high: ArrayLike, alone: bool
) -> bool:
    """Whether an array is a picture: uint8 of two axes or more, or, if nothing comes with it, a 0..1 grid.

    A grid with a side of less than `SMALLEST_SIDE` is a table and stays a vector.
    """
    if len(shape) < 2 or dtype == np.uint8:
        return len(shape) >= 2
    bright = dtype == np.bool_ or bool(np.all(np.equal(low, 0)) and np.all(np.equal(high, 1)))
    return alone and bright and len(shape) <= 4 and min(planes_of(tuple(shape))[1:]) >= SMALLEST_SIDE


def planes_of(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of a picture of 2 to 4 axes; of four, the first is a history of pictures."""
    if len(shape) == 2:
        return (1, *shape)
    history, (a, b, c) = math.prod(shape[:-3]), shape[-3:]
    return (history * c, a, b) if _channels_last(shape) else (history * a, b, c)


def to_planes(array: np.ndarray) -> np.ndarray:
    """Rows of pictures [N, ...] as [N, C, H, W]; shares memory where it can."""
    shape = array.shape[1:]
    if len(shape) > 2 and _channels_last(shape):
        array = np.moveaxis(array, -1, -3)
    return array.reshape(len(array), *planes_of(shape))


def symbols_to_planes(array: np.ndarray, choices: Sequence[int]) -> np.ndarray:
    """One-hot planes [N, sum(choices), H, W], 0 or 255, of a grid [N, H, W, K] of values below choices[k]."""
    drawn = [array[..., k, None] == np.arange(values) for k, values in enumerate(choices)]
    return np.moveaxis(np.concatenate(drawn, axis=-1), -1, 1).astype(np.uint8) * np.uint8(255)


def check_image(shape: tuple[int, ...], id: str) -> None:
    """BadInput for a picture with too many axes or without pixels."""
    if len(shape) > 4 or math.prod(shape) == 0:
        raise BadInput(
            f"Env '{id}' observes an image of shape {shape}; Troop expects [H, W], [H, W, C], [C, H, W] "
            "or a history of such pictures, none of them empty."
        )


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Channels are the fewest: a first axis no longer than the last is already theirs."""
    return shape[-1] < min(shape[-3], shape[-2])
