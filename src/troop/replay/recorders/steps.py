"""The recorder of plain steps: every vector step becomes one piece of time-ordered rows."""

from __future__ import annotations

import torch
from torch import Tensor

from troop.core.algorithm import PolicyOutput
from troop.core.batch import Rollout
from troop.core.env import Obs, Step


class StepRecorder:
    """Hands each step over at once; n-step windows are formed when the replay is sampled."""

    def __init__(self, envs: int, first: int = 0) -> None:
        self.streams = torch.arange(first, first + envs)  # host side, as the replay keeps its heads there
        self.obs: Obs = {}
        self.action = torch.empty(0)

    def on_action(self, obs: Obs, acted: PolicyOutput) -> None:
        """Remember what was acted on and how."""
        self.obs, self.action = obs, acted.action

    def on_step(self, step: Step) -> list[Rollout]:
        """The rows of this step, and closing rows where the env was reset within it.

        A row that is not valid was acted on a final observation (EnvPool's extra row) or answered by a
        fault: its observation closes the episode, and its action and answer mean nothing.
        """
        closing = ~step.valid
        row = Rollout(
            self.streams,
            {name: x.unsqueeze(0) for name, x in self.obs.items()},
            self.action.unsqueeze(0),
            step.reward.unsqueeze(0),
            (step.terminated & step.valid).unsqueeze(0),
            (step.truncated & step.valid).unsqueeze(0),
            closing.unsqueeze(0),
        )
        return [row, *self.closed(step)]

    def closed(self, step: Step) -> list[Rollout]:
        """Rows for what followed where the env was reset within the step: the successor is not the next row.

        Not after a termination, where nobody bootstraps and the successor is never looked at.
        """
        if step.next_obs is step.obs or not step.truncated.any():
            return []
        where = step.truncated.nonzero().squeeze(1)
        final = {name: x[where] for name, x in step.next_obs.items()}
        return [self._closing(final, self.streams[where.cpu()])]

    def flush(self, obs: Obs) -> list[Rollout]:
        """One closing row per stream, at the observation reached."""
        return [self._closing(obs, self.streams)] if self.action.numel() else []

    def _closing(self, obs: Obs, streams: Tensor) -> Rollout:
        count, device = len(streams), self.action.device
        nothing = torch.zeros(1, count, dtype=torch.bool, device=device)
        return Rollout(
            streams,
            {name: x.unsqueeze(0) for name, x in obs.items()},
            torch.zeros_like(self.action[:count]).unsqueeze(0),
            torch.zeros(1, count, device=device),
            nothing,
            nothing,
            ~nothing,
        )
