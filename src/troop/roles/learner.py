"""Learner: draw, update, reprioritize, publish."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troop.core.algorithm import Algorithm
from troop.core.batch import Transition
from troop.core.config import ranged
from troop.core.errors import TrainingFault
from troop.core.flow import Source, WeightSink
from troop.core.remote import Ahead, tell
from troop.core.role import Metrics

PATIENCE = 10  # updates in a row that may be skipped for a loss that is not finite


@dataclass(frozen=True)
class Pace:
    """How a learner draws and tells."""

    batch: int = ranged(512, low=1)
    """Rows per update."""
    ahead: int = ranged(4, low=1, high=64)
    """Batches asked for before they are wanted, so that the learner never waits for one."""
    publish: int = ranged(10, low=1)
    """Updates between two publications of the policy."""
    write_back: int = ranged(1, low=1)
    """Updates whose priorities go back in one message."""


class Learner:
    """Makes one update a step from batches asked for ahead; publishes its policy now and then."""

    def __init__(
        self,
        algorithm: Algorithm[Transition],
        source: Source,
        weights: WeightSink | None,
        pace: Pace,
        device: str = "cpu",
    ) -> None:
        self.algorithm, self.source, self.weights, self.pace = algorithm, source, weights, pace
        self.device = torch.device(device)
        self.batches = Ahead(source.sample, pace.batch).deep(pace.ahead)
        self.updates = 0
        self._surprises: list[tuple[Tensor, Tensor]] = []
        self._published = -1

    def step(self) -> Metrics | None:
        """One update, if there is a batch; the first policy goes out before any."""
        if self._published < 0 and self.weights is not None:
            self._publish()
        batch = self.batches.take()
        if batch is None:
            return None
        outcome = self.algorithm.update(_moved(batch, self.device))
        self.updates += 1
        if batch.index is not None and outcome.priority is not None:
            self._reprioritize(batch.index, outcome.priority)
        if self.weights is not None and self.updates - self._published >= self.pace.publish:
            self._publish()
        self._check()
        return {"count/updates": 1, **outcome.metrics}

    def _publish(self) -> None:
        assert self.weights is not None
        tell(self.weights.publish, self.updates, self.algorithm.publishes.state_dict())
        self._published = self.updates

    def _reprioritize(self, index: Tensor, priority: Tensor) -> None:
        priority = priority.detach().cpu()
        if priority.isfinite().all():  # an update that was skipped says nothing of its rows
            self._surprises.append((index.cpu(), priority))
        if len(self._surprises) >= self.pace.write_back:
            indices, priorities = zip(*self._surprises, strict=True)
            tell(self.source.reprioritize, torch.cat(indices), torch.cat(priorities))
            self._surprises.clear()

    def _check(self) -> None:
        # Read rarely: on a GPU each look waits for everything queued before it.
        if self.updates % PATIENCE == 0 and self.algorithm.skipped_in_row >= PATIENCE:
            raise TrainingFault(
                f"{int(self.algorithm.skipped_in_row)} updates in a row had a NaN or infinite loss, "
                f"up to update {self.updates:,}; lower the learning rates, or look at the env's rewards."
            )

    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """The policy as it is now."""
        return None if self.updates <= after else (self.updates, self.algorithm.publishes.state_dict())

    def gauges(self) -> Metrics:
        """Where the published policy stands."""
        return {} if self.weights is None else {"policy/version": self._published}

    def state_dict(self) -> dict[str, Any]:
        """The learner and its counts."""
        kept = {"updates": self.updates, "published": self._published}
        return {"algorithm": self.algorithm.state_dict(), "counts": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.updates, self._published = int(state["counts"]["updates"]), int(state["counts"]["published"])

    def cut(self) -> None:
        """Rebuilt after a death: whatever others act with by now, this is the policy that goes on."""
        self._published = -1


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
