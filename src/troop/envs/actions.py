"""Conversion of actions to what a backend takes: boxes with bounds, one or several discrete values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from troop.core.env import Continuous, Discrete
from troop.core.errors import BadInput


@dataclass(frozen=True)
class ActionBounds:
    """Flat lower and upper bounds of a continuous action space, in the dtype of the backend."""

    low: np.ndarray
    high: np.ndarray
    shape: tuple[int, ...] = (-1,)  # of one action in the backend

    @staticmethod
    def from_box(low: np.ndarray, high: np.ndarray) -> ActionBounds:
        """Flatten the bounds of a Box; a dimension without finite bounds gets [-1, 1], i.e. no rescaling."""
        shape, low, high = np.shape(low), np.asarray(low).reshape(-1), np.asarray(high).reshape(-1)
        # Some backends write "unbounded" as the largest float instead of infinity.
        free = ~((np.abs(low.astype(np.float64)) < 1e30) & (np.abs(high.astype(np.float64)) < 1e30))
        return ActionBounds(
            np.where(free, -1, low).astype(low.dtype), np.where(free, 1, high).astype(low.dtype), shape
        )

    def rescale(self, action: np.ndarray) -> np.ndarray:
        """Clip `action` to [-1, 1] and rescale it to the bounds; -1 and 1 map to them without rounding."""
        scaled = action.astype(self.low.dtype, copy=True)
        np.clip(scaled, -1, 1, out=scaled)
        if not self._is_unit_box:
            # A weighted mean of both bounds is exact at -1 and 1.
            scaled = 0.5 * (1 - scaled) * self.low + 0.5 * (1 + scaled) * self.high
        return scaled

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """Return actions [N, size] in the units and the shape of the backend, [N, *shape]."""
        return self.rescale(action).reshape(len(action), *self.shape)

    @property
    def spec(self) -> Continuous:
        """The action space for `EnvSpec.action`."""
        return Continuous(self.low.size, tuple(map(float, self.low)), tuple(map(float, self.high)))

    @property
    def _is_unit_box(self) -> bool:
        return bool((self.low == -1).all() and (self.high == 1).all())


@dataclass(frozen=True)
class DiscreteActions:
    """Discrete values from `start` on, or arrays of discrete values with `factors` choices each."""

    choices: int
    start: np.ndarray  # the backend's number for choice 0, [] or `shape`
    dtype: np.dtype
    factors: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """Return action indices [N] as the backend takes them, [N, *shape]."""
        index = action
        if self.factors:
            index = np.stack(np.unravel_index(index, self.factors), -1).reshape(len(index), *self.shape)
        actions: np.ndarray = (index + self.start).astype(self.dtype)
        return actions

    @property
    def spec(self) -> Discrete:
        """The action space for `EnvSpec.action`."""
        return Discrete(self.choices, self.factors)


ActionConverter = ActionBounds | DiscreteActions


def convert_action_space(space: Any, id: str, dtype: Any = np.int64) -> ActionConverter:  # noqa: ANN401
    """Return the converter of a Gymnasium action space; discrete actions become `dtype`.

    A MultiDiscrete or MultiBinary space becomes one discrete action for each combination of its values.
    Raises BadInput for an unsupported space.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return DiscreteActions(int(space.n), np.asarray(space.start), np.dtype(dtype))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        choices, start = np.full(space.shape, 2), np.zeros(space.shape, np.int64)
        if isinstance(space, spaces.MultiDiscrete):
            choices, start = np.asarray(space.nvec), np.asarray(space.start)
        factors = tuple(int(n) for n in np.ravel(choices))
        if math.prod(factors) < 2**62:
            return DiscreteActions(math.prod(factors), start, space.dtype, factors, tuple(space.shape))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return ActionBounds.from_box(space.low, space.high)
    raise BadInput(
        f"The action space of env '{id}' is {space}; Troop supports one floating-point Box, or one Discrete, "
        "MultiDiscrete or MultiBinary space."
    )
