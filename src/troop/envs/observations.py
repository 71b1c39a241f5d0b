"""Whatever arrays a backend returns become `Obs`: one float32 vector, or one image as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from troop.core.env import OBS, Continuous, Field, Obs


@dataclass(frozen=True)
class Leaf:
    """One array of the backend: where it sits, what it becomes, and under which name."""

    path: tuple[str | int, ...]
    shape: tuple[int, ...]  # of one row, without the rows' axis
    kind: Literal["vector", "one_hot", "image"] = "vector"
    name: str = OBS
    choices: int = 0  # of a one_hot leaf
    first: int = 0  # the smallest value of a one_hot leaf
    skip: int = 0  # leading columns of a vector that another leaf already shows

    @property
    def width(self) -> int:
        """Columns this leaf takes in its vector."""
        return self.choices if self.kind == "one_hot" else int(np.prod(self.shape, dtype=int)) - self.skip


class Packer:
    """Concatenates leaves of the same name in their order; float64 becomes float32 once, here."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._groups: dict[str, list[Leaf]] = {}
        for leaf in leaves:
            self._groups.setdefault(leaf.name, []).append(leaf)
        self.fields: dict[str, Field] = {name: _field(group) for name, group in self._groups.items()}

    def pack(self, raw: Any, device: torch.device) -> Obs:  # noqa: ANN401 - nested arrays of any backend
        """The observations of all rows in `raw`; never writes to `raw`, may share its memory."""
        return {name: self._join(raw, group).to(device) for name, group in self._groups.items()}

    def _join(self, raw: Any, group: list[Leaf]) -> Tensor:  # noqa: ANN401
        if len(group) == 1 and group[0].kind != "one_hot":
            leaf = group[0]
            array = _find(raw, leaf.path)
            if leaf.kind == "image":
                return torch.from_numpy(np.ascontiguousarray(array))
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
    """With one image among them, the image is `obs` and the rest keep the names they have at the backend."""
    images = [leaf for leaf in leaves if leaf.kind == "image" and leaf.name == OBS]
    if not images:
        return list(leaves)
    others = [leaf for leaf in leaves if leaf is not images[0]]
    renamed = [
        Leaf(
            x.path, x.shape, x.kind, x.name if x.name != OBS else _dotted(x.path), x.choices, x.first, x.skip
        )
        for x in others
    ]
    return [images[0], *renamed]


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in path)


def _field(group: list[Leaf]) -> Field:
    if group[0].kind == "image":
        return Field(group[0].shape, torch.uint8)
    return Field((sum(leaf.width for leaf in group),))


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
