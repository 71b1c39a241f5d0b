"""EnvRunner: steps envs whose actions an inference server chooses (SEED RL)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from troop.core.env import Step, VectorEnv
from troop.core.program import derive_seed
from troop.core.remote import Future, call_async
from troop.core.role import Metrics
from troop.roles.collector import EpisodeCounter, take_messages
from troop.roles.inference_server import InferenceServer, RunnerStep


class EnvGroup:
    """Envs that step together, and the request for their next actions."""

    def __init__(self, make: Callable[[int], VectorEnv], seed: int, first: int) -> None:
        self.env = make(seed)
        self.last_step: Step = self.env.reset(seed)
        self.ids = torch.arange(first, first + len(self.last_step.reward))
        self.episodes = EpisodeCounter(self.last_step)
        self.request: Future[Tensor | None] | None = None


class EnvRunner:
    """Steps one group of envs per `step`, in turn: while one group steps, the server acts for the other.

    It holds no network and no state of a policy.
    """

    kind = "acting"
    restart_fresh = True  # a restarted runner starts new episodes

    def __init__(
        self,
        make: Callable[[int], VectorEnv],
        groups: int,
        envs: int,
        seed: int,
        server: InferenceServer,
        first: int,
    ) -> None:
        self.server = server
        self.notes: list[str] = []
        self.files: dict[str, str] = {}  # texts for the run directory
        self._make, self._groups, self._envs, self._seed, self._first = make, groups, envs, seed, first
        self.groups: list[EnvGroup] = []
        self._turn = 0

    def step(self) -> Metrics | None:
        """Step the next group whose actions have arrived; None if there is none."""
        if not self.groups:
            self._begin()
        for _ in self.groups:
            group = self.groups[self._turn]
            self._turn = (self._turn + 1) % len(self.groups)
            request = group.request or self._ask(group)
            if request.ready():
                group.request, action = None, request.result()
                if action is not None:  # otherwise the learner is behind: ask again in a later step
                    return self._advance(group, action)
        return None

    def _begin(self) -> None:
        """Make the envs; those of a restarted runner do not repeat its first episodes."""
        runs = self.server.register(self._first, self._groups * self._envs)
        for number in range(self._groups):
            seed = derive_seed(self._seed, f"group {number} run {runs}")
            group = EnvGroup(self._make, seed, self._first + number * self._envs)
            take_messages(group.env, self.notes, self.files)
            self.groups.append(group)

    def _ask(self, group: EnvGroup) -> Future[Tensor | None]:
        group.request = call_async(self.server.act, group.ids, RunnerStep.of(group.last_step))
        return group.request

    def _advance(self, group: EnvGroup, action: Tensor) -> Metrics:
        group.last_step = step = group.env.step(action)
        self._ask(group)
        metrics = group.episodes.add(step)
        if step.faults:
            take_messages(group.env, self.notes, self.files)
        return metrics

    def close(self) -> None:
        """Close the envs."""
        for group in self.groups:
            group.env.close()
