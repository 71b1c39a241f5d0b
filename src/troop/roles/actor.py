"""Actor: acts with its own copy of the policy and gives its experience away."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from troop.core.batch import Rollout
from troop.core.flow import RateLimitedSink, Recorder, WeightSource
from troop.core.remote import Future, call_async
from troop.core.role import Metrics
from troop.roles.collector import Collector
from troop.roles.replay_sender import ReplaySender
from troop.roles.sampler import DoubleBufferedSampler
from troop.roles.weights import load_weights


class StatefulRecorder(Recorder, Protocol):
    """A Recorder that holds rows back."""

    @property
    def streams(self) -> Tensor:
        """The streams it records."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What it holds."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        ...


class Sampler:
    """One collector, or two in turn, and the policy they share."""

    def __init__(
        self, policy: nn.Module, collectors: list[Collector], recorders: list[StatefulRecorder]
    ) -> None:
        self.policy, self.collectors, self.recorders = policy, collectors, recorders
        self._duet: DoubleBufferedSampler | None = None

    def step(self) -> tuple[list[Rollout], Metrics]:
        """One vector step: pieces that are finished, and what is to be reported."""
        if len(self.collectors) == 1:
            self.collectors[0].send()
            return self.collectors[0].recv()
        if self._duet is None:  # not before the first weights are there: it acts at once
            self._duet = DoubleBufferedSampler(*self.collectors)
        return self._duet.step()

    def streams(self) -> list[Tensor]:
        """The streams of each collector."""
        return [recorder.streams for recorder in self.recorders]

    def explore(self) -> Tensor:
        """How much its rows explore, on average."""
        return torch.cat([collector.explore for collector in self.collectors]).mean()

    def new_episodes(self, number: int) -> None:
        """Other episodes than those this actor began with, when it joins a run that is under way."""
        for collector in self.collectors:
            collector.load_state_dict({"recreations": number, "envs": 0, "env_steps": collector.env_steps})

    def close(self) -> None:
        """Let the envs go."""
        for collector in self.collectors:
            collector.close()

    def state_dict(self) -> dict[str, Any]:
        """Where it stands; of two in turn one is always in mid-step, so nothing is kept of them."""
        if len(self.collectors) > 1 or not self.collectors[0].world.recreate_every:
            return {"env_steps": [collector.env_steps for collector in self.collectors]}
        return {
            "collector": self.collectors[0].state_dict(),
            "recorder": self.recorders[0].state_dict(),
            "policy": self.policy.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Go on where it stood; False if new episodes began instead."""
        if "collector" not in state or len(self.collectors) > 1:
            for collector, env_steps in zip(self.collectors, state.get("env_steps", []), strict=False):
                collector.env_steps = int(env_steps)
            return False
        if not self.collectors[0].load_state_dict(state["collector"]):
            return False
        self.policy.load_state_dict(state["policy"])
        self.recorders[0].load_state_dict(state["recorder"])
        return True


class Actor:
    """One vector step a step, while its store wants data; takes the newest weights on its own schedule.

    It never waits: neither for weights, of which the newest win, nor for the store, which is asked ahead.
    With a `sync` of 0 it looks for weights in every step, also while it may not act.
    """

    restart_fresh = True  # after a death it starts new episodes

    def __init__(self, sampler: Sampler, store: RateLimitedSink, weights: WeightSource, sync: int) -> None:
        self.sampler, self.store, self.weights, self.sync = sampler, store, weights, sync
        self.version, self.env_steps, self.due = -1, 0, 0
        self.fresh = True  # whether its streams must be cut before the next piece
        self._newest: Future[tuple[int, dict[str, Tensor]] | None] | None = None
        self._way = ReplaySender(store)
        self._pulled: Metrics = {}  # since it last acted

    def step(self) -> Metrics | None:
        """One vector step; None while there are no weights yet or the store has enough."""
        self._pulled |= self._pull()
        if self.version < 0 or not self._way.open():
            return None
        pieces, metrics = self.sampler.step()
        self.env_steps += int(metrics["count/env_steps"])
        for piece in pieces:
            self._send(piece)
        pulled, self._pulled = self._pulled, {}
        return metrics | pulled

    def _pull(self) -> Metrics:
        """Ask for weights when due, take them when they are there."""
        self._ask()
        if self._newest is None or not self._newest.ready():
            return {}
        newest, self._newest = self._newest.result(), None
        taken = self._taken(newest)
        self._ask()
        return taken

    def _ask(self) -> None:
        if self._newest is None and self.env_steps >= self.due:
            self._newest = call_async(self.weights.latest, self.version)
            self.due = self.env_steps + self.sync

    def _taken(self, newest: tuple[int, dict[str, Tensor]] | None) -> Metrics:
        if newest is None:
            if self.version < 0:
                self.due = self.env_steps  # nothing was published yet: ask again
            return {}
        before, (self.version, weights) = self.version, newest
        load_weights(self.sampler.policy, weights)
        if before >= 0:
            lag = max(0, self.version - before)  # a source that was restored may know less than who asks
            return {"policy/lag": lag, "actor/explore": self.sampler.explore()}
        if self.version > 0:
            self.sampler.new_episodes(self.version)
        return {}

    def _send(self, piece: Rollout) -> None:
        if self.fresh:
            for streams in self.sampler.streams():
                self._way.end_streams(streams)
            self.fresh = False
        self._way.send(piece)

    def close(self) -> None:
        """Let the envs go."""
        self.sampler.close()

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        counts = {"version": self.version, "env_steps": self.env_steps, "due": self.due, "fresh": self.fresh}
        return {"sampler": self.sampler.state_dict(), "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where it stood, or in new episodes."""
        self.env_steps = int(state["counts"]["env_steps"])
        self.due = self.env_steps
        self._way.invalidate()
        if self.sampler.load_state_dict(state["sampler"]):
            counts = state["counts"]
            self.version, self.due, self.fresh = (
                int(counts["version"]),
                int(counts["due"]),
                bool(counts["fresh"]),
            )
