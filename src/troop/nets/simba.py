"""SimbaV2: Lee et al. 2025, "Hyperspherical Normalization for Scalable Deep RL" (2502.15280).

Features lie on the unit sphere and the rows of dense layers have unit norm; magnitude is learned only as a
scale per feature. `port` selects the variant in FastTD3's code; docs/explanation/algorithms/simbav2.md lists
the differences.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

EXPANSION = 4
SHIFT = 3.0  # appended input, so that the norm of the observation survives the projection onto the sphere
EPS = 1e-8


def normalize(x: Tensor) -> Tensor:
    """Scale each row to unit norm."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / norm.clamp_min(EPS)


def forward_blocks(x: Tensor, *parameters: Tensor) -> Tensor:
    """Apply embedding, blocks and head; parameters are kernel and scale in turn, then kernel and bias.

    A block is x <- normalize(lerp(x, normalize(W2 relu(s W1 x)), alpha)), equation 9 of the paper.
    """
    kernels, scales = parameters[::2], [scale.unsqueeze(-2) for scale in parameters[1:-1:2]]
    x = normalize(functional.pad(x, (0, 1), value=SHIFT))
    x = normalize((x @ kernels[0].mT) * scales[0])
    for first in range(1, len(kernels) - 2, 2):
        hidden = ((x @ kernels[first].mT) * scales[first]).relu_() + EPS
        output = normalize(hidden @ kernels[first + 1].mT).type_as(x)  # bf16 under autocast
        x = normalize(torch.lerp(x, output, scales[first + 1]))
    return ((x @ kernels[-2].mT) * scales[-1]) @ kernels[-1].mT + parameters[-1].unsqueeze(-2)


class Simba(nn.Module):
    """Embedding, `blocks` residual blocks of `width` features, two-layer head with an output bias.

    With `copies`, that many independent networks: [copies, B, i] -> [copies, B, o].
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
        self.inputs, self.port, self.ensemble = inputs, port, () if copies is None else (copies,)
        self.layers = nn.ParameterList()  # kernel and scale in turn, ending with a kernel and a bias
        self.gains: list[float] = []  # a scale multiplies by its parameter times its gain
        wide = math.sqrt(2 / width)
        self._add_dense(inputs + 1, width, wide, wide)
        for _ in range(blocks):
            narrow = wide / math.sqrt(EXPANSION)
            self._add_dense(width, EXPANSION * width, narrow, narrow)
            # The scale after a block's second kernel is alpha, the interpolation weight of its output.
            self._add_dense(EXPANSION * width, width, 1 / (blocks + 1), 1 / math.sqrt(width))
        self._add_dense(width, width, 1.0, 1.0)
        self._add_kernel(width, outputs)
        self.layers.append(nn.Parameter(torch.zeros(*self.ensemble, outputs)))
        self._parameters_in_order = tuple(self.layers)
        self.project()

    def _add_kernel(self, fan_in: int, fan_out: int) -> None:
        kernel = torch.empty(*self.ensemble, fan_out, fan_in)
        for one in kernel.view(-1, fan_out, fan_in):
            nn.init.orthogonal_(one)
        self.layers.append(nn.Parameter(kernel))

    def _add_dense(self, fan_in: int, fan_out: int, init: float, scale: float) -> None:
        """Append a kernel and a per-feature scale whose effective initial value is `init` (port: its square).

        `scale` is the initial value of the parameter: the smaller, the larger an optimizer's relative steps.
        """
        self._add_kernel(fan_in, fan_out)
        start = init * scale if self.port else scale
        self.layers.append(nn.Parameter(torch.full((*self.ensemble, fan_out), start)))
        self.gains.append(init / scale)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs], or stacks of both."""
        parameters = list(self._parameters_in_order)
        for layer, gain in enumerate(self.gains):
            if gain != 1.0:
                parameters[2 * layer + 1] = parameters[2 * layer + 1] * gain
        return forward_blocks(x, *parameters)

    def init_output(self, std: float) -> None:
        """Do nothing: the output layer is initialised orthogonally, as all layers."""

    @torch.no_grad()
    def project(self) -> None:
        """Rescale each kernel row to unit norm, as after every optimizer step; not in the port variant."""
        if not self.port:
            for kernel in self._parameters_in_order[::2]:
                kernel.copy_(normalize(kernel))
