"""Convolutional torsos: images [B, C, H, W] to feature vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

ImageShape = tuple[int, ...]  # channels, height, width
Torso = Literal["auto", "mlp", "nature", "nips", "impala", "small"]


def to_unit_range(x: Tensor) -> Tensor:
    """Convert uint8 to float32 in [0, 1]; return floats unchanged."""
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x


class ChannelsLast(nn.Sequential):
    """Layers that read images in channels-last order on a CPU: always, or only if gradients are needed.

    The first convolution's backward pass takes half of the time then. Without gradients the change of order
    takes longer than it saves, except before many 3x3 filters.
    """

    def __init__(self, *layers: nn.Module, always: bool = False) -> None:
        super().__init__(*layers)
        self.always = always

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, features]."""
        if x.device.type == "cpu" and (self.always or torch.is_grad_enabled()):
            x = x.contiguous(memory_format=torch.channels_last)
        for layer in self:
            x = layer(x)
        return x


def nips(image: ImageShape) -> nn.Sequential:
    """Mnih et al. 2013: 16 filters 8x8 stride 4, 32 filters 4x4 stride 2; a third of nature's cost."""
    return _convolutions(image, (16, 8, 4), (32, 4, 2))


def nature(image: ImageShape) -> nn.Sequential:
    """Mnih et al. 2015: 32 filters 8x8 stride 4, 64 filters 4x4 stride 2, 64 filters 3x3 stride 1."""
    return _convolutions(image, (32, 8, 4), (64, 4, 2), (64, 3, 1))


def _convolutions(image: ImageShape, *shapes: tuple[int, int, int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = image[0]
    for filters, size, stride in shapes:
        layers += [nn.Conv2d(channels, filters, size, stride), nn.ReLU(inplace=True)]
        channels = filters
    return ChannelsLast(*layers, nn.Flatten())


def small(image: ImageShape) -> nn.Sequential:
    """16, then 32 filters 3x3 with padding; stride 2 where both sides have at least 16 pixels, else 1."""
    stride = 2 if min(image[1:]) >= 16 else 1
    return nn.Sequential(
        nn.Conv2d(image[0], 16, 3, stride, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 3, stride, 1),
        nn.ReLU(inplace=True),
        nn.Flatten(),
    )


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(filters, filters, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """[B, filters, H, W] -> the same shape."""
        y: Tensor = self.second(self.first(functional.relu(x)).relu_())
        return y.add_(x)


def impala(image: ImageShape) -> nn.Sequential:
    """Espeholt et al. 2018, deep network: sections of 16, 32, 32 filters with two residual blocks each."""
    layers: list[nn.Module] = []
    channels = image[0]
    for filters in (16, 32, 32):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
        layers += [ResidualBlock(filters), ResidualBlock(filters)]
        channels = filters
    return ChannelsLast(*layers, nn.ReLU(inplace=True), nn.Flatten(), always=True)


TORSOS: dict[
    str, tuple[Callable[[ImageShape], nn.Sequential], int]
] = {  # constructor, minimum side in pixels
    "nature": (nature, 36),
    "nips": (nips, 20),
    "impala": (impala, 8),
    "small": (small, 3),
}


def default_torso(image: ImageShape) -> str:
    """Return the torso used for `auto`: nature if the image is large enough, else small."""
    return "nature" if min(image[1:]) >= TORSOS["nature"][1] else "small"


def unsupported_image_reason(name: str, image: ImageShape) -> str | None:
    """Return why the torso cannot take images of this shape; None if it can."""
    height, width = image[1:]
    minimum = TORSOS[name][1]
    if min(height, width) >= minimum:
        return None
    return (
        f"images are {height}x{width} with {image[0]} channels, read as [channels, height, width]; "
        f"the {name} torso needs {minimum}x{minimum} or more"
        + ("" if name == "small" or min(height, width) < 3 else ", the small torso takes these")
    )


def build_torso(name: str, image: ImageShape) -> tuple[nn.Sequential, int]:
    """Return the torso and its number of features; ValueError if the image is too small for it."""
    if reason := unsupported_image_reason(name, image):
        raise ValueError(reason)
    torso = TORSOS[name][0](image)
    with torch.no_grad():
        features = int(torso(torch.zeros(1, *image)).shape[1])
    return torso, features
