"""StepRecorder: each vector step is one rollout of length 1."""

from __future__ import annotations

import torch
from torch import Tensor

from troop.core.algorithm import PolicyOutput
from troop.core.batch import Rollout, State
from troop.core.env import Obs, Step


class StepRecorder:
    """Returns each step at once; the replay forms n-step windows when it is sampled."""

    def __init__(self, envs: int, first_stream: int = 0) -> None:
        self.streams = torch.arange(first_stream, first_stream + envs)  # on the host, as replays expect
        self.obs: Obs = {}
        self.action = torch.empty(0)

    def on_action(self, obs: Obs, output: PolicyOutput, state: State = None, version: int = -1) -> None:
        """Record observation and action."""
        self.obs, self.action = obs, output.action

    def on_step(self, step: Step) -> list[Rollout]:
        """Return the rows of this step, and closing rows of envs that were reset within it.

        The action of a row that is not valid was computed from a final observation (EnvPool's extra row) or
        its step was an env fault: its observation closes the episode; action and reward have no meaning.
        """
        rows = Rollout(
            self.streams,
            {name: x.unsqueeze(0) for name, x in self.obs.items()},
            self.action.unsqueeze(0),
            step.reward.unsqueeze(0),
            (step.terminated & step.valid).unsqueeze(0),
            (step.truncated & step.valid).unsqueeze(0),
            (~step.valid).unsqueeze(0),
        )
        return [rows, *self.closing_rows(step)]

    def closing_rows(self, step: Step) -> list[Rollout]:
        """Return closing rows of envs that were truncated and reset within this step.

        Their final observation is not in the next row. Terminated envs need none: nothing is bootstrapped
        from their final observation.
        """
        if step.next_obs is step.obs or not step.truncated.any():
            return []
        envs = step.truncated.nonzero().squeeze(1)
        final_obs = {name: x[envs] for name, x in step.next_obs.items()}
        return [self._closing_rows(final_obs, self.streams[envs.cpu()])]

    def flush(self, obs: Obs) -> list[Rollout]:
        """Return one closing row per stream, with the observation `obs`."""
        return [self._closing_rows(obs, self.streams)] if self.action.numel() else []

    def _closing_rows(self, obs: Obs, streams: Tensor) -> Rollout:
        count, device = len(streams), self.action.device
        false = torch.zeros(1, count, dtype=torch.bool, device=device)
        return Rollout(
            streams,
            {name: x.unsqueeze(0) for name, x in obs.items()},
            torch.zeros_like(self.action[:count]).unsqueeze(0),
            torch.zeros(1, count, device=device),
            false,
            false,
            ~false,
        )
