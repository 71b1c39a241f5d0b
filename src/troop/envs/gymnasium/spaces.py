"""Translation of Gymnasium's observation spaces."""

from __future__ import annotations

from typing import Any

import numpy as np

from troop.core.env import ACTION_MASK, OBS, PRIVILEGED
from troop.core.errors import BadInput
from troop.envs.images import looks_like_image
from troop.envs.observations import ObsArray


def observation_arrays(space: Any, id: str, path: tuple[str | int, ...] = ()) -> list[ObsArray]:  # noqa: ANN401
    """Return the arrays of an observation space in the order of its keys.

    Arrays below a top-level key `privileged` or `action_mask` get that name, all others `obs`. Raises
    BadInput for an unsupported space.
    """
    from gymnasium import spaces

    name = str(path[0]) if path[:1] in ((PRIVILEGED,), (ACTION_MASK,)) else OBS
    if isinstance(space, spaces.Dict):
        return [array for key in space for array in observation_arrays(space[key], id, (*path, key))]
    if isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
        return [array for i, part in parts for array in observation_arrays(part, id, (*path, i))]
    if isinstance(space, spaces.Discrete):
        return [ObsArray(path, (), "one_hot", name, choices=int(space.n), min_value=int(space.start))]
    if isinstance(space, spaces.Box) and _is_image(space, only_array=not path):
        shape = tuple(space.shape)
        return [ObsArray(path, shape, "image", name, dtype="uint8" if space.dtype == np.uint8 else "float32")]
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return [ObsArray(path, tuple(space.shape), "vector", name)]
    position = "".join(f"[{part!r}]" for part in path)
    raise BadInput(
        f"The observation space{position} of env '{id}' is a {type(space).__name__} space; Troop supports "
        "Box, Discrete, MultiDiscrete and MultiBinary spaces, and Dict and Tuple spaces of these."
    )


def _is_image(space: Any, only_array: bool) -> bool:  # noqa: ANN401
    return looks_like_image(space.shape, space.dtype, space.low, space.high, only_array)
