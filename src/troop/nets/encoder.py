"""ObservationEncoder: named images and vectors to one vector of features per row."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from troop.nets.cnn import ImageShape, build_torso, default_torso, to_unit_range
from troop.nets.normalizer import Normalizer

VECTOR = "vector"  # the columns of all vectors, in the result of `ObservationEncoder.select`
Inputs = Tensor | dict[str, Tensor]


class ObservationEncoder(nn.Module):
    """Images pass one convolutional torso each; the columns of all vectors follow their features.

    `shapes` maps each observation to its shape without leading axes: three axes are an image [C, H, W], any
    other shape is a vector. `torso` is a name of nets/cnn.py; auto chooses by the size of the image, mlp
    flattens it. Without images the encoder has no parameters and its features are the columns themselves.
    `orthogonal` initialises the torsos as DrQ-v2 does, with zero biases; else PyTorch's default.
    """

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], torso: str = "auto", orthogonal: bool = False
    ) -> None:
        super().__init__()
        self.images: dict[str, ImageShape] = {k: tuple(v) for k, v in shapes.items() if len(v) == 3}
        self.vectors = {name: shape for name, shape in shapes.items() if name not in self.images}
        self.columns = sum(math.prod(shape) for shape in self.vectors.values())
        self.torsos, self.image_features = nn.ModuleList(), 0
        for image in self.images.values():
            name = default_torso(image) if torso == "auto" else torso
            net, features = (nn.Flatten(), math.prod(image)) if name == "mlp" else build_torso(name, image)
            self.torsos.append(net.apply(_init_orthogonal) if orthogonal else net)
            self.image_features += features

    @property
    def main_shape(self) -> tuple[int, ...]:
        """Shape of the input of a network of the user: the only image, or the columns of all vectors."""
        return next(iter(self.images.values()), (self.columns,))

    def main(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Return the only image of the result of `select` and the columns beside it, if any.

        Without an image, the columns themselves. Pixels are in [0, 1].
        """
        if isinstance(inputs, Tensor):
            return to_unit_range(inputs), None
        if not self.images:
            return to_unit_range(inputs[VECTOR]), None
        return to_unit_range(inputs[next(iter(self.images))]), inputs.get(VECTOR)

    @property
    def features(self) -> int:
        """Number of columns of the result: those of the images, then those of the vectors."""
        return self.image_features + self.columns

    def vector(self, obs: Mapping[str, Tensor], skip: Collection[str] = ()) -> Tensor:
        """Return the columns of all vectors but those in `skip`, [.., columns]."""
        parts = [
            to_unit_range(obs[name].flatten(-len(shape)) if len(shape) > 1 else obs[name])
            for name, shape in self.vectors.items()
            if name not in skip
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def select(
        self, obs: Mapping[str, Tensor], normalizer: Normalizer | None = None, skip: Collection[str] = ()
    ) -> Inputs:
        """Return the input of `forward`: the images, and the normalized columns of all vectors as `vector`.

        The result is the tensor itself if there is only one.
        """
        inputs = {name: obs[name] for name in self.images if name not in skip}
        if self.columns:
            x = self.vector(obs, skip)
            inputs[VECTOR] = x if normalizer is None else normalizer(x)
        return next(iter(inputs.values())) if len(inputs) == 1 else inputs

    def forward(self, inputs: Inputs) -> Tensor:
        """Return the features [.., features] of the result of `select`, or of the only observation."""
        if isinstance(inputs, Tensor):
            inputs = {next(iter(self.images), VECTOR): inputs}
        parts = [
            _encode(torso, to_unit_range(inputs[name]))
            for name, torso in zip(self.images, self.torsos, strict=True)
        ]
        if VECTOR in inputs:
            parts.append(to_unit_range(inputs[VECTOR]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _encode(torso: nn.Module, images: Tensor) -> Tensor:
    """[.., C, H, W] -> [.., features]."""
    if images.dim() == 4:
        features: Tensor = torso(images)
        return features
    leading = images.shape[:-3]
    features = torso(images.reshape(-1, *images.shape[-3:]))
    return features.view(*leading, -1)


def _init_orthogonal(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        # The gain keeps the variance through a ReLU; only torsos have one.
        gain = math.sqrt(2) if isinstance(module, nn.Conv2d) else 1.0
        nn.init.orthogonal_(module.weight, gain)
        assert module.bias is not None
        nn.init.zeros_(module.bias)


class Trunk(nn.Module):
    """Project the leading `image_features` columns to tanh(LayerNorm(W x + b)) of `size` columns (DrQ-v2).

    The columns after them are unchanged. Without image features it has no parameters and changes nothing.
    """

    def __init__(self, image_features: int, size: int) -> None:
        super().__init__()
        self.image_features = image_features
        self.removed = image_features - size if image_features else 0
        if image_features:
            self.linear, self.norm = nn.Linear(image_features, size), nn.LayerNorm(size)
            _init_orthogonal(self.linear)

    def forward(self, x: Tensor) -> Tensor:
        """[.., n] -> [.., n - removed]."""
        if not self.image_features:
            return x
        images, vector = x[..., : self.image_features], x[..., self.image_features :]
        projected: Tensor = self.norm(self.linear(images)).tanh()
        return torch.cat((projected, vector), -1) if vector.shape[-1] else projected
