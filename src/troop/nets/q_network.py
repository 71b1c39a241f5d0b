"""QNetwork: values of all discrete actions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from troop.nets.cnn import build_torso, default_torso, to_unit_range
from troop.nets.mlp import MLP
from troop.nets.noisy import Noise, NoisyMLP

DUELING_GRADIENT_SCALE = 1 / math.sqrt(2)


class QNetwork(nn.Module):
    """Observations [B, n] or [B, C, H, W] to values [B, A], or logits [B, A, K] with `atoms`.

    Images pass a convolutional torso (nets/cnn.py), then the `hidden` layers follow. `dueling` (Wang et al.
    2016) splits the last hidden layer into two streams of that width, V and A, with Q = V + A - mean_a A
    (equation 9), per atom where there are atoms. With `sigma0` > 0 the last hidden layer and the outputs are
    noisy. `layer_norm` normalizes every hidden layer after the torso before its ReLU.
    """

    def __init__(
        self,
        shape: Sequence[int],
        actions: int,
        hidden: Sequence[int],
        torso: str = "auto",
        atoms: int = 0,
        dueling: bool = False,
        sigma0: float = 0.0,
        rescale_torso: bool = True,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.actions, self.atoms, self.rescale_torso = actions, atoms, rescale_torso
        self.noisy, features, outputs = sigma0 > 0, math.prod(shape), actions * max(atoms, 1)
        self.torso: nn.Sequential | None = None
        if len(shape) == 3 and torso != "mlp":
            image = tuple(shape)
            self.torso, features = build_torso(default_torso(image) if torso == "auto" else torso, image)
        self.shared: MLP | None = None
        if (dueling or self.noisy) and len(hidden) > 1:
            self.shared = MLP(features, hidden[:-2], hidden[-2], layer_norm)
            features, hidden = hidden[-2], hidden[-1:]
        self.norm = nn.LayerNorm(features) if layer_norm and self.shared is not None else None

        def stream(count: int) -> MLP | NoisyMLP:
            if self.noisy:
                return NoisyMLP(features, hidden, count, sigma0, layer_norm)
            return MLP(features, hidden, count, layer_norm)

        self.advantage = stream(outputs)  # the Q values themselves if not dueling
        self.value = stream(max(atoms, 1)) if dueling else None

    def sample_noise(self, rows: int | None = None) -> Noise | None:
        """Draw noise for one forward pass, shared by all rows or one per row; None if not noisy."""
        if not isinstance(self.advantage, NoisyMLP):
            return None
        noise = self.advantage.sample_noise(rows)
        return noise + (self.value.sample_noise(rows) if isinstance(self.value, NoisyMLP) else [])

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        """Return values [B, A] or logits [B, A, K]; without `noise` those of the mean weights."""
        x = self.features(x)
        if self.value is None:
            y: Tensor = self.advantage(x, noise) if self.noisy else self.advantage(x)
            return y.view(-1, self.actions, self.atoms) if self.atoms else y
        if self.rescale_torso and x.requires_grad:
            # Both streams backpropagate into the shared layers (Wang et al. 2016, section 4.2).
            x.register_hook(lambda gradient: gradient * DUELING_GRADIENT_SCALE)  # type: ignore[no-untyped-call]
        if self.noisy:
            half = None if noise is None else len(noise) // 2
            advantage = self.advantage(x, noise and noise[:half])
            value = self.value(x, noise and noise[half:])
        else:
            advantage, value = self.advantage(x), self.value(x)
        if self.atoms:
            advantage, value = advantage.view(-1, self.actions, self.atoms), value.unsqueeze(1)
        q: Tensor = advantage + (value - advantage.mean(1, keepdim=True))
        return q

    def features(self, x: Tensor) -> Tensor:
        """Return the features that the streams share, [B, features]."""
        x = to_unit_range(x)
        if self.torso is not None:
            x = self.torso(x)
        elif x.dim() > 2:
            x = x.flatten(1)
        if self.shared is None:
            return x
        x = self.shared(x)
        return (x if self.norm is None else self.norm(x)).relu_()
