"""FlatAdamW: AdamW whose step over one flat tensor is a single fused call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW


class FlatAdamW(AdamW):
    """torch's fused AdamW, with the same state, without its per-step grouping of tensors and hooks.

    For the one flat parameter of a small network that bookkeeping takes longer than the step.
    """

    found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Make one step, or none where `found_inf` is 1."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), device=parameter.device)
                    state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter) for _ in range(2))
                self._step_parameter(parameter, state, group)

    step.hooked = True  # type: ignore[attr-defined] # keeps torch from wrapping it in profiler hooks

    def _step_parameter(self, parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        state["step"].add_(1)
        beta1, beta2 = group["betas"]
        torch._fused_adamw_(
            [parameter],
            [parameter.grad],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=self.found_inf,
        )
        if self.found_inf is not None:
            state["step"].sub_(self.found_inf)  # a skipped step does not count
