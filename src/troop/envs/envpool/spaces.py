"""Translation of EnvPool's observation specs to `ObsArray`s."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from troop.core.env import OBS, PRIVILEGED
from troop.envs.images import looks_like_image
from troop.envs.observations import ObsArray

MAX_ONE_HOT = 1024  # an integer observation with more values than this is a number, not a category

# Modules whose stacked images satisfy `Field.stack`; verified row by row for Atari. VizDoom stacks frames as
# well, but occasionally a row does not continue the frames of the row before it.
STACKED_MODULES = ("envpool.atari",)

# MiniGrid describes a cell by object (unseen, empty, wall, floor, door, key, ball, box, goal, lava, agent),
# colour and state (open, closed, locked): the number of values of each.
MINIGRID_CHANNELS = (11, 6, 3)


def observation_arrays(spec: Any, module: str) -> list[ObsArray]:  # noqa: ANN401 - classes made at run time
    """Return the observation arrays of a task in the order in which EnvPool declares them."""
    specs = {key: array for key, array in spec.state_array_spec.items() if key.split(":")[0] == OBS}
    arrays = [_array(key, array, only_array=len(specs) == 1) for key, array in specs.items()]
    if module in STACKED_MODULES:
        frames = int(spec.config.stack_num)
        return [replace(x, stack=frames) if x.encoding == "image" else x for x in arrays]
    if module == "envpool.minigrid":
        return [_categorical(x) for x in arrays if not x.path or x.path[0] not in omitted_keys(module)]
    return arrays


def omitted_keys(module: str) -> tuple[str, ...]:
    """Return the keys of observations that no network in Troop reads.

    MiniGrid's mission is a text; most tasks have only one.
    """
    return ("mission",) if module == "envpool.minigrid" else ()


def _categorical(array: ObsArray) -> ObsArray:
    if array.encoding != "image":
        return array
    return replace(array, encoding="categorical_image", channel_choices=MINIGRID_CHANNELS)


def _array(key: str, spec: Any, only_array: bool) -> ObsArray:  # noqa: ANN401 - EnvPool's ArraySpec
    backend_name = key.partition(":")[2]
    path = tuple(backend_name.split(".")) if backend_name else ()
    shape = tuple(int(size) for size in spec.shape if size != -1)
    name = PRIVILEGED if backend_name == "privileged_state" else OBS
    if looks_like_image(shape, np.dtype(spec.dtype), spec.minimum, spec.maximum, only_array):
        return ObsArray(path, shape, "image", name, dtype="uint8" if spec.dtype == np.uint8 else "float32")
    if np.issubdtype(spec.dtype, np.integer) and shape == ():
        low, high = int(np.min(spec.minimum)), int(np.max(spec.maximum))
        if 0 <= high - low < MAX_ONE_HOT:
            return ObsArray(path, shape, "one_hot", name, choices=high - low + 1, min_value=low)
    return ObsArray(path, shape, "vector", name)
