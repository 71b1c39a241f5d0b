"""RMSProp in two variants that differ in the denominator: TensorFlow's and PyTorch's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class RMSProp(Optimizer):
    """Divide gradients by sqrt(E[g^2]), or sqrt(E[g^2] - E[g]^2) if `centered`; weight decay is decoupled.

    `tf` is TensorFlow's variant, used by the Atari papers: epsilon inside the root and E[g^2] initialised to
    one, so the first steps are short. Otherwise PyTorch's: epsilon outside, zeros, long first steps. Like
    torch's fused optimizers it makes no step where `found_inf` is 1, without synchronising the device.
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
        """Make one step, or none where `found_inf` is 1."""
        skip = self.found_inf
        if skip is not None and skip.device.type == "cpu":  # reading a CPU flag does not synchronise
            if skip:
                return
            skip = None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_parameter(parameter, self.state[parameter], group, skip)

    def _step_parameter(
        self, parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any], skip: Tensor | None
    ) -> None:
        """Step one tensor; where `skip` is 1 the gradient and all update fractions are 0."""
        gradient: Any = parameter.grad
        active: Any = 1.0
        if skip is not None:
            active, gradient = 1.0 - skip, torch.where(skip.bool(), 0.0, gradient)
        if not state:
            state["square"] = (torch.ones_like if group["tf"] else torch.zeros_like)(parameter)
            state |= {"mean": torch.zeros_like(parameter)} if group["centered"] else {}
            state |= {"velocity": torch.zeros_like(parameter)} if group["momentum"] else {}
        fraction, rate = active * (1.0 - group["decay"]), active * group["lr"]
        denominator = state["square"].lerp_(gradient * gradient, fraction)
        if group["centered"]:
            mean = state["mean"].lerp_(gradient, fraction)
            # Rounding must not make the variance negative.
            denominator = torch.addcmul(denominator, mean, mean, value=-1).clamp_min_(0.0)
        denominator = (
            denominator.add(group["eps"]).sqrt_() if group["tf"] else denominator.sqrt().add_(group["eps"])
        )
        if group["weight_decay"]:
            parameter.mul_(1.0 - rate * group["weight_decay"])
        if group["momentum"]:
            velocity = (
                state["velocity"]
                .mul_(1.0 - active * (1.0 - group["momentum"]))
                .addcdiv_(gradient, denominator)
            )
            parameter.sub_(velocity * rate)
        else:
            parameter.addcdiv_(gradient * rate, denominator, value=-1)
