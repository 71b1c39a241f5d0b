"""Members of a group that average their gradients: trainers that act on their own (DD-PPO), and learners."""

from __future__ import annotations

import time
from typing import Any, Generic

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from troop.core.algorithm import Algorithm, KeepsExperience
from troop.core.errors import TrainingFault
from troop.core.flow import ExchangesStatistics, RolloutRecorder
from troop.core.group import Group
from troop.core.role import Metrics
from troop.roles.learner import Batch as LearnerBatch
from troop.roles.learner import Learner
from troop.roles.trainer import Batch, Recorded, Trainer

MIN_SHARE = 0.25  # of a rollout that a slow worker collects before the others may end it
POLL_S = 0.005  # seconds between two polls of the number of finished workers
CHECK_EVERY = 100  # updates between two comparisons of the workers' weights


class DataParallelTrainer(Trainer[Recorded, Batch], Generic[Recorded, Batch]):
    """One member of a group: all members make the same updates with the mean of their gradients.

    With rollouts, a member that has collected a quarter of its rollout ends it once `preemption` x size of
    the members have finished theirs. Every member makes the same number of collectives in an update, whatever
    the length of its rollout.
    """

    def __init__(self, group: Group, preemption: float, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self.group, self.preemption = group, preemption
        self._synchronized = self._can_sample = False
        self._next_poll = 0.0

    def step(self) -> Metrics:
        """Make one vector step, and the updates together with the other members when they are due."""
        if not self._synchronized:
            self._synchronize()
        self.vector_steps += 1
        self.collector.send()
        if self.schedule.overlap:
            metrics = self._update_together()
            return self._collect() | metrics
        metrics = self._collect()
        if isinstance(self.recorder, RolloutRecorder):
            missing = self._end_late_rollout(self.recorder)
            if len(self.replay) < self.schedule.batch_size:
                return metrics
            metrics["train/preempted_steps"] = missing
            self.group.add_finished(self.version)
        return metrics | self._update_together()

    def _synchronize(self) -> None:
        own = [self.version, self.vector_steps, self.collector.env_steps]
        self.version, self.vector_steps, env_steps = synchronize(self.group, self.algorithm, own)
        self.collector.version, self._synchronized = self.version, True
        self.collector.env_steps = self.collector.env_steps or env_steps  # 0: added when the run was resumed

    def _end_late_rollout(self, recorder: RolloutRecorder[Recorded]) -> int:
        """End the rollout if enough other members have finished theirs, or the engine waits for a pause.

        Returns the steps that the rollout lacks.
        """
        if not recorder.time:  # the last rollout is complete
            return 0
        if not self.group.pause_requested and not self._is_late(recorder):
            return 0
        missing = recorder.length - recorder.time
        for rollout in recorder.end_rollout(self.collector.last_step.obs):
            self.replay.add(rollout)
        return missing

    def _is_late(self, recorder: RolloutRecorder[Recorded]) -> bool:
        now = time.perf_counter()
        if recorder.time < MIN_SHARE * recorder.length or self.preemption >= 1 or now < self._next_poll:
            return False
        self._next_poll = now + POLL_S
        return self.group.count_finished(self.version) >= self.preemption * self.group.size - 1e-9

    def _update_together(self) -> Metrics:
        metrics: Metrics = self._update() if self._all_can_sample() else {}
        if isinstance(self.replay.reward_scale, ExchangesStatistics):
            self.replay.reward_scale.exchange()
        if metrics.get("count/updates") and self.version % CHECK_EVERY == 0:
            compare_weights(self.group, self.algorithm, self.version)
        self.group.end_round()
        return metrics if self.group.rank == 0 else without_counts(metrics)

    def _all_can_sample(self) -> bool:
        """Whether the replays of all members have enough rows; those of queues always have."""
        if not self._can_sample and not isinstance(self.recorder, RolloutRecorder):
            ready = self.replay.sample(self.schedule.batch_size) is not None
            self._can_sample = bool(self.group.all_reduce(torch.tensor(float(ready))) == self.group.size)
            return self._can_sample
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a trainer; what learners share is in that of rank 0."""
        return super().state_dict() | ({"algorithm": own_state(self.algorithm)} if self.group.rank else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; a worker added to a resumed run has none: {}."""
        if not state and self.group.rank:
            return
        complete = self.algorithm.state_dict() | (state["algorithm"] or {})
        super().load_state_dict(state | {"algorithm": complete})
        self._synchronized = False


class DataParallelLearner(Learner[LearnerBatch], Generic[LearnerBatch]):
    """One of several learners that sample from the same source and average their gradients.

    Rank 0 publishes the weights. A member joins the next round when it has a batch, and without one when the
    engine has requested a pause, since no batch may arrive any more. The round of members of which one has
    no batch ends without an update.
    """

    def __init__(self, group: Group, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self.group, self._synchronized = group, False
        self._batch: LearnerBatch | None = None  # received and not learned from yet
        self._in_round = False

    def step(self) -> Metrics | None:
        """Make one update together with the others; None if not all have a batch."""
        if not self._synchronized:
            (self.updates,) = synchronize(self.group, self.algorithm, [self.updates])
            self._synchronized = True
        metrics = super().step()
        if metrics is not None and self.updates % CHECK_EVERY == 0:
            compare_weights(self.group, self.algorithm, self.updates)
        if self._in_round:
            self.group.end_round()
            self._in_round = False
        return metrics if metrics is None or self.group.rank == 0 else without_counts(metrics)

    def _next_batch(self) -> LearnerBatch | None:
        """Return the next batch if all members have one; otherwise keep it for the next step.

        Collective, and then part of a round, if this member has a batch or a pause is requested.
        """
        if self._batch is None:
            self._batch = super()._next_batch()
        if self._batch is None and not self.group.pause_requested:
            return None
        self._in_round = True
        if not self.group.all_gather(torch.tensor(int(self._batch is not None))).all():
            return None
        batch, self._batch = self._batch, None
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a learner; what learners share is in that of rank 0."""
        return super().state_dict() | ({"algorithm": own_state(self.algorithm)} if self.group.rank else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        complete = self.algorithm.state_dict() | (state["algorithm"] or {})
        super().load_state_dict(state | {"algorithm": complete})
        self._synchronized = False


def without_counts(metrics: Metrics) -> Metrics:
    """Return the metrics without the counts of updates, which all members make and skip together."""
    counts = ("count/updates", "count/skipped_updates")
    return {name: value for name, value in metrics.items() if name not in counts}


def own_state(algorithm: Algorithm[Any]) -> dict[str, Any] | None:
    """Return the state that belongs to this copy of the learner alone; None if there is none."""
    if not isinstance(algorithm, KeepsExperience):
        return None
    state = algorithm.state_dict()
    return {name: state[name] for name in algorithm.own_state}


def shared_state(algorithm: Algorithm[Any]) -> dict[str, Any]:
    """Return the state that is the same in all copies of the learner."""
    own = own_state(algorithm) or {}
    return {name: value for name, value in algorithm.state_dict().items() if name not in own}


def synchronize(group: Group, algorithm: Algorithm[Any], counts: list[int]) -> list[int]:
    """Collective. Load the learner of rank 0, which a checkpoint contains; return the counts of rank 0."""
    state = group.broadcast_state({"algorithm": shared_state(algorithm), "counts": counts})
    if group.rank:
        algorithm.load_state_dict(state["algorithm"] | (own_state(algorithm) or {}))
    return [int(count) for count in state["counts"]]


def compare_weights(group: Group, algorithm: Algorithm[Any], updates: int) -> None:
    """Collective. Raise TrainingFault if networks, optimizers or statistics are not those of rank 0."""
    leaves = pytree.tree_leaves(shared_state(algorithm))
    sums = [x.double().sum().cpu() for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
    if not sums:
        return
    gathered = group.all_gather(torch.stack(sums))
    equal = (gathered == gathered[0]) | (gathered.isnan() & gathered[0].isnan())
    different = (~equal.all(1)).nonzero().flatten().tolist()
    if different:
        raise TrainingFault(
            f"After {updates} updates the learners of members {different} of the group differ from that of "
            "member 0: an update of this algorithm depends on more than shared gradients."
        )
