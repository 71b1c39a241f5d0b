"""RecurrentQNetwork: dueling values of all discrete actions from an LSTM (Kapturowski et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from troop.nets.encoder import Inputs, ObservationEncoder
from troop.nets.mlp import MLP
from troop.nets.recurrent import CoreState, RecurrentCore
from troop.nets.user_network import UserNetwork

FORGET_BIAS = 1.0  # initial bias of the LSTM's forget gate


class RecurrentQNetwork(nn.Module):
    """Observations and a state to values [T, B, A] and the states after each step.

    Images pass their torsos and a layer of `features` units with ReLU; all vectors, such as the last action
    and reward, are appended to the result. Without images that layer takes the vectors. Then follow the core
    and two streams with one hidden layer of `head` units: Q = V + A - mean_a A. A network of the user
    replaces the torso and that layer.
    """

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        actions: int,
        features: int,
        core_size: int,
        head: int,
        torso: str = "auto",
    ) -> None:
        super().__init__()
        outside = ":" in torso
        self.encoder = ObservationEncoder(shapes, "mlp" if outside else torso)
        images, columns = self.encoder.image_features, self.encoder.columns
        self.body: UserNetwork | None = None
        if outside:
            self.body = UserNetwork(torso, self.encoder.main_shape, features)
        else:
            self.layer = nn.Linear(images or columns, features)
        self.core = RecurrentCore("lstm", features + (columns if images else 0), core_size)
        with torch.no_grad():  # as in Sonnet and Keras: the cell state decays more slowly at first
            self.core.bias[core_size : 2 * core_size] = FORGET_BIAS
        self.value, self.advantage = MLP(core_size, (head,), 1), MLP(core_size, (head,), actions)

    def encode(self, inputs: Inputs) -> Tensor:
        """Return the input of the core [.., F] of the result of `encoder.select`."""
        if self.body is not None:
            rows, columns = self.encoder.main(inputs)
            features: Tensor = self.body(rows.flatten(0, 1)).view(*rows.shape[:2], -1)
            return features if columns is None else torch.cat((features, columns), -1)
        x: Tensor = self.encoder(inputs)
        images = self.encoder.image_features
        hidden: Tensor = self.layer(x[..., :images] if images else x).relu()
        if not images:
            return hidden
        return torch.cat((hidden, x[..., images:]), -1) if self.encoder.columns else hidden

    def forward(self, inputs: Inputs, state: CoreState, started: Tensor) -> tuple[Tensor, CoreState]:
        """Return Q [T, B, A] and the states after each step, [T, B, size].

        `inputs` have the axes [T, B]; `state` [B, size] precedes entry 0; `started` [T, B] marks first
        observations of episodes, where the state before is discarded.
        """
        y, states = self.core(self.encode(inputs), state, started)
        advantage: Tensor = self.advantage(y)
        q = self.value(y) + advantage - advantage.mean(-1, keepdim=True)
        return q, states
