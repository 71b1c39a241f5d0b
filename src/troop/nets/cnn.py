"""Torsos for images [B, C, H, W]: pixels to a row of features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Image = tuple[int, ...]  # channels, height, width


def pixels(x: Tensor) -> Tensor:
    """Bytes as numbers from 0 to 1; floats as they are."""
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x


def nips(image: Image) -> nn.Sequential:
    """Mnih et al. 2013: 16 filters of 8x8 by 4, 32 of 4x4 by 2; a third of Nature's work."""
    return _filters(image, (16, 8, 4), (32, 4, 2))


def nature(image: Image) -> nn.Sequential:
    """Mnih et al. 2015: 32 filters of 8x8 by 4, 64 of 4x4 by 2, 64 of 3x3 by 1."""
    return _filters(image, (32, 8, 4), (64, 4, 2), (64, 3, 1))


def _filters(image: Image, *shapes: tuple[int, int, int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = image[0]
    for filters, size, stride in shapes:
        layers += [nn.Conv2d(before, filters, size, stride), nn.ReLU(inplace=True)]
        before = filters
    return nn.Sequential(*layers, nn.Flatten())


def small(image: Image) -> nn.Sequential:
    """16, then 32 filters of 3x3 over the whole image, by steps of 2 where a side has 16 pixels or more."""
    stride = 2 if min(image[1:]) >= 16 else 1
    return nn.Sequential(
        nn.Conv2d(image[0], 16, 3, stride, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 3, stride, 1),
        nn.ReLU(inplace=True),
        nn.Flatten(),
    )


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(filters, filters, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """[B, filters, H, W] -> the same shape."""
        y: Tensor = self.second(self.first(functional.relu(x)).relu_())
        return y.add_(x)


def impala(image: Image) -> nn.Sequential:
    """Espeholt et al. 2018: three sections of 16, 32, 32 filters, each halved, with two residual blocks."""
    layers: list[nn.Module] = []
    before = image[0]
    for filters in (16, 32, 32):
        layers += [nn.Conv2d(before, filters, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
        layers += [Residual(filters), Residual(filters)]
        before = filters
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Flatten())


TORSOS: dict[str, tuple[Callable[[Image], nn.Sequential], int]] = {
    "nature": (nature, 36),  # below 36 pixels its last filters do not fit in what the first leave
    "nips": (nips, 20),
    "impala": (impala, 8),
    "small": (small, 3),
}


def fitting(image: Image) -> str:
    """The torso for images of this size where none was asked for: Nature's if it fits, else the small one."""
    return "nature" if min(image[1:]) >= TORSOS["nature"][1] else "small"


def misfit(kind: str, image: Image) -> str | None:
    """Why this torso cannot read such images: what came and what was expected; None if it can."""
    height, width = image[1:]
    least = TORSOS[kind][1]
    if min(height, width) >= least:
        return None
    return (
        f"images are {height}x{width} with {image[0]} channels, read as [channels, height, width]; "
        f"the {kind} torso needs {least}x{least} or more"
        + ("" if kind == "small" or min(height, width) < 3 else ", the small one takes these")
    )


def torso(kind: str, image: Image) -> tuple[nn.Sequential, int]:
    """The torso of that name and how many features it gives; ValueError if the image is too small for it."""
    if reason := misfit(kind, image):
        raise ValueError(reason)
    made = TORSOS[kind][0](image)
    with torch.no_grad():
        features = int(made(torch.zeros(1, *image)).shape[1])
    return made, features
