"""ActorCritic: action distributions and state values, with or without a recurrent core."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from troop.nets.activations import Activation, activate
from troop.nets.encoder import Inputs, ObservationEncoder
from troop.nets.mlp import MLP
from troop.nets.recurrent import Core, CoreState, RecurrentCore, StackedCore, build_core
from troop.nets.user_network import UserNetwork


@dataclass(frozen=True)
class ActorCriticConfig:
    """Layers of an ActorCritic."""

    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    core: Core = "none"
    core_size: int = 128
    torso: str = "auto"  # of nets/cnn.py, or `module:function` of a user (nets/user_network.py)
    torso_features: int = 512
    core_layers: int = 1


class ActorCritic(nn.Module):
    """Outputs of the action distribution [N, P] and values [N].

    Vectors alone: separate networks for both, each with the `hidden` layers. With images: a convolutional
    torso for each and a layer of `torso_features` over their features and all vectors, shared by two linear
    heads. With a core: the first hidden layer in place of the torsos, the core, and two heads with the other
    hidden layers. The value head also reads the privileged observation. Weights are orthogonal: gain sqrt(2),
    0.01 for the policy's outputs, 1 for values.

    A network of the user replaces both networks of vectors; with images or a core it replaces the layers
    before the heads or the core and has `torso_features` outputs, which vectors beside an image join.
    """

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        privileged: int,
        outputs: int,
        config: ActorCriticConfig,
    ) -> None:
        super().__init__()
        self.config, hidden = config, config.hidden
        outside = ":" in config.torso
        self.encoder = ObservationEncoder(shapes, "mlp" if outside else config.torso)
        self.shared_layer: nn.Linear | None = None
        self.body: UserNetwork | None = None
        features = self.encoder.features
        if outside and (self.encoder.images or config.core != "none"):
            self.body = UserNetwork(config.torso, self.encoder.main_shape, config.torso_features)
            beside = self.encoder.columns if self.encoder.images else 0
            features, hidden = config.torso_features + beside, () if self.encoder.images else hidden[1:]
        elif self.encoder.images:
            self.shared_layer, features = nn.Linear(features, config.torso_features), config.torso_features
            hidden = ()
        elif config.core != "none" and hidden:
            self.shared_layer, features = nn.Linear(features, hidden[0]), hidden[0]
            hidden = hidden[1:]
        self.core: RecurrentCore | StackedCore | None = None
        if config.core != "none":
            self.core = build_core(config.core, features, config.core_size, config.core_layers)
            features = config.core_size

        def head(inputs: int, count: int) -> MLP | UserNetwork:
            if outside and self.body is None:
                return UserNetwork(config.torso, (inputs,), count)
            return MLP(inputs, hidden, count, activation=config.activation)

        self.actor, self.critic = head(features, outputs), head(features + privileged, 1)
        self._initialize()

    def _initialize(self) -> None:
        own = [module for module in self.children() if not isinstance(module, UserNetwork)]
        for module in (part for child in own for part in child.modules()):
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.orthogonal_(module.weight, math.sqrt(2))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        self.actor.init_orthogonal(0.01)
        self.critic.init_orthogonal(1.0)

    def encode(self, inputs: Inputs) -> Tensor:
        """Return features [N, F] of the result of `encoder.select`."""
        if self.body is not None:
            main, columns = self.encoder.main(inputs)
            features: Tensor = self.body(main)
            return features if columns is None else torch.cat((features, columns), -1)
        x: Tensor = self.encoder(inputs)
        if self.shared_layer is None:
            return x
        x = self.shared_layer(x)
        return functional.relu(x) if self.encoder.images else activate(x, self.config.activation)

    def policy_outputs(self, features: Tensor) -> Tensor:
        """Return the outputs of the action distribution, [N, P]."""
        outputs: Tensor = self.actor(features)
        return outputs

    def values(self, features: Tensor, privileged: Tensor | None) -> Tensor:
        """Return V [N]."""
        if privileged is not None:
            features = torch.cat((features, privileged), -1)
        value: Tensor = self.critic(features).squeeze(-1)
        return value

    def unroll(self, features: Tensor, state: CoreState, started: Tensor) -> tuple[Tensor, CoreState]:
        """Return outputs of the core [N, H] and its states [N, H] for features [N, F] of T x B steps.

        `state` [B, H] precedes the first step; `started` [T, B] marks first observations of episodes.
        """
        assert self.core is not None
        y, states = self.core(features.view(*started.shape, -1), state, started)
        return y.flatten(0, 1), {name: x.flatten(0, 1) for name, x in states.items()}
