"""Conversion of image observations to channels-first arrays [N, C, H, W]: uint8 stays, else float32."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from troop.core.errors import BadInput

MAX_ONE_HOT_CHANNELS = 32  # a discrete value with more choices than this is not added to an image as channels
MIN_IMAGE_SIDE = 5  # Catch is 10 x 5; smaller grids of numbers are treated as tables


def looks_like_image(
    shape: Sequence[int], dtype: np.dtype, low: ArrayLike, high: ArrayLike, only_array: bool
) -> bool:
    """Return whether an array of this shape (without N), dtype and bounds is treated as an image.

    A uint8 array of two or more axes is an image. So is a boolean array or an array bounded by 0 and 1 of two
    to four axes, if it is the only array of the observation and no side is shorter than `MIN_IMAGE_SIDE`.
    """
    if len(shape) < 2 or dtype == np.uint8:
        return len(shape) >= 2
    is_unit_range = dtype == np.bool_ or bool(np.all(np.equal(low, 0)) and np.all(np.equal(high, 1)))
    if not (only_array and is_unit_range and len(shape) <= 4):
        return False
    return min(channels_first_shape(tuple(shape))[1:]) >= MIN_IMAGE_SIDE


def channels_first_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (C, H, W) for [H, W], [H, W, C], [C, H, W], or a stack [T, ...] of three-axis images."""
    if len(shape) == 2:
        return (1, *shape)
    frames, (a, b, c) = math.prod(shape[:-3]), shape[-3:]
    return (frames * c, a, b) if is_channels_last(shape) else (frames * a, b, c)


def to_channels_first(array: np.ndarray) -> np.ndarray:
    """Convert images [N, ...] to [N, C, H, W]; shares memory with `array` where possible."""
    shape = array.shape[1:]
    if len(shape) > 2 and is_channels_last(shape):
        array = np.moveaxis(array, -1, -3)
    return array.reshape(len(array), *channels_first_shape(shape))


def one_hot_channels(array: np.ndarray, num_values: Sequence[int]) -> np.ndarray:
    """One-hot encode a categorical image [N, H, W, K] as uint8 [N, sum(num_values), H, W] of 0 and 255.

    Channel k of `array` has values in 0..num_values[k]-1.
    """
    planes = [array[..., k, None] == np.arange(count) for k, count in enumerate(num_values)]
    return np.moveaxis(np.concatenate(planes, axis=-1), -1, 1).astype(np.uint8) * np.uint8(255)


def check_image_shape(shape: tuple[int, ...], id: str) -> None:
    """Raise BadInput for an image of env `id` that has more than four axes or no pixels."""
    if len(shape) > 4 or math.prod(shape) == 0:
        raise BadInput(
            f"Env '{id}' has an image observation of shape {shape}; Troop supports non-empty images of shape "
            "[H, W], [H, W, C] or [C, H, W] and stacks of these."
        )


def is_channels_last(shape: tuple[int, ...]) -> bool:
    """Whether the last axis is shorter than both axes before it; if not, the first of the three is C."""
    return shape[-1] < min(shape[-3], shape[-2])
