"""One optimizer step: schedule, clipping, and no step at all on a loss that is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from troop.algorithms.optim.adamw import FlatAdamW
from troop.algorithms.optim.flat import flatten
from troop.algorithms.optim.rmsprop import RMSProp
from troop.core.peers import MakeOptimizer, Peers

Kind = Literal["adam", "rmsprop", "rmsprop_tf"]


@dataclass(frozen=True)
class OptimizerConfig:
    """How gradients become steps; `on` a module it makes that module's Descender."""

    weight_decay: float
    max_grad_norm: float
    lr_end: float
    lr_updates: int
    device: str
    kind: Kind = "adam"
    eps: float = 1e-8
    beta2: float = 0.999  # of Adam
    decay: float = 0.99  # of RMSProp's running means, which are `centered` or not
    centered: bool = False

    def on(self, peers: Peers, module: nn.Module, lr: float, every: int = 1) -> Descender:
        """The Descender of `module`, starting at learning rate `lr`, stepped on every so many-th update."""
        # On CUDA the rate is a tensor, so that changing it neither recompiles nor re-captures anything.
        rate = torch.tensor(lr, device=self.device) if "cuda" in self.device else lr
        whole = flatten(module)
        return Descender(self, module, whole, peers.optimizer([whole], self.maker(rate)), lr, every)

    def maker(self, rate: float | Tensor) -> MakeOptimizer:
        """What makes the optimizer of given parameters."""
        if self.kind == "adam":
            fused = torch.device(self.device).type in ("cpu", "cuda")
            return partial(
                FlatAdamW if fused else AdamW,
                lr=rate,
                betas=(0.9, self.beta2),
                eps=self.eps,
                weight_decay=self.weight_decay,
                fused=fused,
            )
        return partial(
            RMSProp,
            lr=rate,
            decay=self.decay,
            eps=self.eps,
            centered=self.centered,
            weight_decay=self.weight_decay,
            tf=self.kind == "rmsprop_tf",
        )


class Descender:
    """Steps one module down its loss along a cosine schedule."""

    def __init__(
        self,
        how: OptimizerConfig,
        module: nn.Module,
        whole: nn.Parameter,
        optimizer: Optimizer,
        lr: float,
        every: int = 1,
    ) -> None:
        self.parts = [part for part in module.parameters() if part.requires_grad]
        # Their places in the gradient of the whole.
        self.places = [part.grad for part in self.parts if part.grad is not None]
        self.how, self.whole, self.optimizer, self.lr, self.every = how, whole, optimizer, lr, every
        self.consecutive_skips = torch.zeros((), device=how.device)
        self.steps = 0

    def step(self, loss: Tensor) -> Tensor:
        """One step down `loss`; returns 1 if it was not finite and the step was skipped, else 0."""
        gradients = torch.autograd.grad(loss, self.parts, allow_unused=True, materialize_grads=True)
        return self.along(gradients, loss.detach())

    def along(self, gradients: Sequence[Tensor], loss: Tensor) -> Tensor:
        """One step along the gradients of `loss`, as `step` makes it.

        The optimizers skip on a flag they read where the weights are, so a GPU never waits for it.
        """
        assert self.whole.grad is not None
        torch._foreach_copy_(self.places, list(gradients))
        measure = loss + self.whole.grad.sum()  # finite only if the loss and every gradient are
        if self.how.max_grad_norm:
            measure = nn.utils.clip_grad_norm_([self.whole], self.how.max_grad_norm)
        skip = (measure - measure != 0).float()  # NaN unless it is finite; torch.isfinite is four operations
        self.schedule()
        self.optimizer.found_inf = skip  # type: ignore[attr-defined]
        self.optimizer.loss = loss  # type: ignore[attr-defined] # peers may refuse an outlier
        self.optimizer.step()
        self.consecutive_skips = (self.consecutive_skips + 1) * skip
        self.steps += 1
        return skip

    def schedule(self) -> None:
        """Set the learning rate of this step."""
        if self.how.lr_end == 1.0:
            return
        done = min(self.steps * self.every / self.how.lr_updates, 1.0)
        lr = self.lr * (self.how.lr_end + (1 - self.how.lr_end) * 0.5 * (1 + math.cos(math.pi * done)))
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Moments by parameter number, and the counters."""
        moments = {str(k): dict(v) for k, v in self.optimizer.state_dict()["state"].items()}
        return {"moments": moments, "steps": self.steps, "consecutive_skips": self.consecutive_skips}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back moments and counters; rates come from the config and the step count."""
        mine = self.optimizer.state_dict()
        mine["state"] = {int(k): v for k, v in state["moments"].items()}
        self.optimizer.load_state_dict(mine)
        self.steps = int(state["steps"])
        self.consecutive_skips = state["consecutive_skips"].to(self.how.device)
