"""Conversion of a backend's nested arrays to `NumPyObs`: float32 vectors and channels-first images."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from troop.core.env import OBS, PRIVILEGED, Field
from troop.core.errors import BadInput
from troop.core.numpy_env import NumPyObs
from troop.envs.images import (
    MAX_ONE_HOT_CHANNELS,
    channels_first_shape,
    check_image_shape,
    one_hot_channels,
    to_channels_first,
)


@dataclass(frozen=True)
class ObsArray:
    """One array of a backend's observation: its position there, its encoding, and its name in `Obs`.

    A `categorical_image` is a grid [H, W, K] of category indices (MiniGrid), encoded as one-hot channels.
    """

    path: tuple[str | int, ...]  # keys and indices in the nested observation
    shape: tuple[int, ...]  # of one row, without the axis of envs
    encoding: Literal["vector", "one_hot", "image", "categorical_image"] = "vector"
    name: str = OBS
    choices: int = 0  # one_hot: number of values
    min_value: int = 0  # one_hot: smallest value
    skip_columns: int = 0  # vector: leading columns to drop because another array contains them
    dtype: Literal["uint8", "float32"] = "uint8"  # image
    stack: int = 1  # image: number of frames, oldest first
    channel_choices: tuple[int, ...] = ()  # categorical_image: number of values of each channel

    @property
    def is_image(self) -> bool:
        """Whether this array becomes a channels-first image."""
        return self.encoding in ("image", "categorical_image")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the converted image."""
        if self.channel_choices:
            return (sum(self.channel_choices), self.shape[0], self.shape[1])
        return channels_first_shape(self.shape)

    @property
    def width(self) -> int:
        """Number of columns (of a vector) or channels (of an image) after conversion."""
        if self.is_image:
            return self.image_shape[0]
        if self.encoding == "one_hot":
            return self.choices
        return int(np.prod(self.shape, dtype=int)) - self.skip_columns


class ObsConverter:
    """Converts observations of a backend to `Obs`.

    Arrays that share a name are concatenated in their order. This is the only place where float64
    observations become float32.
    """

    def __init__(self, arrays: Sequence[ObsArray], id: str) -> None:
        """Raises BadInput if the arrays of env `id` contain no supported `obs`."""
        _check_supported(arrays, id)
        self.id = id
        self.groups: dict[str, list[ObsArray]] = {}
        for array in arrays:
            self.groups.setdefault(array.name, []).append(array)
        self.fields: dict[str, Field] = {name: _field(group) for name, group in self.groups.items()}

    def convert(self, raw: Any) -> NumPyObs:  # noqa: ANN401 - nested arrays of any backend
        """Convert the observations of all rows; does not modify `raw`, but may share its memory."""
        return {name: self._concatenate(raw, group) for name, group in self.groups.items()}

    def read_rows(self, raw: Any, skip: Collection[str] = ()) -> tuple[NumPyObs, bool]:  # noqa: ANN401
        """Convert one observation or a batch of them; return the rows, and whether it was one.

        Arrays with a name in `skip` are not read. Raises BadInput with the key of an array that is missing
        or has another shape.
        """
        arrays = [array for name, group in self.groups.items() if name not in skip for array in group]
        first = self._read_array(raw, arrays[0])
        single = first.shape == arrays[0].shape
        nested: dict[str | int, Any] = {}
        for array in arrays:
            values = self._read_array(raw, array)
            expected = array.shape if single else (len(first), *array.shape)
            if values.shape != expected:
                raise BadInput(
                    f"The observation{_brackets(array.path)} of env '{self.id}' has shape {values.shape}; "
                    f"expected {expected}."
                )
            _insert(nested, array.path, values[None] if single else values)
        root: Any = nested if arrays[0].path else nested[""]
        groups = {name: group for name, group in self.groups.items() if name not in skip}
        return {name: self._concatenate(root, group) for name, group in groups.items()}, single

    def _read_array(self, raw: Any, array: ObsArray) -> np.ndarray:  # noqa: ANN401
        try:
            value = _lookup(raw, array.path)
            values: np.ndarray = np.asarray(value.cpu() if hasattr(value, "cpu") else value)
        except (KeyError, IndexError, TypeError) as error:
            raise BadInput(f"The observation of env '{self.id}' has no{_brackets(array.path)}.") from error
        is_number = array.encoding == "one_hot" and not np.issubdtype(values.dtype, np.integer)
        if is_number or array.shape not in (values.shape, values.shape[1:]):
            kind = "integers " if array.encoding == "one_hot" else ""
            raise BadInput(
                f"The observation{_brackets(array.path)} of env '{self.id}' is {values.dtype} "
                f"{values.shape}; expected {kind}{array.shape}, or a batch of these."
            )
        return values

    def _concatenate(self, raw: Any, group: list[ObsArray]) -> np.ndarray:  # noqa: ANN401
        if group[0].is_image:
            return _convert_image(raw, group)
        if len(group) == 1 and group[0].encoding != "one_hot":
            values = _lookup(raw, group[0].path)
            flat = values.reshape(len(values), -1)[:, group[0].skip_columns :]
            return np.ascontiguousarray(flat, dtype=np.float32)
        parts = [_lookup(raw, array.path) for array in group]
        joined = np.empty((len(parts[0]), sum(array.width for array in group)), dtype=np.float32)
        start = 0
        for array, values in zip(group, parts, strict=True):
            columns = joined[:, start : start + array.width]
            start += array.width
            if array.encoding == "one_hot":
                columns[:] = _one_hot(values, array)
            else:
                columns[:] = values.reshape(len(values), -1)[:, array.skip_columns :]
        return joined


def assign_names(arrays: Sequence[ObsArray]) -> list[ObsArray]:
    """Decide which arrays form `obs` if one of them is an image; without an image, return them unchanged.

    The first image is `obs`, together with discrete values of at most `MAX_ONE_HOT_CHANNELS` choices, which
    become one-hot channels of it. Every other array gets the name that the backend gives it; `obs` becomes
    `env.obs`, because the image has that name.
    """
    image = next((array for array in arrays if array.is_image and array.name == OBS), None)
    if image is None:
        return list(arrays)
    named = [image]
    for array in arrays:
        if array is image:
            continue
        is_channel = array.encoding == "one_hot" and array.choices <= MAX_ONE_HOT_CHANNELS
        keeps_name = array.name != OBS or is_channel
        name = _dotted(array.path)
        named.append(array if keeps_name else replace(array, name=f"env.{name}" if name == OBS else name))
    return named


def _check_supported(arrays: Sequence[ObsArray], id: str) -> None:
    for array in arrays:
        if array.is_image:
            check_image_shape(array.shape, id)
        if array.is_image and array.name == PRIVILEGED:
            raise BadInput(
                f"The observation{_brackets(array.path)} of env '{id}' is an image; an observation for the "
                "critics alone must be a vector."
            )
    if not any(array.name == OBS and array.width > 0 for array in arrays):
        listing = ", ".join(f"{_dotted(array.path) or 'obs'} {array.shape}" for array in arrays) or "nothing"
        raise BadInput(
            f"Env '{id}' has no observation for a policy (it returns {listing}); "
            "Troop supports numbers, discrete values and images."
        )


def _convert_image(raw: Any, group: list[ObsArray]) -> np.ndarray:  # noqa: ANN401
    """Return [N, C, H, W] of the image `group[0]`, followed by one-hot channels of the other arrays.

    A one-hot channel is constant over the image: the maximum (255 or 1) for the current value, else 0.
    """
    image = group[0]
    values = _lookup(raw, image.path)
    if image.encoding == "categorical_image":
        pixels = one_hot_channels(values, image.channel_choices)
    else:
        pixels = to_channels_first(values)
    dtype = np.dtype(image.dtype)
    if len(group) == 1:
        return np.ascontiguousarray(pixels, dtype=dtype)
    joined = np.empty((len(pixels), sum(array.width for array in group), *pixels.shape[2:]), dtype=dtype)
    joined[:, : image.width] = pixels
    maximum = 255 if dtype == np.uint8 else 1
    start = image.width
    for array in group[1:]:
        one_hot = _one_hot(_lookup(raw, array.path), array)
        joined[:, start : start + array.width] = one_hot[:, :, None, None] * maximum
        start += array.width
    return joined


def _one_hot(values: np.ndarray, array: ObsArray) -> np.ndarray:
    """Return bool [N, choices]."""
    one_hot: np.ndarray = values.reshape(-1, 1) == np.arange(array.min_value, array.min_value + array.choices)
    return one_hot


def _brackets(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{part!r}]" for part in path)


def _insert(nested: dict[str | int, Any], path: tuple[str | int, ...], values: np.ndarray) -> None:
    """Store `values` at a path of nested dicts; an empty path is the key ""."""
    for part in path[:-1]:
        nested = nested.setdefault(part, {})
    nested[path[-1] if path else ""] = values


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in path)


def _field(group: list[ObsArray]) -> Field:
    width = sum(array.width for array in group)
    if group[0].is_image:
        return Field((width, *group[0].image_shape[1:]), group[0].dtype, group[0].stack)
    return Field((width,))


def _lookup(raw: Any, path: tuple[str | int, ...]) -> Any:  # noqa: ANN401
    for part in path:
        if isinstance(raw, np.ndarray):  # EnvPool replaces a dictionary of one array by the array
            break
        raw = raw[part]
    return raw
