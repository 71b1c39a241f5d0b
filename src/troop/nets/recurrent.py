"""Recurrent cores: layers of LSTM or GRU over sequences that contain episode starts."""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import Tensor, nn

from troop.nets.activations import tanh

Core = Literal["none", "lstm", "gru"]
# "h" and, for an LSTM, "c": [B, size], or [T, B, size]; "h2", "c2" of the second layer, and so on
CoreState = dict[str, Tensor]


class RecurrentCore(nn.Module):
    """One LSTM or GRU layer; orthogonal weights with gain 1 and zero biases.

    The state of new episodes is zero: at an episode start the state before it is discarded.
    """

    def __init__(self, kind: Literal["lstm", "gru"], inputs: int, size: int) -> None:
        super().__init__()
        self.kind, self.size = kind, size
        self.state_names = ("h", "c") if kind == "lstm" else ("h",)
        gates = 4 if kind == "lstm" else 3
        self.weight_x = nn.Parameter(torch.empty(gates * size, inputs))
        self.weight_h = nn.Parameter(torch.empty(gates * size, size))
        self.bias = nn.Parameter(torch.zeros(gates * size))
        self.bias_h = nn.Parameter(torch.zeros(size if kind == "gru" else 0))  # of the GRU's candidate
        for weight in (self.weight_x, self.weight_h):
            nn.init.orthogonal_(weight)

    def initial_state(self, rows: int) -> CoreState:
        """Return zeros [rows, size]."""
        return {name: self.bias.new_zeros(rows, self.size) for name in self.state_names}

    def forward(self, x: Tensor, state: CoreState, started: Tensor | None = None) -> tuple[Tensor, CoreState]:
        """Return outputs [T, B, size] for x [T, B, inputs], and the states after each step [T, B, size].

        `state` [B, size] precedes entry 0; `started` [T, B] marks first observations of episodes.
        """
        gates_x = torch.nn.functional.linear(x, self.weight_x, self.bias)
        keep = None if started is None else (~started).to(x.dtype).unsqueeze(-1)
        states: list[CoreState] = []
        for t, gates in enumerate(gates_x.unbind(0)):
            if keep is not None:
                state = {name: part * keep[t] for name, part in state.items()}
            state = self._lstm(gates, state) if self.kind == "lstm" else self._gru(gates, state)
            states.append(state)
        stacked = {name: torch.stack([each[name] for each in states]) for name in state}
        return stacked["h"], stacked

    def _lstm(self, gates: Tensor, state: CoreState) -> CoreState:
        gates = torch.addmm(gates, state["h"], self.weight_h.t())
        i, f, g, o = gates.chunk(4, -1)
        c = torch.addcmul(f.sigmoid() * state["c"], i.sigmoid(), tanh(g))
        return {"h": o.sigmoid() * tanh(c), "c": c}

    def _gru(self, gates: Tensor, state: CoreState) -> CoreState:
        h = state["h"]
        r_x, z_x, n_x = gates.chunk(3, -1)
        r_h, z_h, n_h = (h @ self.weight_h.t()).chunk(3, -1)
        r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
        n = tanh(torch.addcmul(n_x, r, n_h + self.bias_h))
        return {"h": torch.lerp(n, h, z)}


class StackedCore(nn.Module):
    """Several layers of one kind and width; each reads the outputs of the one before.

    The state of every layer is zero at an episode start.
    """

    def __init__(self, kind: Literal["lstm", "gru"], inputs: int, size: int, layers: int) -> None:
        super().__init__()
        self.size = size
        widths = [inputs] + [size] * (layers - 1)
        self.layers = nn.ModuleList(RecurrentCore(kind, width, size) for width in widths)

    def initial_state(self, rows: int) -> CoreState:
        """Return zeros [rows, size] for each layer."""
        parts = (layer.initial_state(rows) for layer in self._cores())
        return {_layer_key(name, i): x for i, part in enumerate(parts) for name, x in part.items()}

    def forward(self, x: Tensor, state: CoreState, started: Tensor | None = None) -> tuple[Tensor, CoreState]:
        """Return the outputs of the last layer and the states of all layers, as `RecurrentCore.forward`."""
        states: CoreState = {}
        for i, layer in enumerate(self._cores()):
            own = {name: state[_layer_key(name, i)] for name in layer.state_names}
            x, after = layer(x, own, started)
            states |= {_layer_key(name, i): part for name, part in after.items()}
        return x, states

    def _cores(self) -> list[RecurrentCore]:
        return cast(list[RecurrentCore], list(self.layers))


def _layer_key(name: str, layer: int) -> str:
    return f"{name}{layer + 1}" if layer else name


def build_core(
    kind: Literal["lstm", "gru"], inputs: int, size: int, layers: int
) -> RecurrentCore | StackedCore:
    """Return one or more layers; the names of the weights of a single layer have no layer number."""
    return RecurrentCore(kind, inputs, size) if layers == 1 else StackedCore(kind, inputs, size, layers)
