"""Rescaling of continuous actions from [-1, 1] to the bounds of an env."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from troop.core.env import Continuous


@dataclass(frozen=True)
class ActionBounds:
    """Flat lower and upper bounds of a continuous action space, in the dtype of the backend."""

    low: np.ndarray
    high: np.ndarray

    @staticmethod
    def from_box(low: np.ndarray, high: np.ndarray) -> ActionBounds:
        """Flatten the bounds of a Box; a dimension without finite bounds gets [-1, 1], i.e. no rescaling."""
        low, high = np.asarray(low).reshape(-1), np.asarray(high).reshape(-1)
        # Some backends write "unbounded" as the largest float instead of infinity.
        free = ~((np.abs(low.astype(np.float64)) < 1e30) & (np.abs(high.astype(np.float64)) < 1e30))
        return ActionBounds(
            np.where(free, -1, low).astype(low.dtype), np.where(free, 1, high).astype(low.dtype)
        )

    def rescale(self, action: Tensor) -> np.ndarray:
        """Clip `action` to [-1, 1] and rescale it to the bounds; -1 and 1 map to them without rounding."""
        scaled = action.detach().cpu().numpy().astype(self.low.dtype, copy=True)
        np.clip(scaled, -1, 1, out=scaled)
        if not self._is_unit_box:
            # A weighted mean of both bounds is exact at -1 and 1.
            scaled = 0.5 * (1 - scaled) * self.low + 0.5 * (1 + scaled) * self.high
        return scaled

    @property
    def spec(self) -> Continuous:
        """The action space for `EnvSpec.action`."""
        return Continuous(self.low.size, tuple(map(float, self.low)), tuple(map(float, self.high)))

    @property
    def _is_unit_box(self) -> bool:
        return bool((self.low == -1).all() and (self.high == 1).all())
