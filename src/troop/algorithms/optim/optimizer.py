"""ModuleOptimizer: one optimizer step of a flat module with schedule, clipping and skipping of bad steps."""

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
from troop.algorithms.optim.flat import flatten_parameters
from troop.algorithms.optim.rmsprop import RMSProp
from troop.core.peers import MakeOptimizer, Peers

OptimizerKind = Literal["adam", "rmsprop", "rmsprop_tf"]


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer, learning-rate schedule and gradient clipping of a module."""

    device: str
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0  # 0 does not clip
    lr_end: float = 1.0  # fraction of the learning rate at the end of the cosine schedule
    lr_updates: int = 1  # updates over which the schedule runs
    kind: OptimizerKind = "adam"
    eps: float = 1e-8
    beta2: float = 0.999  # Adam
    decay: float = 0.99  # RMSProp
    centered: bool = False  # RMSProp

    def build(
        self,
        module: nn.Module,
        lr: float,
        peers: Peers,
        every: int = 1,
        clip_groups: Sequence[Sequence[int]] = (),
    ) -> ModuleOptimizer:
        """Flatten `module` and return its optimizer; it steps on every `every`-th update of the schedule.

        Gradients are clipped together or, with `clip_groups`, separately for each list of parameter numbers.
        """
        # On CUDA the rate is a tensor, so that changing it neither recompiles nor re-captures a graph.
        rate = torch.tensor(lr, device=self.device) if "cuda" in self.device else lr
        flat = flatten_parameters(module)
        optimizer = peers.optimizer([flat], self._factory(rate))
        return ModuleOptimizer(self, module, flat, optimizer, lr, peers, every, clip_groups)

    def _factory(self, rate: float | Tensor) -> MakeOptimizer:
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


class ModuleOptimizer:
    """Steps the flat parameters of one module along given gradients."""

    def __init__(
        self,
        config: OptimizerConfig,
        module: nn.Module,
        flat: nn.Parameter,
        optimizer: Optimizer,
        lr: float,
        peers: Peers,
        every: int = 1,
        clip_groups: Sequence[Sequence[int]] = (),
    ) -> None:
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._grads = [parameter.grad for parameter in trainable if parameter.grad is not None]  # views
        self._clip_groups = [[self._grads[index] for index in group] for group in clip_groups]
        self.peers = peers
        self.config, self.flat, self.optimizer, self.lr, self.every = config, flat, optimizer, lr, every
        self.consecutive_skips = torch.zeros((), device=config.device)
        self.steps = 0

    def step(self, grads: Sequence[Tensor], loss: Tensor) -> Tensor:
        """Make one step along `grads`; skip it and return 1 if the loss or a gradient is not finite, else 0.

        The decision is a tensor that the optimizers read on the device, so a GPU is never synchronised.
        """
        assert self.flat.grad is not None
        torch._foreach_copy_(self._grads, list(grads))
        self.peers.average_gradient(self.flat.grad, loss)  # before clipping, so that all copies clip alike
        # finite only if the loss and every gradient are
        if self.config.max_grad_norm and not self._clip_groups:
            magnitude = loss + clip_norm(self.flat.grad, self.config.max_grad_norm)
        else:
            magnitude = loss + self.flat.grad.sum()
            for group in self._clip_groups:
                clip_norms(group, self.config.max_grad_norm)
        skip = (magnitude - magnitude != 0).float()  # one operation less than torch.isfinite
        self._set_learning_rate()
        self.optimizer.found_inf = skip  # type: ignore[attr-defined]
        self.optimizer.loss = loss  # type: ignore[attr-defined] # read by Gorila's outlier filter
        self.optimizer.step()
        self.consecutive_skips = (self.consecutive_skips + 1) * skip
        self.steps += 1
        return skip

    def _set_learning_rate(self) -> None:
        config = self.config
        if config.lr_end == 1.0:
            return
        progress = min(self.steps * self.every / config.lr_updates, 1.0)
        self.set_learning_rate(
            self.lr * (config.lr_end + (1 - config.lr_end) * 0.5 * (1 + math.cos(math.pi * progress)))
        )

    def set_learning_rate(self, lr: float) -> None:
        """Use `lr` from the next step on; for algorithms with a schedule of their own."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Return optimizer state by parameter number, and the counters."""
        moments = {str(k): dict(v) for k, v in self.optimizer.state_dict()["state"].items()}
        return {"moments": moments, "steps": self.steps, "consecutive_skips": self.consecutive_skips}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore optimizer state and counters; learning rates follow from the config and the step count.

        Raises ValueError, KeyError, TypeError or AttributeError if the state does not fit.
        """
        own = self.optimizer.state_dict()
        own["state"] = {int(k): v for k, v in state["moments"].items()}
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        exempt = getattr(self.optimizer, "state_of_other_shapes", ())
        for index, moments in own["state"].items():
            if missing := moment_names(self.optimizer) - set(moments):
                raise ValueError(f"the optimizer's state has no {', '.join(sorted(missing))}")
            for name, value in moments.items():
                fits = isinstance(value, Tensor) and value.shape in ((), parameters[index].shape)
                if not fits and name not in exempt:
                    raise ValueError(f"{name} of the optimizer does not fit its weights")
        self.optimizer.load_state_dict(own)
        self.steps = int(state["steps"])
        self.consecutive_skips = state["consecutive_skips"].to(self.config.device)


def moment_names(optimizer: Optimizer) -> set[str]:
    """Return the names of a parameter's state after the first step; none of optimizers that are not ours."""
    if isinstance(optimizer, AdamW):
        return {"step", "exp_avg", "exp_avg_sq"}
    if isinstance(optimizer, RMSProp):
        return {"square", "mean"} if optimizer.param_groups[0]["centered"] else {"square"}
    return set()


def clip_norm(grad: Tensor, max_norm: float) -> Tensor:
    """Scale the gradient in place so that its norm is at most `max_norm`; return its norm before."""
    norm: Tensor = torch.linalg.vector_norm(grad)
    grad.mul_((max_norm / (norm + 1e-6)).clamp_max_(1.0))
    return norm


def clip_norms(grads: list[Tensor], max_norm: float) -> None:
    """Scale the gradients in place so that their joint norm is at most `max_norm`; 0 does not clip."""
    if max_norm:
        norm = nn.utils.get_total_norm(grads)
        torch._foreach_mul_(grads, (max_norm / (norm + 1e-6)).clamp_max(1.0))
