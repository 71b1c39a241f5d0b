"""Values of all actions at once: a torso for what is seen, a head for what it is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from troop.nets.cnn import fitting, pixels, torso
from troop.nets.mlp import MLP
from troop.nets.noisy import Noise, NoisyMLP

HALVED = 1 / math.sqrt(2)


class QNetwork(nn.Module):
    """Observations [B, n] or [B, C, H, W] to values [B, A], or logits [B, A, K] with `atoms`.

    Images pass a torso (nets/cnn.py); then come the `hidden` layers. Dueling (Wang et al. 2016) splits at the
    last hidden layer into two streams of that width, V and A, and Q = V + A - mean_a A, atom by atom where
    there are atoms. Noisy nets have noise in the last hidden layer and in the outputs (`sigma0` > 0). With
    `layer_norm` every hidden layer after the torso is normalized before its ReLU.
    """

    def __init__(
        self,
        shape: Sequence[int],
        choices: int,
        hidden: Sequence[int],
        kind: str = "auto",
        atoms: int = 0,
        dueling: bool = False,
        sigma0: float = 0.0,
        rescale: bool = True,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.choices, self.atoms, self.dueling, self.rescale = choices, atoms, dueling, rescale
        self.noisy, features, outputs = sigma0 > 0, math.prod(shape), choices * max(atoms, 1)
        self.torso: nn.Sequential | None = None
        if len(shape) == 3 and kind != "mlp":
            image = tuple(shape)
            self.torso, features = torso(fitting(image) if kind == "auto" else kind, image)
        self.shared: MLP | None = None
        if (dueling or self.noisy) and len(hidden) > 1:
            self.shared = MLP(features, hidden[:-2], hidden[-2], layer_norm)
            features, hidden = hidden[-2], hidden[-1:]
        self.norm = nn.LayerNorm(features) if layer_norm and self.shared is not None else None

        def stream(count: int) -> MLP | NoisyMLP:
            if self.noisy:
                return NoisyMLP(features, hidden, count, sigma0, layer_norm)
            return MLP(features, hidden, count, layer_norm)

        self.advantage = stream(outputs)  # the values themselves where nothing duels
        self.value = stream(max(atoms, 1)) if dueling else None

    def draw(self, rows: int | None = None) -> Noise | None:
        """Fresh noise for one forward, the same for all rows or one for each of `rows`; None if not noisy."""
        if not isinstance(self.advantage, NoisyMLP):
            return None
        return self.advantage.draw(rows) + (self.value.draw(rows) if isinstance(self.value, NoisyMLP) else [])

    def forward(self, x: Tensor, noise: Noise | None = None) -> Tensor:
        """Values [B, A] or logits [B, A, K]; without `noise` those of the means."""
        x = self.features(x)
        if self.value is None:
            y: Tensor = self.advantage(x, noise) if self.noisy else self.advantage(x)
            return y.view(-1, self.choices, self.atoms) if self.atoms else y
        if self.rescale and x.requires_grad:
            # Two streams push on the shared layers.
            x.register_hook(lambda gradient: gradient * HALVED)  # type: ignore[no-untyped-call]
        if self.noisy:
            half = None if noise is None else len(noise) // 2
            advantage = self.advantage(x, noise and noise[:half])
            value = self.value(x, noise and noise[half:])
        else:
            advantage, value = self.advantage(x), self.value(x)
        if self.atoms:
            advantage, value = advantage.view(-1, self.choices, self.atoms), value.unsqueeze(1)
        q: Tensor = advantage + (value - advantage.mean(1, keepdim=True))
        return q

    def features(self, x: Tensor) -> Tensor:
        """What the streams share, [B, features]."""
        x = pixels(x)
        if self.torso is not None:
            x = self.torso(x)
        elif x.dim() > 2:
            x = x.flatten(1)
        if self.shared is None:
            return x
        x = self.shared(x)
        return (x if self.norm is None else self.norm(x)).relu_()
