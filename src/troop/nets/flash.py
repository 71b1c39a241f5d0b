"""The network of FlashSAC (2604.04539): residual blocks with BatchNorm, RMSNorm, weights of constant length.

`forward` normalizes with the running statistics; `forward_train` normalizes with those of the batch and
returns them. Neither changes the module: `update_statistics` merges the statistics of a batch, and `project`
rescales the weights after an optimizer step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from troop.nets.mlp import linear

EXPANSION = 4
BATCH_NORM_EPS = 1e-5
RMS_NORM_EPS = 1e-6
ALL_ROWS = slice(None)


def batch_norm(x: Tensor, norm: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize the columns of x [B, i] or [N, B, i] by their own statistics.

    With `norm` [.., 2, i], apply it as gain and bias, then ReLU. Also return mean and 1 / sqrt(var + eps) of
    the columns, [i] or [N, i]. torch's kernel takes a tenth of the time of torch.var_mean over rows on a CPU.
    """
    x = x.float() if x.dtype == torch.bfloat16 else x  # under autocast
    gain, bias = (None, None) if norm is None else (part.reshape(-1) for part in norm.unbind(-2))
    columns = x if x.dim() == 2 else x.transpose(0, 1).reshape(x.shape[1], -1)
    y, mean, inverse_std = torch.native_batch_norm(columns, gain, bias, None, None, True, 0.0, BATCH_NORM_EPS)
    if norm is not None:
        y = y.relu_()  # before `view`: in-place operations on views have a slow backward pass
    if x.dim() == 2:
        return y, mean, inverse_std
    networks, rows, width = x.shape
    y = y.view(rows, networks, width).transpose(0, 1)
    return y, mean.view(networks, width), inverse_std.view(networks, width)


def head(x: Tensor, gain: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply RMSNorm with `gain` [.., 1, d] and the output layer."""
    inverse_rms = (x.square().mean(-1, keepdim=True) + RMS_NORM_EPS).rsqrt()
    return linear(x * inverse_rms * gain, weight, bias)


def train_pass(x: Tensor, rows: slice, clip: float, *parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of `rows`, and mean and unbiased variance of all normalized columns over all rows.

    `parameters` are those of `FlashNetwork` in order, with a leading axis of networks if x has one.
    """
    if one_at_a_time(x):
        networks = [train_pass(own, rows, clip, *parts) for own, *parts in zip(x, *parameters, strict=True)]
        outputs, means, variances = (torch.stack(part) for part in zip(*networks, strict=True))
        return outputs, means, variances
    norm, embedding, *blocks = parameters[:-3]
    count = x.shape[-2]
    x, mean, inverse_std = batch_norm(x)
    statistics = [(mean, inverse_std)]
    x = affine(x, norm, clip) @ embedding.mT
    for first in range(0, len(blocks), 4):
        expand, expand_norm, contract, contract_norm = blocks[first : first + 4]
        hidden, *expanded = batch_norm(x @ expand.mT, expand_norm)
        output, *contracted = batch_norm(hidden @ contract.mT, contract_norm)
        statistics += [(expanded[0], expanded[1]), (contracted[0], contracted[1])]
        x = x + output
    means, inverse_stds = (torch.cat(part, -1).detach() for part in zip(*statistics, strict=True))
    variances = (inverse_stds.square().reciprocal() - BATCH_NORM_EPS) * (count / max(count - 1, 1))
    return head(x[..., rows, :], *parameters[-3:]), means, variances


def eval_pass(x: Tensor, mean: Tensor, var: Tensor, clip: float, *parameters: Tensor) -> Tensor:
    """Return the outputs with the given statistics of all normalized columns.

    A BatchNorm with constant statistics is a part of the linear layer before it.
    """
    if one_at_a_time(x):
        networks = zip(x, mean, var, *parameters, strict=True)
        return torch.stack([eval_pass(own, m, v, clip, *parts) for own, m, v, *parts in networks])
    norm, embedding, *blocks = parameters[:-3]
    norms = [norm, *blocks[1::2]]
    widths = [each.shape[-1] for each in norms]
    inverse_stds = torch.split((var + BATCH_NORM_EPS).rsqrt(), widths, -1)
    means = torch.split(mean, widths, -1)
    normalized = (x - means[0].unsqueeze(-2)) * inverse_stds[0].unsqueeze(-2)
    x = affine(normalized, norm, clip) @ embedding.mT
    layers = []
    for weight, each, m, inverse_std in zip(blocks[::2], norms[1:], means[1:], inverse_stds[1:], strict=True):
        scale = each[..., 0, :] * inverse_std
        layers.append((weight * scale.unsqueeze(-1), torch.addcmul(each[..., 1, :], m, scale, value=-1)))
    for expand, contract in zip(layers[::2], layers[1::2], strict=True):
        x = x + linear(linear(x, *expand).relu_(), *contract).relu_()
    return head(x, *parameters[-3:])


def affine(x: Tensor, norm: Tensor, clip: float) -> Tensor:
    """Clip the normalized inputs x to +-`clip` (0: not at all); apply gain and bias [.., 2, i]."""
    x = x.clamp(-clip, clip) if clip else x
    return torch.addcmul(norm[..., 1:, :], x, norm[..., :1, :])


def one_at_a_time(x: Tensor) -> bool:
    """Return whether to compute stacked networks in turn: on a CPU activations then stay in the cache."""
    return x.dim() == 3 and x.is_cpu


class FlashNetwork(nn.Module):
    """BatchNorm of the inputs, embedding, `blocks` blocks of `width` features, RMSNorm, linear `heads`.

    A block is x <- x + relu(BN(W2 relu(BN(W1 x)))) with 4 * `width` features inside. With `copies`, that many
    independent networks over the same inputs. `output_std` 0: the rows of the heads have length 1 like all
    others. Otherwise the first head starts at N(0, output_std^2), all other heads start at 0, and the length
    of their rows is at most 1.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        inputs: int,
        width: int,
        blocks: int,
        outputs: int,
        heads: int = 1,
        copies: int | None = None,
        momentum: float = 0.01,
        input_clip: float = 0.0,
        output_std: float = 0.0,
    ) -> None:
        super().__init__()
        self.inputs, self.copies, self.momentum, self.input_clip = inputs, copies, momentum, input_clip
        self.bounded_head = output_std > 0
        self.ensemble = () if copies is None else (copies,)
        hidden = EXPANSION * width
        layers = [self._norm(inputs), self._weight(inputs, width)]
        for _ in range(blocks):
            layers += [self._weight(width, hidden), self._norm(hidden)]
            layers += [self._weight(hidden, width), self._norm(width)]
        parts = [self._weight(width, outputs) for _ in range(heads)]
        if output_std:
            parts = [nn.init.normal_(parts[0], 0, output_std), *(part.zero_() for part in parts[1:])]
        bias = torch.zeros(*self.ensemble, heads * outputs)
        layers += [torch.ones(*self.ensemble, 1, width), torch.cat(parts, -2), bias]
        self.layers = nn.ParameterList(nn.Parameter(layer) for layer in layers)
        self._parameters_in_order = tuple(self.layers)  # iterating over a ParameterList is slow
        columns = inputs + blocks * (hidden + width)
        self.register_buffer("running_mean", torch.zeros(*self.ensemble, columns))
        self.register_buffer("running_var", torch.ones(*self.ensemble, columns))
        self.project()

    def _weight(self, fan_in: int, fan_out: int) -> Tensor:
        weight = torch.empty(*self.ensemble, fan_out, fan_in)
        for one in weight.view(-1, fan_out, fan_in):
            nn.init.orthogonal_(one)
        return weight

    def _norm(self, columns: int) -> Tensor:
        """Return gain 1 and bias 0 of a BatchNorm, [.., 2, columns]."""
        return torch.tensor([[1.0], [0.0]]).expand(*self.ensemble, 2, columns).clone()

    @property
    def output_bias(self) -> nn.Parameter:
        """The bias of the heads, [.., heads * outputs]."""
        bias: nn.Parameter = self._parameters_in_order[-1]
        return bias

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs] -> [B, heads * outputs], or [copies, ..]; normalizes with the running statistics."""
        x = x if self.copies is None else x.expand(self.copies, *x.shape)
        parameters = self._parameters_in_order
        return eval_pass(x, self.running_mean, self.running_var, self.input_clip, *parameters)

    def forward_train(self, x: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the outputs of `rows`, normalized with the statistics of all rows, and these statistics."""
        x = x if self.copies is None else x.expand(self.copies, *x.shape)
        outputs, mean, var = train_pass(x, rows, self.input_clip, *self._parameters_in_order)
        return outputs, (mean, var)

    @torch.no_grad()
    def update_statistics(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics by `momentum` towards those of a batch, where these are finite."""
        for running, batch in ((self.running_mean, mean), (self.running_var, var)):
            merged = torch.lerp(running, batch, self.momentum)
            torch.where(merged - merged == 0, merged, running, out=running)

    @torch.no_grad()
    def project(self) -> None:
        """Rescale weight rows to length 1; gain and bias of a BatchNorm, and the RMSNorm gain, to sqrt(d)."""
        *layers, gain, heads, _ = self._parameters_in_order
        for weight in (*layers[1:2], *layers[2::2]):
            weight.div_(row_norms(weight))
        for norm in (layers[0], *layers[3::2], gain):
            flat = norm.flatten(-2)
            norm.mul_((math.sqrt(norm.shape[-1]) / row_norms(flat)).unsqueeze(-1))
        norms = row_norms(heads)
        heads.div_(norms.clamp_min_(1) if self.bounded_head else norms)


def row_norms(x: Tensor) -> Tensor:
    """Return the length of each row, [..., i] -> [..., 1], at least 1e-8."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norms.clamp_min(1e-8)
