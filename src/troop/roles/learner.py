"""Learner: draw, update, reprioritize, publish."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from troop.core.algorithm import Algorithm, PartialLearner
from troop.core.batch import Transition
from troop.core.config import bounded
from troop.core.errors import TrainingFault
from troop.core.flow import Source, WeightSink, WeightSource
from troop.core.remote import Prefetch, send
from troop.core.role import Metrics
from troop.roles.weights import Subscription

MAX_CONSECUTIVE_SKIPS = 10  # updates in a row that may be skipped for a loss that is not finite


@dataclass(frozen=True)
class LearnerConfig:
    """How a learner draws and tells."""

    batch_size: int = bounded(512, low=1)
    """Rows per update."""
    prefetch: int = bounded(4, low=1, high=64)
    """Batches asked for before they are wanted, so that the learner never waits for one."""
    publish_every: int = bounded(10, low=1)
    """Updates between two publications of the policy."""
    priority_update_every: int = bounded(1, low=1)
    """Updates whose priorities go back in one message."""


@dataclass(frozen=True)
class PeerWeights:
    """What a learner of one half of an algorithm is told of the other."""

    source: WeightSource  # of the other half's net
    name: str  # of this half
    other: str
    counts: bool  # whether the run's updates are those of this half


class Learner:
    """Makes one update a step from batches asked for ahead; publishes its policy now and then.

    With `follow` its algorithm is a Half, which does nothing until it has the other's first net.
    """

    def __init__(
        self,
        algorithm: Algorithm[Transition],
        source: Source,
        weights: WeightSink | None,
        config: LearnerConfig,
        device: str = "cpu",
        follow: PeerWeights | None = None,
    ) -> None:
        self.algorithm, self.source, self.weights, self.config = algorithm, source, weights, config
        self.follow, self.other = follow, _subscribed(algorithm, follow)
        self.of = "policy" if follow is None else follow.name
        self.device = torch.device(device)
        self._module = algorithm.policy if follow is None else cast(PartialLearner, algorithm).module
        self.batches = Prefetch(source.sample, config.batch_size).deep(config.prefetch)
        self.updates = 0
        self._pending_priorities: list[tuple[Tensor, Tensor]] = []
        self._published = -1
        self._heard: Metrics = {}  # of the other half, since the last update

    def step(self) -> Metrics | None:
        """One update, if there is a batch; the first policy goes out before any."""
        if self._published < 0 and self.weights is not None:
            self._publish()
        batch = self.batches.take() if self._listened() else None
        if batch is None:
            return None
        outcome = self.algorithm.update(_moved(batch, self.device))
        self.updates += 1
        if batch.index is not None and outcome.priority is not None:
            self._reprioritize(batch.index, outcome.priority)
        if self.weights is not None and self.updates - self._published >= self.config.publish_every:
            self._publish()
        self._check()
        heard, self._heard = self._heard, {}
        counted = "updates" if self.follow is None or self.follow.counts else f"{self.of}_updates"
        return {f"count/{counted}": 1, **outcome.metrics, **heard}

    def _listened(self) -> bool:
        """Take the other half's newest net; whether there is one."""
        if self.follow is None or self.other is None:
            return True
        if (lag := self.other.refresh()) is not None:
            self._heard[f"{self.of}/{self.follow.other}_lag"] = lag
        return self.other.version >= 0

    def _publish(self) -> None:
        assert self.weights is not None
        send(self.weights.publish, self.updates, self._module.state_dict())
        self._published = self.updates

    def _reprioritize(self, index: Tensor, priority: Tensor) -> None:
        priority = priority.detach().cpu()
        if priority.isfinite().all():  # an update that was skipped says nothing of its rows
            self._pending_priorities.append((index.cpu(), priority))
        if len(self._pending_priorities) >= self.config.priority_update_every:
            indices, priorities = zip(*self._pending_priorities, strict=True)
            send(self.source.reprioritize, torch.cat(indices), torch.cat(priorities))
            self._pending_priorities.clear()

    def _check(self) -> None:
        # Read rarely: on a GPU each look waits for everything queued before it.
        if (
            self.updates % MAX_CONSECUTIVE_SKIPS == 0
            and self.algorithm.consecutive_skips >= MAX_CONSECUTIVE_SKIPS
        ):
            raise TrainingFault(
                f"{int(self.algorithm.consecutive_skips)} updates in a row had a NaN or infinite loss, "
                f"up to update {self.updates:,}; lower the learning rates, or look at the env's rewards."
            )

    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """The policy as it is now."""
        return None if self.updates <= after else (self.updates, self._module.state_dict())

    def gauges(self) -> Metrics:
        """Where the published policy stands, and how far behind the other half's net ever was."""
        read: Metrics = {} if self.weights is None else {f"{self.of}/version": self._published}
        if self.follow is not None and self.other is not None:
            read[f"{self.of}/{self.follow.other}_lag_max"] = self.other.longest
        return read

    def state_dict(self) -> dict[str, Any]:
        """The learner and its counts."""
        kept = {"updates": self.updates, "published": self._published}
        if self.other is not None:
            kept["followed"] = self.other.version
        return {"algorithm": self.algorithm.state_dict(), "counts": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.updates, self._published = int(state["counts"]["updates"]), int(state["counts"]["published"])
        if self.other is not None:
            self.other.version = int(state["counts"]["followed"])

    def on_restart(self) -> None:
        """Rebuilt after a death: whatever others act with by now, this is the policy that goes on."""
        self._published = -1


def _subscribed(algorithm: Algorithm[Transition], follow: PeerWeights | None) -> Subscription | None:
    return (
        None if follow is None else Subscription(follow.source, cast(PartialLearner, algorithm).peer_module)
    )


def _moved(batch: Transition, device: torch.device) -> Transition:
    """The batch where the learner is."""
    if device.type == "cpu":
        return batch
    obs, next_obs = (
        {k: x.to(device, non_blocking=True) for k, x in o.items()} for o in (batch.obs, batch.next_obs)
    )
    weight = None if batch.weight is None else batch.weight.to(device)
    plain = {name: getattr(batch, name).to(device) for name in ("action", "reward", "discount")}
    return dataclasses.replace(batch, obs=obs, next_obs=next_obs, weight=weight, **plain)
