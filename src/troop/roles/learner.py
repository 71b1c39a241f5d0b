"""Learner: samples batches, updates the algorithm, sends back priorities, publishes weights."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from troop.core.algorithm import Algorithm, PartialLearner
from troop.core.batch import Trajectory, Transition
from troop.core.config import bounded
from troop.core.errors import TrainingFault
from troop.core.flow import PrioritizedSource, Source, WeightSink, WeightSource
from troop.core.remote import Prefetch, send
from troop.core.role import Metrics
from troop.roles.auto_compile import AutoCompileConfig, AutoCompiler
from troop.roles.weights import WeightReader

MAX_CONSECUTIVE_SKIPS = 10  # updates skipped for a non-finite loss or gradient before the run fails


@dataclass(frozen=True)
class LearnerConfig:
    """Batches and messages of a learner."""

    batch_size: int = bounded(512, low=1)
    """Rows per update."""
    prefetch: int = bounded(4, low=1, high=64)
    """Batches requested before they are needed, so that the learner does not wait for the replay."""
    publish_every: int = bounded(10, low=1)
    """Updates between two publications of the weights."""
    priority_update_every: int = bounded(1, low=1)
    """Updates whose new priorities are sent to the replay in one message."""


@dataclass(frozen=True)
class PeerWeights:
    """The other learner of a split algorithm (PQL), as seen from one of the two."""

    source: WeightSource  # weights of the module that the other learner trains
    module_name: str  # the module trained here: "critic" or "policy"
    peer_name: str  # the module trained by the other learner
    counts_updates: bool  # whether updates of this learner are the updates of the run


Batch = TypeVar("Batch", bound=Transition | Trajectory)


class Learner(Generic[Batch]):
    """Makes one update per `step` from prefetched batches, and publishes its module periodically.

    With `peer` the algorithm is a PartialLearner; it makes no update before the first weights of the other
    learner's module have arrived.
    """

    kind = "learning"

    def __init__(
        self,
        algorithm: Algorithm[Batch],
        source: Source[Batch],
        weights: WeightSink | None,
        config: LearnerConfig,
        device: str = "cpu",
        peer: PeerWeights | None = None,
        compilation: AutoCompileConfig | None = None,
    ) -> None:
        self.algorithm, self.source, self.weights, self.config = algorithm, source, weights, config
        self.device, self.peer = torch.device(device), peer
        self.module_name = "policy" if peer is None else peer.module_name
        self.updates = 0
        self.notes: list[str] = []
        self.compiler = AutoCompiler(algorithm, compilation, self.notes)
        self._module: nn.Module = algorithm.policy if peer is None else _partial(algorithm).module
        self._peer_weights = (
            None if peer is None else WeightReader(peer.source, _partial(algorithm).peer_module)
        )
        self._batches = Prefetch(source.sample, depth=config.prefetch)
        self._pending_priorities: list[tuple[Tensor, Tensor]] = []  # (index, priority) per update
        self._published = -1  # updates at the last publication
        self._lag_metrics: Metrics = {}  # since the last update

    def step(self) -> Metrics | None:
        """Make one update; None if there is no batch. The initial weights are published before the first."""
        start = time.perf_counter()
        if self._published < 0 and self.weights is not None:
            self._publish()
        batch = self._next_batch() if self._load_peer_weights() else None
        if batch is None:
            return None
        result = self.compiler.update(batch.to(self.device))
        lag_metrics = self._data_lag(batch)
        self.updates += 1
        if batch.index is not None and result.priority is not None:
            self._reprioritize(batch.index, result.priority)
        if self.weights is not None and self.updates - self._published >= self.config.publish_every:
            self._publish()
        check_consecutive_skips(self.algorithm, self.updates)
        lag_metrics, self._lag_metrics = lag_metrics | self._lag_metrics, {}
        counted = self.peer is None or self.peer.counts_updates
        name = "updates" if counted else f"{self.module_name}_updates"
        learn_s = time.perf_counter() - start
        return {f"count/{name}": 1, "count/learn_s": learn_s, **result.metrics, **lag_metrics}

    def _next_batch(self) -> Batch | None:
        """Return the oldest requested batch if it has arrived, and keep `prefetch` requests in flight."""
        self._batches.fill(self.config.batch_size)
        batch = self._batches.poll()
        self._batches.fill(self.config.batch_size)
        return batch

    def _data_lag(self, batch: Transition | Trajectory) -> Metrics:
        """Return by how many updates the policies that collected a trajectory were behind.

        0 for policies of updates that were lost because this learner was restored from a checkpoint.
        """
        if not isinstance(batch, Trajectory):
            return {}
        lag = (self.updates - batch.extras["version"][batch.valid]).clamp_min(0).float()
        return {"policy/data_lag": lag.mean(), "policy/data_lag_max": lag.max()} if len(lag) else {}

    def _load_peer_weights(self) -> bool:
        """Load the newest weights of the other learner's module; return whether there are any."""
        if self.peer is None or self._peer_weights is None:
            return True
        if (lag := self._peer_weights.refresh()) is not None:
            self._lag_metrics[f"{self.module_name}/{self.peer.peer_name}_lag"] = lag
        return self._peer_weights.version >= 0

    def _publish(self) -> None:
        assert self.weights is not None
        send(self.weights.publish, self.updates, self._module.state_dict())
        self._published = self.updates

    def _reprioritize(self, index: Tensor, priority: Tensor) -> None:
        priority = priority.detach().cpu()
        if priority.isfinite().all():  # the priorities of a skipped update are meaningless
            self._pending_priorities.append((index.cpu(), priority))
        if len(self._pending_priorities) >= self.config.priority_update_every:
            indices, priorities = zip(*self._pending_priorities, strict=True)
            assert isinstance(self.source, PrioritizedSource)
            send(self.source.reprioritize, torch.cat(indices), torch.cat(priorities))
            self._pending_priorities.clear()

    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """Return the number of updates and the current weights; None if that number is `after`.

        Returns the current version even if it is older than the caller's: a restart restores a checkpoint.
        """
        return None if self.updates == after else (self.updates, self._module.state_dict())

    def gauges(self) -> Metrics:
        """Return the published version, the largest lag, and whether losses are compiled."""
        gauges: Metrics = self.compiler.gauges(self.module_name)
        if self.weights is not None:
            gauges[f"{self.module_name}/version"] = self._published
        if self.peer is not None and self._peer_weights is not None:
            gauges[f"{self.module_name}/{self.peer.peer_name}_lag_max"] = self._peer_weights.max_lag
        return gauges

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the algorithm, the counts and the decision about compilation."""
        counts = {"updates": self.updates, "published": self._published}
        if self._peer_weights is not None:
            counts["peer_version"] = self._peer_weights.version
        return {
            "algorithm": self.algorithm.state_dict(),
            "counts": counts,
            "compiler": self.compiler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.algorithm.load_state_dict(state["algorithm"])
        counts = state["counts"]
        self.updates, self._published = int(counts["updates"]), int(counts["published"])
        if self._peer_weights is not None:
            self._peer_weights.version = int(counts["peer_version"])
        if "compiler" in state:
            self.compiler.load_state_dict(state["compiler"])

    def close(self) -> None:
        """End the process that compiles losses."""
        self.compiler.close()

    def on_restart(self) -> None:
        """Publish at the next step: readers may hold newer weights, but training continues from these."""
        self._published = -1


def _partial(algorithm: Algorithm[Any]) -> PartialLearner:
    return cast(PartialLearner, algorithm)


def check_consecutive_skips(algorithm: Algorithm[Any], updates: int) -> None:
    """Raise TrainingFault if the last MAX_CONSECUTIVE_SKIPS updates or more were skipped.

    Checked only every MAX_CONSECUTIVE_SKIPS updates: on a GPU each read waits for all work queued before it.
    """
    if updates % MAX_CONSECUTIVE_SKIPS == 0 and algorithm.consecutive_skips >= MAX_CONSECUTIVE_SKIPS:
        raise TrainingFault(
            f"{int(algorithm.consecutive_skips)} consecutive updates had a NaN or infinite loss, "
            f"up to update {updates:,}; lower the learning rates, or check the env's rewards."
        )
