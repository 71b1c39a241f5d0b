"""Shape: what lies between the inputs and the outputs of a net."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from troop.nets.chain import Activation
from troop.nets.mlp import MLP
from troop.nets.simba import Simba

Kind = Literal["mlp", "simbav2", "simbav2_port"]


@dataclass(frozen=True)
class NetworkConfig:
    """Hidden layers of an MLP, or the width of each block of SimbaV2, which is the same for all."""

    hidden: tuple[int, ...]
    layer_norm: bool = False
    activation: Activation = "relu"
    kind: Kind = "mlp"

    def net(self, inputs: int, outputs: int, copies: int | None = None) -> MLP | Simba:
        """A fresh net of this shape, or `copies` of them side by side."""
        if self.kind == "mlp":
            return MLP(inputs, self.hidden, outputs, self.layer_norm, copies, self.activation)
        return Simba(inputs, self.hidden[0], len(self.hidden), outputs, copies, self.kind == "simbav2_port")
