"""Whatever arrays a backend returns become `Obs`: one float32 vector, or one image, channels first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from troop.core.env import OBS, Continuous, Field, Obs
from troop.core.errors import BadInput
from troop.envs.images import WIDEST_PLANES, check_image, planes_of, symbols_to_planes, to_planes


@dataclass(frozen=True)
class Leaf:
    """One array of the backend: where it sits, what it becomes, and under which name."""

    path: tuple[str | int, ...]
    shape: tuple[int, ...]  # of one row, without the rows' axis
    kind: Literal["vector", "one_hot", "image", "symbols"] = "vector"
    name: str = OBS
    choices: int = 0  # of a one_hot leaf
    first: int = 0  # the smallest value of a one_hot leaf
    skip: int = 0  # leading columns of a vector that another leaf already shows
    dtype: torch.dtype = torch.uint8  # of an image
    stack: int = 1  # how many frames an image holds, oldest first
    symbols: tuple[int, ...] = ()  # how many values each channel of a grid of symbols has

    @property
    def drawn(self) -> bool:
        """Whether this leaf is a picture."""
        return self.kind in ("image", "symbols")

    @property
    def planes(self) -> tuple[int, int, int]:
        """Channels, height and width of a picture."""
        return (sum(self.symbols), self.shape[0], self.shape[1]) if self.symbols else planes_of(self.shape)

    @property
    def width(self) -> int:
        """Columns this leaf takes in its vector, or planes in its picture."""
        if self.drawn:
            return self.planes[0]
        return self.choices if self.kind == "one_hot" else int(np.prod(self.shape, dtype=int)) - self.skip


class Packer:
    """Concatenates leaves of the same name in their order; float64 becomes float32 once, here."""

    def __init__(self, leaves: Sequence[Leaf], id: str) -> None:
        _check(leaves, id)
        self._groups: dict[str, list[Leaf]] = {}
        for leaf in leaves:
            self._groups.setdefault(leaf.name, []).append(leaf)
        self.fields: dict[str, Field] = {name: _field(group) for name, group in self._groups.items()}

    def pack(self, raw: Any, device: torch.device) -> Obs:  # noqa: ANN401 - nested arrays of any backend
        """The observations of all rows in `raw`; never writes to `raw`, may share its memory."""
        return {name: self._join(raw, group).to(device) for name, group in self._groups.items()}

    def _join(self, raw: Any, group: list[Leaf]) -> Tensor:  # noqa: ANN401
        if group[0].drawn:
            return torch.from_numpy(_draw(raw, group))
        if len(group) == 1 and group[0].kind != "one_hot":
            leaf = group[0]
            array = _find(raw, leaf.path)
            flat = array.reshape(len(array), -1)[:, leaf.skip :]
            return torch.from_numpy(np.ascontiguousarray(flat, dtype=np.float32))
        arrays = [_find(raw, leaf.path) for leaf in group]
        joined = np.empty((len(arrays[0]), sum(leaf.width for leaf in group)), dtype=np.float32)
        start = 0
        for leaf, array in zip(group, arrays, strict=True):
            part = joined[:, start : start + leaf.width]
            start += leaf.width
            if leaf.kind == "one_hot":
                part[:] = array.reshape(-1, 1) == np.arange(leaf.first, leaf.first + leaf.choices)
            else:
                part[:] = array.reshape(len(array), -1)[:, leaf.skip :]
        return torch.from_numpy(joined)


def name_leaves(leaves: Sequence[Leaf]) -> list[Leaf]:
    """With an image among them, the image is `obs`, and so are choices, as planes of it.

    Whatever else comes with an image keeps the name it has at the backend.
    """
    image = next((leaf for leaf in leaves if leaf.drawn and leaf.name == OBS), None)
    if image is None:
        return list(leaves)
    others = [leaf for leaf in leaves if leaf is not image]
    joins = [x.name != OBS or (x.kind == "one_hot" and x.choices <= WIDEST_PLANES) for x in others]
    named = [x if join else replace(x, name=_dotted(x.path)) for x, join in zip(others, joins, strict=True)]
    return [image, *named]


def _check(leaves: Sequence[Leaf], id: str) -> None:
    for leaf in leaves:
        if leaf.drawn:
            check_image(leaf.shape, id)
    if not any(leaf.name == OBS and leaf.width > 0 for leaf in leaves):
        came = ", ".join(f"{_dotted(leaf.path) or 'obs'} {leaf.shape}" for leaf in leaves) or "nothing"
        raise BadInput(
            f"Env '{id}' observes {came}: nothing a policy could learn from; "
            "Troop expects numbers, choices or an image."
        )


def _draw(raw: Any, group: list[Leaf]) -> np.ndarray:  # noqa: ANN401
    """An image, and a choice beside it as one plane a value, all bright where it is taken."""
    image = group[0]
    array = _find(raw, image.path)
    drawn = symbols_to_planes(array, image.symbols) if image.kind == "symbols" else to_planes(array)
    dtype = np.uint8 if image.dtype == torch.uint8 else np.float32
    if len(group) == 1:
        return np.ascontiguousarray(drawn, dtype=dtype)
    joined = np.empty((len(drawn), sum(leaf.width for leaf in group), *drawn.shape[2:]), dtype=dtype)
    joined[:, : image.width] = drawn
    start = image.width
    for leaf in group[1:]:
        taken = _find(raw, leaf.path).reshape(-1, 1) == np.arange(leaf.first, leaf.first + leaf.choices)
        bright = 255 if dtype is np.uint8 else 1
        joined[:, start : start + leaf.width] = taken[:, :, None, None] * bright
        start += leaf.width
    return joined


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in path)


def _field(group: list[Leaf]) -> Field:
    width = sum(leaf.width for leaf in group)
    if group[0].drawn:
        return Field((width, *group[0].planes[1:]), group[0].dtype, group[0].stack)
    return Field((width,))


def _find(raw: Any, path: tuple[str | int, ...]) -> Any:  # noqa: ANN401
    for part in path:
        if isinstance(raw, np.ndarray):  # EnvPool unwraps a dictionary of one array
            break
        raw = raw[part]
    return raw


@dataclass(frozen=True)
class Bounds:
    """The box a policy's [-1, 1] is stretched to, in the dtype the backend wants."""

    low: np.ndarray
    high: np.ndarray

    @staticmethod
    def of(low: np.ndarray, high: np.ndarray) -> Bounds:
        """Flat bounds; where a backend names none, [-1, 1] goes through unchanged."""
        low, high = np.asarray(low).reshape(-1), np.asarray(high).reshape(-1)
        free = ~((np.abs(low.astype(np.float64)) < 1e30) & (np.abs(high.astype(np.float64)) < 1e30))
        return Bounds(np.where(free, -1, low).astype(low.dtype), np.where(free, 1, high).astype(low.dtype))

    def stretch(self, action: Tensor) -> np.ndarray:
        """Actions clipped to [-1, 1] and rescaled; -1 and 1 reach the bounds exactly."""
        given = action.detach().cpu().numpy().astype(self.low.dtype, copy=True)
        np.clip(given, -1, 1, out=given)
        if not self._unit:
            # Written as a weighted mean so that both ends come out without rounding.
            given = 0.5 * (1 - given) * self.low + 0.5 * (1 + given) * self.high
        return given

    @property
    def action(self) -> Continuous:
        """What a spec says of such actions."""
        return Continuous(self.low.size, tuple(map(float, self.low)), tuple(map(float, self.high)))

    @property
    def _unit(self) -> bool:
        return bool((self.low == -1).all() and (self.high == 1).all())


def spread(seed: int) -> int:
    """A 31-bit seed far from those of neighbouring seeds: backends give env i the seed plus i."""
    state = np.random.SeedSequence(seed % 2**64).generate_state(1)[0]
    return int(state) % (2**31 - 2**20)
