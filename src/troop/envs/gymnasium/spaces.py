"""What Gymnasium's spaces are in our words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from troop.core.env import OBS, PRIVILEGED, Continuous, Discrete
from troop.core.errors import BadInput
from troop.envs.images import looks_like_image
from troop.envs.observations import Bounds, Leaf


def leaves_of(space: Any, id: str, path: tuple[str | int, ...] = ()) -> list[Leaf]:  # noqa: ANN401
    """The arrays of an observation space in key order; what lies under a key `privileged` keeps that name."""
    from gymnasium import spaces

    name = PRIVILEGED if path[:1] == (PRIVILEGED,) else OBS
    if isinstance(space, spaces.Dict):
        return [leaf for key in space for leaf in leaves_of(space[key], id, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [leaf for i, part in enumerate(space.spaces) for leaf in leaves_of(part, id, (*path, i))]
    if isinstance(space, spaces.Discrete):
        return [Leaf(path, (), "one_hot", name, choices=int(space.n), first=int(space.start))]
    if isinstance(space, spaces.Box) and _is_image(space, alone=not path):
        dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
        return [Leaf(path, tuple(space.shape), "image", name, dtype=dtype)]
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return [Leaf(path, tuple(space.shape), "vector", name)]
    where = "".join(f"[{part!r}]" for part in path)
    raise BadInput(
        f"Env '{id}' observes{where} a {type(space).__name__}; Troop knows numbers, choices and images."
    )


def _is_image(space: Any, alone: bool) -> bool:  # noqa: ANN401
    return looks_like_image(space.shape, space.dtype, space.low, space.high, alone)


def action_of(space: Any, id: str) -> tuple[Continuous | Discrete, Bounds | None, int]:  # noqa: ANN401
    """(action, bounds if continuous, first choice if discrete) of an action space."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n)), None, int(space.start)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        bounds = Bounds.of(space.low, space.high)
        return bounds.action, bounds, 0
    raise BadInput(f"The actions of env '{id}' are {space}; Troop knows one box of numbers or one choice.")
