"""Samplers: one or two collectors that act with one policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from troop.core.flow import Recorder
from troop.core.role import Metrics
from troop.roles.collector import Collector


class StatefulRecorder(Recorder[Any], Protocol):
    """A Recorder that delays rows and can be saved."""

    @property
    def streams(self) -> Tensor:
        """The streams it records."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the delayed rows."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        ...


class Sampler:
    """Steps one collector, or two with double buffering."""

    def __init__(
        self, policy: nn.Module, collectors: list[Collector[Any]], recorders: list[StatefulRecorder]
    ) -> None:
        self.policy, self.collectors, self.recorders = policy, collectors, recorders
        self._double_buffered: DoubleBufferedSampler | None = None
        self.notes, self.files = collectors[0].notes, collectors[0].files
        for collector in collectors[1:]:
            self.notes += collector.notes
            collector.notes, collector.files = self.notes, self.files

    def step(self) -> tuple[Sequence[Any], Metrics]:
        """Make one vector step; return the completed rollouts and metrics."""
        if len(self.collectors) == 1:
            self.collectors[0].send()
            return self.collectors[0].recv()
        if self._double_buffered is None:  # not in __init__: it acts at once, and needs the first weights
            self._double_buffered = DoubleBufferedSampler(*self.collectors)
        return self._double_buffered.step()

    def set_version(self, version: int) -> None:
        """Stamp the rows of the next actions with this version of the policy."""
        for collector in self.collectors:
            collector.version = version

    def streams(self) -> list[Tensor]:
        """Return the streams of each collector."""
        return [recorder.streams for recorder in self.recorders]

    def mean_exploration(self) -> Tensor:
        """Return the mean exploration value of all envs."""
        return torch.cat([collector.explore for collector in self.collectors]).mean()

    def start_new_episodes(self, number: int) -> None:
        """Recreate the envs with seeds derived from `number`, for an actor that joins a running program."""
        for collector in self.collectors:
            collector.load_state_dict({"recreations": number, "envs": 0, "env_steps": collector.env_steps})

    def close(self) -> None:
        """Close the envs."""
        for collector in self.collectors:
            collector.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the current episodes, or only the env steps if it cannot be restored.

        It cannot be restored with double buffering, where one collector is always in the middle of a step.
        """
        if len(self.collectors) > 1 or not self.collectors[0].env_factory.recreate_every:
            return {"env_steps": [collector.env_steps for collector in self.collectors]}
        return {
            "collector": self.collectors[0].state_dict(),
            "recorder": self.recorders[0].state_dict(),
            "policy": self.policy.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore the result of `state_dict`; return False if new episodes began instead."""
        if "collector" not in state or len(self.collectors) > 1:
            for collector, env_steps in zip(self.collectors, state.get("env_steps", []), strict=False):
                collector.env_steps = int(env_steps)
            return False
        if not self.collectors[0].load_state_dict(state["collector"]):
            return False
        self.policy.load_state_dict(state["policy"])
        self.recorders[0].load_state_dict(state["recorder"])
        return True


class DoubleBufferedSampler:
    """Two collectors with half of the envs each: the policy acts for one while the envs of the other step.

    Each half behaves as a single Collector does: an action is computed from the newest observation of its own
    half. Only inference and simulation overlap (the double buffering of SEED RL and APPO).
    """

    def __init__(self, first: Collector[Any], second: Collector[Any]) -> None:
        self.stepping, self.idle = first, second
        self.stepping.send()

    def step(self) -> tuple[Sequence[Any], Metrics]:
        """Make one vector step of one half; return its completed rollouts and metrics."""
        action = self.idle.act()  # while the envs of the other half step
        rollouts, metrics = self.stepping.recv()
        self.idle.send(action)
        self.stepping, self.idle = self.idle, self.stepping
        return rollouts, metrics
