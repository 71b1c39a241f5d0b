"""What EnvPool's observation specs are in our words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from troop.core.env import OBS, PRIVILEGED
from troop.envs.images import looks_like_image
from troop.envs.observations import Leaf

WIDEST_ONE_HOT = 1024  # an integer observation of more values than this is a number, not a name

# Of these it was seen that each step adds one picture and that an episode opens as `Field.stack` says.
# VizDoom stacks as well, but now and then a row of it does not go on from the row before.
STACKED = ("envpool.atari",)

# MiniGrid names what it sees in a cell by kind (unseen, empty, wall, floor, door, key, ball, box, goal, lava,
# agent), colour and state (open, closed, locked).
CELL = (11, 6, 3)


def leaves_of(spec: Any, module: str) -> list[Leaf]:  # noqa: ANN401 - EnvPool's specs are made at run time
    """The arrays a task observes, in the order EnvPool declares them."""
    arrays = {key: array for key, array in spec.state_array_spec.items() if key.split(":")[0] == OBS}
    leaves = [_leaf(key, array, alone=len(arrays) == 1) for key, array in arrays.items()]
    if module in STACKED:
        frames = int(spec.config.stack_num)
        return [replace(leaf, stack=frames) if leaf.kind == "image" else leaf for leaf in leaves]
    if module == "envpool.minigrid":
        # The mission is a text: no network here reads, and most tasks have only one.
        seen = [leaf for leaf in leaves if leaf.path != ("mission",)]
        return [replace(x, kind="symbols", symbols=CELL) if x.kind == "image" else x for x in seen]
    return leaves


def _leaf(key: str, array: Any, alone: bool) -> Leaf:  # noqa: ANN401 - EnvPool's ArraySpec
    name = key.partition(":")[2]
    path = tuple(name.split(".")) if name else ()
    shape = tuple(int(size) for size in array.shape if size != -1)
    group = PRIVILEGED if name == "privileged_state" else OBS
    if looks_like_image(shape, np.dtype(array.dtype), array.minimum, array.maximum, alone):
        dtype = torch.uint8 if array.dtype == np.uint8 else torch.float32
        return Leaf(path, shape, "image", group, dtype=dtype)
    if np.issubdtype(array.dtype, np.integer) and shape == ():
        first, last = int(np.min(array.minimum)), int(np.max(array.maximum))
        if 0 <= last - first < WIDEST_ONE_HOT:
            return Leaf(path, shape, "one_hot", group, choices=last - first + 1, first=first)
    return Leaf(path, shape, "vector", group)
