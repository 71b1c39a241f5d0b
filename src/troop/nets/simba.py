"""SimbaV2: Lee et al. 2025, "Hyperspherical Normalization for Scalable Deep RL" (2502.15280).

Features live on the unit sphere and dense layers have rows of length one; what may grow is only a learned
scale per feature. `port`: as FastTD3's code has it. docs/algorithms/simbav2.md says how the two differ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from troop.nets.sphere import Sphere, length, rolled

EXPANSION = 4


class Simba(nn.Module):
    """Embedding, `blocks` residual blocks of `width` features, two-layer head with a bias at its end.

    With `copies`, that many independent nets side by side: [copies, B, i] -> [copies, B, o].
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        blocks: int,
        outputs: int,
        copies: int | None = None,
        port: bool = False,
    ) -> None:
        super().__init__()
        self.inputs, self.port, self.front = inputs, port, () if copies is None else (copies,)
        self.layers = nn.ParameterList()  # kernel and scale in turn, ending with a kernel and a bias
        self.gains: list[float] = []  # a scale multiplies by its parameter times its gain
        wide = math.sqrt(2 / width)
        self._dense(inputs + 1, width, wide, wide)
        for _ in range(blocks):
            self._dense(width, EXPANSION * width, wide / math.sqrt(EXPANSION), wide / math.sqrt(EXPANSION))
            # The scale behind a block's second kernel is the share it has in what goes on.
            self._dense(EXPANSION * width, width, 1 / (blocks + 1), 1 / math.sqrt(width))
        self._dense(width, width, 1.0, 1.0)
        self._kernel(width, outputs)
        self.layers.append(nn.Parameter(torch.zeros(*self.front, outputs)))
        self.parts = tuple(self.layers)
        self.project()

    def _kernel(self, before: int, after: int) -> None:
        kernel = torch.empty(*self.front, after, before)
        for one in kernel.view(-1, after, before):
            nn.init.orthogonal_(one)
        self.layers.append(nn.Parameter(kernel))

    def _dense(self, before: int, after: int, init: float, scale: float) -> None:
        """A kernel, and behind it a scale per feature that multiplies by `init` at first (port: its square).

        `scale` is what its parameter starts at: the smaller, the larger are an optimizer's relative steps.
        """
        self._kernel(before, after)
        start = init * scale if self.port else scale
        self.layers.append(nn.Parameter(torch.full((*self.front, after), start)))
        self.gains.append(init / scale)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs], or stacks of them."""
        parts = list(self.parts)
        for place, gain in enumerate(self.gains):
            if gain != 1.0:
                parts[2 * place + 1] = parts[2 * place + 1] * gain
        if torch.is_autocast_enabled(x.device.type) or torch.compiler.is_compiling():
            return rolled(x, *parts)
        y: Tensor = Sphere.apply(x, *parts)  # type: ignore[no-untyped-call]
        return y

    def start(self, head_std: float) -> None:
        """Nothing: the last layer starts orthogonal, as all others."""

    @torch.no_grad()
    def project(self) -> None:
        """Bring each row of each kernel back to length one, as after every optimizer step; not in a port."""
        if not self.port:
            for kernel in self.parts[::2]:
                kernel.div_(length(kernel))
