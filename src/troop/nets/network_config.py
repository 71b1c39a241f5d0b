"""NetworkConfig: the hidden architecture of a network between given inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from troop.nets.activations import Activation
from troop.nets.mlp import MLP
from troop.nets.simba import Simba
from troop.nets.user_network import UserNetwork, unknown_network_reason

NetworkKind = Literal["mlp", "simbav2", "simbav2_port"] | str
"""An architecture of Troop, or `module:function` of your own one (nets/user_network.py)."""


@dataclass(frozen=True)
class NetworkConfig:
    """Hidden layer widths of an MLP, or the width of each SimbaV2 block (all equal)."""

    hidden: tuple[int, ...]
    layer_norm: bool = False
    activation: Activation = "relu"
    kind: NetworkKind = "mlp"

    def build(self, inputs: int, outputs: int, copies: int | None = None) -> MLP | Simba | UserNetwork:
        """Return a new network, or an ensemble of `copies` independent networks."""
        if ":" in self.kind:
            return UserNetwork(self.kind, (inputs,), outputs, copies)
        if self.kind == "mlp":
            return MLP(inputs, self.hidden, outputs, self.layer_norm, copies, self.activation)
        return Simba(inputs, self.hidden[0], len(self.hidden), outputs, copies, self.kind == "simbav2_port")

    def unsupported_reason(self, name: str) -> str | None:
        """Return why `hidden`, called `name` in the message, does not fit the network; None if it does."""
        if reason := unknown_network_reason(self.kind, ("mlp", "simbav2", "simbav2_port")):
            return reason
        if self.kind in ("simbav2", "simbav2_port") and (not self.hidden or len(set(self.hidden)) > 1):
            return f"{name} is {self.hidden}; SimbaV2 requires one width per block, all equal"
        return None
