"""Actor: acts with its own copy of the policy and gives its experience away."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from troop.core.batch import Rows
from troop.core.flow import Intake, Recorder, WeightSource
from troop.core.remote import Future, later
from troop.core.role import Metrics
from troop.roles.collector import Collector
from troop.roles.duet import Duet
from troop.roles.way import Way
from troop.roles.weights import take


class Remembering(Recorder, Protocol):
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


class Hands:
    """One collector, or two in turn, and the policy they share."""

    def __init__(self, policy: nn.Module, collectors: list[Collector], recorders: list[Remembering]) -> None:
        self.policy, self.collectors, self.recorders = policy, collectors, recorders
        self._duet: Duet | None = None

    def step(self) -> tuple[list[Rows], Metrics]:
        """One vector step: pieces that are finished, and what is to be reported."""
        if len(self.collectors) == 1:
            self.collectors[0].begin()
            return self.collectors[0].finish()
        if self._duet is None:  # not before the first weights are there: it acts at once
            self._duet = Duet(*self.collectors)
        return self._duet.step()

    def streams(self) -> list[Tensor]:
        """The streams of each collector."""
        return [recorder.streams for recorder in self.recorders]

    def explore(self) -> Tensor:
        """How much its rows explore, on average."""
        return torch.cat([collector.explore for collector in self.collectors]).mean()

    def anew(self, number: int) -> None:
        """Other episodes than those this actor began with, when it joins a run that is under way."""
        for collector in self.collectors:
            collector.load_state_dict({"renewals": number, "envs": 0, "env_steps": collector.env_steps})

    def close(self) -> None:
        """Let the envs go."""
        for collector in self.collectors:
            collector.close()

    def state_dict(self) -> dict[str, Any]:
        """Where it stands; of two in turn one is always in mid-step, so nothing is kept of them."""
        if len(self.collectors) > 1 or not self.collectors[0].world.renewal:
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

    expendable = True  # after a death it starts new episodes

    def __init__(self, hands: Hands, store: Intake, weights: WeightSource, sync: int) -> None:
        self.hands, self.store, self.weights, self.sync = hands, store, weights, sync
        self.version, self.env_steps, self.due = -1, 0, 0
        self.fresh = True  # whether its streams must be cut before the next piece
        self._newest: Future[tuple[int, dict[str, Tensor]] | None] | None = None
        self._way = Way(store)
        self._pulled: Metrics = {}  # since it last acted

    def step(self) -> Metrics | None:
        """One vector step; None while there are no weights yet or the store has enough."""
        self._pulled |= self._pull()
        if self.version < 0 or not self._way.open():
            return None
        pieces, metrics = self.hands.step()
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
            self._newest = later(self.weights.latest, self.version)
            self.due = self.env_steps + self.sync

    def _taken(self, newest: tuple[int, dict[str, Tensor]] | None) -> Metrics:
        if newest is None:
            if self.version < 0:
                self.due = self.env_steps  # nothing was published yet: ask again
            return {}
        before, (self.version, weights) = self.version, newest
        take(self.hands.policy, weights)
        if before >= 0:
            lag = max(0, self.version - before)  # a source that was restored may know less than who asks
            return {"policy/lag": lag, "actor/explore": self.hands.explore()}
        if self.version > 0:
            self.hands.anew(self.version)
        return {}

    def _send(self, piece: Rows) -> None:
        if self.fresh:
            for streams in self.hands.streams():
                self._way.cut(streams)
            self.fresh = False
        self._way.send(piece)

    def close(self) -> None:
        """Let the envs go."""
        self.hands.close()

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        counts = {"version": self.version, "env_steps": self.env_steps, "due": self.due, "fresh": self.fresh}
        return {"hands": self.hands.state_dict(), "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where it stood, or in new episodes."""
        self.env_steps = int(state["counts"]["env_steps"])
        self.due = self.env_steps
        self._way.doubt()
        if self.hands.load_state_dict(state["hands"]):
            counts = state["counts"]
            self.version, self.due, self.fresh = (
                int(counts["version"]),
                int(counts["due"]),
                bool(counts["fresh"]),
            )
