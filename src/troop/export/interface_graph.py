"""The conversions of envs/interface.py as torch operations, so that an exported graph contains them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from troop.core.env import OBS, PRIVILEGED, Continuous, Obs
from troop.envs.actions import ActionBounds, DiscreteActions
from troop.envs.frames import LUMA, FrameConfig
from troop.envs.images import channels_first_shape, is_channels_last
from troop.envs.interface import EnvInterface
from troop.envs.observations import ObsArray


@dataclass(frozen=True)
class TensorSpec:
    """A named input or output of an exported graph; `shape` is that of one row."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: Literal["observation", "action", "reward", "started", "state"]
    low: int = 0  # of integers: the smallest value
    high: int = 255  # of integers: the largest value


class InterfaceGraph:
    """Reads observations as the env returns them and writes actions as it takes them, [rows, ...]."""

    def __init__(self, interface: EnvInterface) -> None:
        self.interface = interface
        converter = interface.converter
        groups = {} if converter is None else converter.groups
        self._groups = {name: group for name, group in groups.items() if name != PRIVILEGED}

    @property
    def inputs(self) -> list[TensorSpec]:
        """The observations: arrays of the backend, or named rows if the backend has no format of its own."""
        if self._groups:
            return [_array_input(array) for group in self._groups.values() for array in group]
        fields = self.interface.spec.obs
        names = self.interface.spec.shapes(privileged=False)
        return [TensorSpec(name, fields[name].shape, fields[name].dtype, "observation") for name in names]

    @property
    def output(self) -> TensorSpec:
        """The action."""
        actions, action = self.interface.actions, self.interface.spec.action
        if isinstance(actions, ActionBounds):
            shape = (actions.low.size,) if actions.shape == (-1,) else actions.shape
            return TensorSpec("action", shape, _torch_dtype(actions.low.dtype), "action")
        if isinstance(actions, DiscreteActions):
            return TensorSpec("action", actions.shape, _torch_dtype(actions.dtype), "action")
        if isinstance(action, Continuous):
            return TensorSpec("action", (action.size,), torch.float32, "action")
        return TensorSpec("action", (), torch.int64, "action")

    def read(self, arrays: Obs) -> Obs:
        """Return named rows for the arrays by the names of `inputs`; frames are not stacked yet."""
        if not self._groups:
            return arrays
        rows = {name: _join(arrays, group) for name, group in self._groups.items()}
        if hide := self.interface.hide:
            rows[OBS] = rows[OBS][:, [k for k in range(rows[OBS].shape[1]) if k not in hide]]
        return {k: _convert_frames(x, self.interface.frames) if x.dim() == 4 else x for k, x in rows.items()}

    def write(self, action: Tensor) -> Tensor:
        """Return actions of the policy in the units, dtype and shape of the env."""
        actions, rows = self.interface.actions, action.shape[0]
        if isinstance(actions, ActionBounds):
            low, high = torch.from_numpy(actions.low), torch.from_numpy(actions.high)
            x = action.to(low.dtype).clamp(-1, 1)
            return (0.5 * (1 - x) * low + 0.5 * (1 + x) * high).reshape(rows, *self.output.shape)
        if isinstance(actions, DiscreteActions):
            if actions.factors:
                action = _unravel(action, actions.factors).reshape(rows, *actions.shape)
            return (action + torch.from_numpy(actions.start.copy())).to(_torch_dtype(actions.dtype))
        return action.clamp(-1, 1) if isinstance(self.interface.spec.action, Continuous) else action


def _array_input(array: ObsArray) -> TensorSpec:
    name = ".".join(("obs", *map(str, array.path)))
    if array.encoding == "one_hot":
        high = array.min_value + array.choices - 1
        return TensorSpec(name, array.shape, torch.int64, "observation", array.min_value, high)
    if array.encoding == "categorical_image":
        return TensorSpec(name, array.shape, torch.int64, "observation", 0, min(array.channel_choices) - 1)
    dtype: torch.dtype = getattr(torch, array.dtype) if array.is_image else torch.float32
    return TensorSpec(name, array.shape, dtype, "observation")


def _convert_frames(images: Tensor, frames: FrameConfig) -> Tensor:
    """Return what `FrameConfig.convert` does to images uint8 [rows, C, H, W]."""
    if frames.gray and images.shape[1] == 3:
        x = (images.float() * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
    elif frames.shrink > 1:
        x = images.float()
    else:
        return images
    return (functional.avg_pool2d(x, frames.shrink) if frames.shrink > 1 else x).round().to(torch.uint8)


def _join(arrays: Obs, group: list[ObsArray]) -> Tensor:
    """Return the columns of vectors [rows, n], or an image [rows, C, H, W] with one-hot channels after it."""
    values = [arrays[_array_input(array).name] for array in group]
    if not group[0].is_image:
        parts = [_columns(x, array) for x, array in zip(values, group, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
    image = _pixels(values[0], group[0])
    if len(group) == 1:
        return image
    maximum = 255 if image.dtype == torch.uint8 else 1
    size = image.shape[-2:]
    channels = [
        (_columns(x, array) * maximum).to(image.dtype)[:, :, None, None].expand(-1, -1, *size)
        for x, array in zip(values[1:], group[1:], strict=True)
    ]
    return torch.cat([image, *channels], 1)


def _columns(x: Tensor, array: ObsArray) -> Tensor:
    """Return float32 [rows, width] of a vector or of a discrete value."""
    if array.encoding == "one_hot":
        values = torch.arange(array.min_value, array.min_value + array.choices)
        return (x.reshape(-1, 1) == values).float()
    return x.reshape(x.shape[0], -1)[:, array.skip_columns :].float()


def _pixels(x: Tensor, array: ObsArray) -> Tensor:
    """Return [rows, C, H, W] of an image as the backend has it."""
    if array.encoding == "categorical_image":
        planes = [x[..., k, None] == torch.arange(n) for k, n in enumerate(array.channel_choices)]
        return torch.cat(planes, -1).movedim(-1, 1).to(torch.uint8) * 255
    if len(array.shape) > 2 and is_channels_last(array.shape):
        x = x.movedim(-1, -3)
    return x.reshape(x.shape[0], *channels_first_shape(array.shape)).to(_array_input(array).dtype)


def _unravel(index: Tensor, factors: tuple[int, ...]) -> Tensor:
    """Return the choices [rows, factors] of combinations [rows]; the last factor varies fastest."""
    choices: list[Tensor] = []
    for count in reversed(factors):
        choices.append(index % count)
        index = index.div(count, rounding_mode="floor")
    return torch.stack(choices[::-1], -1)


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, dtype)).dtype
