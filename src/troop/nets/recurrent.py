"""Recurrent cores: LSTM and GRU over sequences that contain episode starts."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from troop.nets.activations import tanh

Core = Literal["none", "lstm", "gru"]
CoreState = dict[str, Tensor]  # "h" and, for an LSTM, "c": [B, size], or [T, B, size]


class RecurrentCore(nn.Module):
    """One LSTM or GRU layer; orthogonal weights with gain 1 and zero biases.

    The state of new episodes is zero: at an episode start the state before it is discarded.
    """

    def __init__(self, kind: Literal["lstm", "gru"], inputs: int, size: int) -> None:
        super().__init__()
        self.kind, self.size = kind, size
        gates = 4 if kind == "lstm" else 3
        self.weight_x = nn.Parameter(torch.empty(gates * size, inputs))
        self.weight_h = nn.Parameter(torch.empty(gates * size, size))
        self.bias = nn.Parameter(torch.zeros(gates * size))
        self.bias_h = nn.Parameter(torch.zeros(size if kind == "gru" else 0))  # of the GRU's candidate
        for weight in (self.weight_x, self.weight_h):
            nn.init.orthogonal_(weight)

    def initial_state(self, rows: int) -> CoreState:
        """Return zeros [rows, size]."""
        names = ("h", "c") if self.kind == "lstm" else ("h",)
        return {name: self.bias.new_zeros(rows, self.size) for name in names}

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
