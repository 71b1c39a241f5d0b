"""ServerPeers: copies of a learner whose optimizer steps are made by parameter servers (Gorila)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from troop.core.config import bounded
from troop.core.peers import MakeOptimizer, Moments
from troop.core.remote import Prefetch, call_async
from troop.roles.parameter_server import ParameterServer, Versioned


@dataclass(frozen=True)
class OutlierConfig:
    """Gradients of outlier losses are not sent (Gorila, section 4.2)."""

    max_deviations: float = bounded(4.0, low=0)
    """An outlier is this many standard deviations above the running mean, and twice as far above it as other
    high losses lately; 0 sends everything."""
    decay: float = bounded(0.99, low=0, below=1)
    """Decay of the running mean and variance."""
    min_losses: int = bounded(100, low=1)
    """Number of losses before any counts as an outlier."""


MIN_RELATIVE_STD = 0.1  # losses that hardly vary: this fraction of their mean counts as standard deviation
TOLERANCE_DECAY = 0.9999  # per loss; losses that return every 6,900 losses or more often stay accepted


class OutlierFilter:
    """Running mean and variance of a learner's losses, and a tolerance that grows with high losses.

    A loss is an outlier if it exceeds the mean by more than the bound: the larger of max_deviations * std and
    the tolerance. A loss that exceeds the mean by more than max_deviations * std sets the tolerance to twice
    its excess, but at most to twice the bound. So a single outlier of any size at most doubles the bound,
    and an excess of R bounds is accepted after log2(R) + 1 outliers: neither a lasting rise nor rare high
    losses, such as those of batches with a sparse reward, are dropped for good. An outlier enters mean and
    variance clipped to the bound.
    """

    def __init__(self, config: OutlierConfig) -> None:
        self.config = config
        self.state = torch.zeros(4)  # count, mean, variance, tolerance

    def is_outlier(self, loss: float) -> bool:
        """Return whether `loss` is an outlier, and add it to the statistics."""
        count, mean, variance, tolerance = self.state.tolist()
        tolerance *= TOLERANCE_DECAY
        excess, outlier = loss - mean, False
        usual = self.config.max_deviations * max(variance**0.5, MIN_RELATIVE_STD * abs(mean))
        if self.config.max_deviations and count >= self.config.min_losses and excess > usual:
            if bound := max(usual, tolerance):  # 0 if all losses were 0: then none is too high
                outlier = excess > bound
                excess = min(excess, bound)
            tolerance = max(tolerance, 2 * excess)
        rate = max(1 - self.config.decay, 1 / (count + 1))  # a plain mean of the first losses
        variance = (1 - rate) * (variance + rate * excess * excess)
        self.state = torch.tensor([count + 1, mean + rate * excess, variance, tolerance])
        return outlier


class ParameterServerOptimizer(Optimizer):
    """An optimizer whose step pushes the gradient to the servers and pulls the newest parameters.

    Its state holds the version of the parameters of each server, so that a learner restored from an old
    checkpoint sends gradients with the right staleness. The versions are stored under the key "step", the
    only one whose dtype torch preserves when it loads an optimizer state.
    """

    found_inf: Tensor | None = None  # set by the algorithm: whether the gradient is not finite
    loss: Tensor | None = None  # set by the algorithm
    state_of_other_shapes = ("step", "losses")  # than that of the parameters, in a checkpoint

    def __init__(
        self,
        parameters: list[nn.Parameter],
        number: int,
        servers: Sequence[ParameterServer],
        config: OutlierConfig,
    ) -> None:
        super().__init__(parameters, {"lr": 0.0})
        assert len(parameters) == 1, "the parameters of a learner are one flat tensor"
        self.flat, self.number, self.servers = parameters[0], number, servers
        self.ends = [len(self.flat) * (i + 1) // len(servers) for i in range(len(servers))]
        self.outlier_filter = OutlierFilter(config)
        self.replaced = False  # whether another learner's parameters were loaded since `period_elapsed`
        self.last_version = 0  # of the first server, at the last `period_elapsed`

    @property
    def versions(self) -> Tensor | None:
        """Version of the parameters of each server; None before registration."""
        return self.state[self.flat].get("step") if self.flat in self.state else None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Push the gradient to all servers at once and load their parameters; registers first if needed."""
        if self.versions is None and not self._register():
            return  # the gradient belongs to parameters that have just been replaced
        not_finite = bool(self.found_inf is not None and self.found_inf)
        outlier = not not_finite and self._is_outlier()
        versions = self.versions
        assert self.flat.grad is not None and versions is not None
        replies = [
            call_async(
                server.push_pull,
                self.number,
                None if not_finite or outlier else gradient.cpu(),
                int(version),
                outlier,
            )
            for server, gradient, version in zip(
                self.servers, self._split(self.flat.grad), versions, strict=True
            )
        ]
        self._load([reply.result() for reply in replies])

    def _is_outlier(self) -> bool:
        if self.loss is None:
            return False
        outlier = self.outlier_filter.is_outlier(float(self.loss))
        self.state[self.flat]["losses"] = self.outlier_filter.state
        return outlier

    def _register(self) -> bool:
        """Load the parameters of the servers; return whether they equal the learner's own."""
        own = self.flat.detach().clone()
        parts = [part.cpu() for part in self._split(own)]
        replies = [
            call_async(server.register, self.number, part)
            for server, part in zip(self.servers, parts, strict=True)
        ]
        self._load([reply.result() for reply in replies])
        same = torch.equal(own, self.flat)
        self.replaced |= not same
        return same

    def _load(self, parts: list[Versioned | None]) -> None:
        if any(part is None for part in parts):  # a server was restarted without a checkpoint
            self.state.pop(self.flat, None)
            self._register()
            return
        present = [part for part in parts if part is not None]
        for target, part in zip(self._split(self.flat.data), present, strict=True):
            target.copy_(part.parameters)
        self.state[self.flat]["step"] = torch.tensor([part.version for part in present])

    def _split(self, flat: Tensor) -> list[Tensor]:
        """Return the range of each server."""
        return [flat[start:end] for start, end in zip([0, *self.ends], self.ends, strict=False)]

    def period_elapsed(self, period: int) -> bool:
        """Return whether the version has passed a multiple of `period` since the last call.

        Also True if another learner's parameters were loaded since then.
        """
        version = 0 if self.versions is None else int(self.versions[0])
        elapsed = version // period != self.last_version // period or self.replaced
        self.last_version, self.replaced = version, False
        return elapsed

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore versions and loss statistics."""
        super().load_state_dict(state)
        if "losses" in self.state[self.flat]:
            self.outlier_filter.state = self.state[self.flat]["losses"].cpu()
        if (versions := self.versions) is not None:
            self.last_version = int(versions[0])


MIN_SHARE = 1e-3  # of the samples of a statistic: fewer new ones are not worth a message


class ServerPeers:
    """The other copies of a learner; each parameter server holds one range of the parameters.

    The first server also holds the statistics that all copies share.
    """

    def __init__(self, servers: Sequence[ParameterServer], outliers: OutlierConfig) -> None:
        self.servers, self.outliers = servers, outliers
        self.optimizers: list[ParameterServerOptimizer] = []
        self._merged: dict[str, Prefetch[[str, Moments, Moments], Moments]] = {}  # requests by statistic
        self._unsent: dict[str, Moments] = {}

    size = 1  # each copy steps on its own

    def average_gradient(self, gradient: Tensor, loss: Tensor) -> None:
        """Keep the gradient: it is sent to the servers."""

    def mean(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def optimizer(self, parameters: list[nn.Parameter], make: MakeOptimizer) -> Optimizer:
        """Return an optimizer that steps on the servers; `make` is not used."""
        optimizer = ParameterServerOptimizer(parameters, len(self.optimizers), self.servers, self.outliers)
        self.optimizers.append(optimizer)
        return optimizer

    def merge_moments(self, name: str, batch: Moments, own: Moments) -> Moments | None:
        """Send the batch to the first server; return its newest reply merged with what it does not include.

        Never waits for a reply. A batch is kept for the next message while a reply is missing, or as long as
        it has few samples relative to `own`.
        """
        batch, own = batch.to("cpu"), own.to("cpu")
        if name in self._unsent:
            batch = self._unsent.pop(name).merge(batch)
        requests = self._merged.setdefault(name, Prefetch(self.servers[0].merge_moments))
        newest = requests.poll()
        if requests.in_flight or batch.count < MIN_SHARE * own.count:
            self._unsent[name] = batch
        else:
            requests.request(name, batch, own)
            if (reply := requests.poll()) is not None:  # a server on the same host
                return reply
        return None if newest is None else newest.merge(batch)

    def period_elapsed(self, updates: int, period: int) -> bool:
        """Return whether a period is complete by the servers' count, the same for all copies."""
        return self.optimizers[0].period_elapsed(period)
