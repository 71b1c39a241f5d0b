"""Plain multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class MLP(nn.Sequential):
    """Linear and ReLU in turn, ending linear; PyTorch's default init unless `head_std` is given."""

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, head_std: float | None = None) -> None:
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        for before, after in zip(widths, widths[1:], strict=False):
            layers += [nn.Linear(before, after), nn.ReLU(inplace=True)]
        head = nn.Linear(widths[-1], outputs)
        if head_std is not None:
            nn.init.normal_(head.weight, 0.0, head_std)
            nn.init.zeros_(head.bias)
        super().__init__(*layers, head)


class DeterministicActor(nn.Module):
    """Observation to an action in [-1, 1] by tanh."""

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, head_std: float = 0.01) -> None:
        super().__init__()
        self.inputs = inputs
        self.net = MLP(inputs, hidden, outputs, head_std)

    def forward(self, obs: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs]."""
        action: Tensor = self.net(obs).tanh()
        return action
