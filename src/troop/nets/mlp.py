"""Plain multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class MLP(nn.Sequential):
    """Linear, LayerNorm if asked for, ReLU in turn, ending linear; default init unless `head_std` is given."""

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        head_std: float | None = None,
        layer_norm: bool = False,
    ) -> None:
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        for before, after in zip(widths, widths[1:], strict=False):
            layers.append(nn.Linear(before, after))
            if layer_norm:
                layers.append(nn.LayerNorm(after))
            layers.append(nn.ReLU(inplace=True))
        head = nn.Linear(widths[-1], outputs)
        if head_std is not None:
            nn.init.normal_(head.weight, 0.0, head_std)
            nn.init.zeros_(head.bias)
        super().__init__(*layers, head)


class DeterministicActor(nn.Module):
    """Observation to an action in [-1, 1] by tanh."""

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        head_std: float = 0.01,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.net = MLP(inputs, hidden, outputs, head_std, layer_norm)

    def forward(self, obs: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs]."""
        action: Tensor = self.net(obs).tanh()
        return action
