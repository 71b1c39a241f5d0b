"""QNetwork: values of all discrete actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from troop.nets.encoder import Inputs, ObservationEncoder
from troop.nets.mlp import MLP
from troop.nets.noisy import Noise, NoisyMLP
from troop.nets.user_network import UserNetwork

DUELING_GRADIENT_SCALE = 1 / math.sqrt(2)


class QNetwork(nn.Module):
    """Observations to values [B, A], or logits [B, A, K] with `atoms`.

    `shapes` are those of named observations (nets/encoder.py), or the shape of the only one, which is then
    given as a tensor [B, n] or [B, C, H, W]. The `hidden` layers follow the encoder. `dueling` (Wang et al.
    2016) splits the last hidden layer into two streams of that width, V and A, with Q = V + A - mean_a A
    (equation 9), per atom where there are atoms. With `sigma0` > 0 the last hidden layer and the outputs are
    noisy. A `torso` of the form `module:function` is the whole network instead. `layer_norm` normalizes every
    hidden layer after the encoder before its ReLU.
    """

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]] | Sequence[int],
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
        self.noisy, outputs = sigma0 > 0, actions * max(atoms, 1)
        named = shapes if isinstance(shapes, Mapping) else {"": shapes}
        self.encoder = ObservationEncoder(named, "mlp" if ":" in torso else torso)
        self.outside: UserNetwork | None = None
        if ":" in torso:
            self.outside = UserNetwork(torso, self.encoder.main_shape, outputs)
            return
        self.register_load_state_dict_pre_hook(_rename_torso)  # type: ignore[no-untyped-call]
        features = self.encoder.features
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
        if self.outside is not None or not isinstance(self.advantage, NoisyMLP):
            return None
        noise = self.advantage.sample_noise(rows)
        return noise + (self.value.sample_noise(rows) if isinstance(self.value, NoisyMLP) else [])

    def forward(self, inputs: Inputs, noise: Noise | None = None) -> Tensor:
        """Return values [B, A] or logits [B, A, K]; without `noise` those of the mean weights."""
        if self.outside is not None:
            z: Tensor = self.outside(self.encoder.main(inputs)[0])
            return z.view(-1, self.actions, self.atoms) if self.atoms else z
        x = self.features(inputs)
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

    def features(self, inputs: Inputs) -> Tensor:
        """Return the features that the streams share, [B, features]."""
        x: Tensor = self.encoder(inputs)
        if self.shared is None:
            return x
        x = self.shared(x)
        return (x if self.norm is None else self.norm(x)).relu_()


def _rename_torso(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Rename the weights of the only image's torso in checkpoints that precede the encoder."""
    for key in [key for key in state if key.startswith(f"{prefix}torso.")]:
        state[f"{prefix}encoder.torsos.0.{key.removeprefix(f'{prefix}torso.')}"] = state.pop(key)
