"""Actor: acts with its own copy of the policy and sends the rollouts to a replay."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from troop.core.batch import Rollout, Trajectory
from troop.core.flow import RateLimitedSink, WeightSource
from troop.core.remote import Prefetch
from troop.core.role import Metrics
from troop.roles.replay_sender import ReplaySender
from troop.roles.sampler import Sampler
from troop.roles.weights import load_weights


class Actor:
    """Makes one vector step per `step` while the replay accepts rows, and loads new weights periodically.

    It never blocks: weights are requested every `weight_sync_steps` env steps (0: one request is always in
    flight, also while the actor may not act) and loaded when they arrive; the replay's `wants_data` is
    prefetched.
    """

    kind = "acting"
    restart_fresh = True  # an actor restarted after a crash starts new episodes

    def __init__(
        self,
        sampler: Sampler,
        replay: RateLimitedSink[Any],
        weights: WeightSource,
        weight_sync_steps: int,
    ) -> None:
        self.sampler, self.replay, self.weights = sampler, replay, weights
        self.weight_sync_steps = weight_sync_steps
        self.notes, self.files = sampler.notes, sampler.files
        self.version, self.env_steps = -1, 0
        self.sync_due = 0  # env steps at which weights are requested next
        self.new_streams = True  # whether the streams must be ended before the next rollout is sent
        self._latest = Prefetch(weights.latest)
        self._sender = ReplaySender(replay)
        self._weight_metrics: Metrics = {}  # since the last vector step

    def step(self) -> Metrics | None:
        """Make one vector step; None before the first weights and while the replay accepts no rows."""
        self._weight_metrics |= self._poll_weights()
        if self.version < 0 or not self._sender.can_send():
            return None
        rollouts, metrics = self.sampler.step()
        self.env_steps += int(metrics["count/env_steps"])
        for rollout in rollouts:
            self._send(rollout)
        weight_metrics, self._weight_metrics = self._weight_metrics, {}
        return metrics | weight_metrics

    def _poll_weights(self) -> Metrics:
        """Request weights if due, load them if they have arrived; return metrics of newer ones."""
        self._request_weights()
        if not self._latest.ready():
            return {}
        newest = self._latest.poll()
        metrics = {} if newest is None else self._load(*newest)
        if self.version < 0:
            self.sync_due = self.env_steps  # nothing has been published: request again
        self._request_weights()
        return metrics

    def _request_weights(self) -> None:
        if not self._latest.in_flight and self.env_steps >= self.sync_due:
            self._latest.request(self.version)
            self.sync_due = self.env_steps + self.weight_sync_steps

    def _load(self, version: int, weights: dict[str, Tensor]) -> Metrics:
        previous, self.version = self.version, version
        load_weights(self.sampler.policy, weights)
        self.sampler.set_version(version)
        if previous >= 0:
            lag = max(0, version - previous)  # a restored source may return an older version
            return {"policy/lag": lag, "actor/explore": self.sampler.mean_exploration()}
        if version > 0:  # the run is in progress: do not repeat the episodes it began with
            self.sampler.start_new_episodes(version)
        return {}

    def _send(self, rollout: Rollout | Trajectory) -> None:
        if self.new_streams:
            for streams in self.sampler.streams():
                self._sender.end_streams(streams)
            self.new_streams = False
        self._sender.send(rollout)

    def close(self) -> None:
        """Close the envs."""
        self.sampler.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler and the counts."""
        counts = {
            "version": self.version,
            "env_steps": self.env_steps,
            "sync_due": self.sync_due,
            "new_streams": self.new_streams,
        }
        return {"sampler": self.sampler.state_dict(), "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; new episodes begin where the sampler cannot be restored."""
        counts = state["counts"]
        self.env_steps = self.sync_due = int(counts["env_steps"])
        self._sender.invalidate()
        if self.sampler.load_state_dict(state["sampler"]):
            self.version, self.sync_due = int(counts["version"]), int(counts["sync_due"])
            self.new_streams = bool(counts["new_streams"])
