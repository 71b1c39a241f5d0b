"""RMSProp in its two dialects, which differ where it matters: in what is divided by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class RMSProp(Optimizer):
    """g / sqrt(running mean of g^2), minus the squared running mean of g where `centered`.

    `tf`: epsilon inside the root and the mean of squares starts at one, as in TensorFlow and papers of its
    time: the first steps are short. Else as torch: epsilon outside, zeros at the start, first steps long.
    Like torch's fused optimizers it makes no step where `found_inf` is set, and nobody has to read the flag.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float | Tensor,
        decay: float = 0.99,
        eps: float = 1e-8,
        centered: bool = False,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        tf: bool = False,
    ) -> None:
        options = {"lr": lr, "decay": decay, "eps": eps, "centered": centered, "momentum": momentum}
        super().__init__(parameters, options | {"weight_decay": weight_decay, "tf": tf})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step down the gradients; weight decay is apart from them, as in AdamW."""
        skip = self.found_inf
        if skip is not None and skip.device.type == "cpu":  # there reading a flag makes nobody wait
            if skip:
                return
            skip = None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.descend(parameter, self.state[parameter], group, skip)

    def descend(
        self, parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any], skip: Tensor | None
    ) -> None:
        """The step of one tensor; where `skip` is set the gradient counts as 0 and every share below is 0."""
        gradient: Any = parameter.grad
        go: Any = 1.0
        if skip is not None:
            go, gradient = 1.0 - skip, torch.where(skip.bool(), 0.0, gradient)
        if not state:
            state["square"] = (torch.ones_like if group["tf"] else torch.zeros_like)(parameter)
            state |= {"mean": torch.zeros_like(parameter)} if group["centered"] else {}
            state |= {"velocity": torch.zeros_like(parameter)} if group["momentum"] else {}
        share, rate = go * (1.0 - group["decay"]), go * group["lr"]
        below = state["square"].lerp_(gradient * gradient, share)
        if group["centered"]:
            mean = state["mean"].lerp_(gradient, share)
            # A variance; rounding must not make it negative and its root NaN.
            below = torch.addcmul(below, mean, mean, value=-1).clamp_min_(0.0)
        below = below.add(group["eps"]).sqrt_() if group["tf"] else below.sqrt().add_(group["eps"])
        if group["weight_decay"]:
            parameter.mul_(1.0 - rate * group["weight_decay"])
        if group["momentum"]:
            velocity = state["velocity"].mul_(1.0 - go * (1.0 - group["momentum"])).addcdiv_(gradient, below)
            parameter.sub_(velocity * rate)
        else:
            parameter.addcdiv_(gradient * rate, below, value=-1)
