"""ServerPeers: copies of a learner that meet at parameter servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from troop.core.config import bounded
from troop.core.peers import MakeOptimizer
from troop.core.remote import call_async
from troop.roles.parameter_server import ParameterServer, Versioned


@dataclass(frozen=True)
class OutlierConfig:
    """Which losses are out of the ordinary: such a gradient is not sent (Gorila, section 4.2)."""

    max_deviations: float = bounded(4.0, low=0)
    """Standard deviations above the running mean; 0 sends everything."""
    decay: float = bounded(0.99, low=0, below=1)
    """Of the running mean and variance."""
    min_losses: int = bounded(100, low=1)
    """Losses seen before any is refused."""


class OutlierFilter:
    """Keeps the running mean and variance of a learner's losses; losses it refuses count, cut to its bound.

    So a level that rises for good is taken in: the bound moves up with every refusal.
    """

    def __init__(self, config: OutlierConfig) -> None:
        self.config = config
        self.state = torch.zeros(3)  # seen, mean, variance

    def refuses(self, loss: float) -> bool:
        """Whether this loss is an outlier; it is taken into the statistics either way."""
        seen, mean, variance = self.state.tolist()
        bound = mean + self.config.max_deviations * variance**0.5
        outlier = bool(self.config.max_deviations) and seen >= self.config.min_losses and loss > bound
        loss = min(loss, bound) if outlier else loss
        share = max(1 - self.config.decay, 1 / (seen + 1))  # a plain mean until there is enough to run
        away = loss - mean
        self.state = torch.tensor(
            [seen + 1, mean + share * away, (1 - share) * (variance + share * away * away)]
        )
        return outlier


class Shared(Optimizer):
    """Steps by giving the gradient away and taking the newest parameters home.

    Its state is which version of each shard its parameters are of, so that a learner back from an old
    checkpoint sends gradients that say how old they are. Named `step`, since torch keeps only that one whole.
    """

    found_inf: Tensor | None = None
    loss: Tensor | None = None

    def __init__(
        self,
        parameters: list[nn.Parameter],
        number: int,
        servers: Sequence[ParameterServer],
        config: OutlierConfig,
    ) -> None:
        super().__init__(parameters, {"lr": 0.0})
        assert len(parameters) == 1, "the parameters of a learner come as one tensor"
        self.whole, self.number, self.servers, self.config = parameters[0], number, servers, config
        size, count = len(self.whole), len(servers)
        self.ends = [size * (i + 1) // count for i in range(count)]
        self.judge = OutlierFilter(config)
        self.replaced = False  # the parameters were replaced by another learner's since `turned` was asked
        self.turned_at = 0

    @property
    def versions(self) -> Tensor | None:
        """The version of each shard's part of the parameters; None before it has entered."""
        return self.state[self.whole].get("step") if self.whole in self.state else None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One round trip to all shards at once, after the first of all one to enter."""
        if self.versions is None and not self._entered():
            return  # the gradient was of parameters that are gone
        broken = bool(self.found_inf is not None and self.found_inf)
        outlier = not broken and self._outlier()
        versions = self.versions
        assert self.whole.grad is not None and versions is not None
        gradients = self._parts(self.whole.grad)
        asked = [
            call_async(
                server.push_pull,
                self.number,
                None if broken or outlier else gradient.cpu(),
                int(version),
                outlier,
            )
            for server, gradient, version in zip(self.servers, gradients, versions, strict=True)
        ]
        self._take([answer.result() for answer in asked])

    def _outlier(self) -> bool:
        if self.loss is None:
            return False
        refused = self.judge.refuses(float(self.loss))
        self.state[self.whole]["losses"] = self.judge.state
        return refused

    def _entered(self) -> bool:
        """Whether the parameters one has are those of the servers, after they are."""
        before = self.whole.detach().clone()
        parts = [part.cpu() for part in self._parts(before)]
        asked = [
            call_async(s.register, self.number, part) for s, part in zip(self.servers, parts, strict=True)
        ]
        self._take([answer.result() for answer in asked])
        same = torch.equal(before, self.whole)
        self.replaced |= not same
        return same

    def _take(self, fetched: list[Versioned | None]) -> None:
        if any(part is None for part in fetched):  # a server came back with nothing: begin with what is here
            self.state.pop(self.whole, None)
            self._entered()
            return
        here = [part for part in fetched if part is not None]
        for mine, part in zip(self._parts(self.whole.data), here, strict=True):
            mine.copy_(part.parameters)
        self.state[self.whole]["step"] = torch.tensor([part.version for part in here])

    def _parts(self, whole: Tensor) -> list[Tensor]:
        return [whole[begin:end] for begin, end in zip([0, *self.ends], self.ends, strict=False)]

    def period_elapsed(self, period: int) -> bool:
        """Whether the servers' count has passed a multiple of `period` since this was last asked."""
        now = 0 if self.versions is None else int(self.versions[0])
        turned = now // period != self.turned_at // period or self.replaced
        self.turned_at, self.replaced = now, False
        return turned

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back versions and statistics."""
        super().load_state_dict(state)
        if "losses" in self.state[self.whole]:
            self.judge.state = self.state[self.whole]["losses"].cpu()
        if (versions := self.versions) is not None:
            self.turned_at = int(versions[0])


class ServerPeers:
    """The other copies of a learner, met at parameter servers, each with a range of the parameters."""

    def __init__(self, servers: Sequence[ParameterServer], outliers: OutlierConfig) -> None:
        self.servers, self.outliers = servers, outliers
        self.optimizers: list[Shared] = []

    def optimizer(self, parameters: list[nn.Parameter], make: MakeOptimizer) -> Optimizer:
        """One whose steps are made at the servers, by their own config; `make` is not asked."""
        made = Shared(parameters, len(self.optimizers), self.servers, self.outliers)
        self.optimizers.append(made)
        return made

    def mean(self, x: Tensor) -> Tensor:
        """Just `x`: nobody waits for the others."""
        return x

    def period_elapsed(self, updates: int, period: int) -> bool:
        """By the count of the servers, so that all copies turn at the same one."""
        return self.optimizers[0].period_elapsed(period)
