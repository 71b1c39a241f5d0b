"""TrainedPolicy: a policy that takes what its env returns and returns what its env takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from troop.core.algorithm import Policy
from troop.core.batch import State
from troop.core.env import Continuous, EnvConfig, Obs
from troop.core.system import Evaluation
from troop.envs.interface import find_interface
from troop.envs.last_step import LAST_ACTION, LAST_REWARD, last_step_rows


class TrainedPolicy:
    """A trained policy and the env in which it is evaluated; call it with observations to get actions.

    `checkpoint` describes the checkpoint it was loaded from: name, env steps, time, return then.
    """

    def __init__(
        self, module: Policy, env: EnvConfig, evaluation: Evaluation | None = None, checkpoint: str = ""
    ) -> None:
        self.module, self.env, self.spec, self.checkpoint = module, env, env.spec, checkpoint
        self.evaluation = evaluation or Evaluation()
        module.eval()
        self.interface = find_interface(env)
        self._stacks: Obs = {}
        self._state: State = None
        self._rows = 0  # of the state; 0: a new episode begins
        self._last_action: Tensor | None = None

    def act(self, obs: Obs) -> Tensor:
        """Return deterministic actions for named observations [rows, ...], as `VectorEnv.step` takes them.

        A recurrent policy continues its episodes, one per row; `reset` begins new ones.
        """
        rows = len(next(iter(obs.values())))
        if rows != self._rows:
            self._state, self._rows = self.module.initial_state(rows), rows
        device = next(self.module.parameters()).device
        output = self.module.act(obs, self._state, torch.zeros(rows, device=device))
        self._state = output.state
        return output.action

    def reset(self) -> None:
        """Begin new episodes; needed only if the policy is recurrent or stacks frames (`env.frames`)."""
        self._stacks, self._state, self._rows = {}, None, 0
        self._last_action = None

    def __call__(
        self,
        obs: Any,  # noqa: ANN401 - NumPy or torch
        scaled: bool = True,
        reward: Any = 0.0,  # noqa: ANN401 - a number or one per row
    ) -> Any:  # noqa: ANN401 - as `obs`
        """Return the deterministic action for one observation, or actions for a batch of them.

        Takes observations as the env returns them (a dict of arrays, images with channels last) or as named
        rows of `spec`, and returns actions as the env takes them: in its units, shape and dtype. With
        scaled=False continuous actions are flat and in [-1, 1]. The result is a torch tensor if `obs` is one
        or has one, else a NumPy array. If the policy is recurrent or stacks frames, call it once per step
        with the newest observation, and `reset` at the start of an episode. `reward` is that of the last
        action, for policies that read it (`env.last_step`). Raises BadInput for other observations.
        """
        rows, single, is_unstacked = self.interface.read(obs)
        if is_unstacked:
            rows = self._stack_frames(rows)
        if LAST_ACTION in self.spec.obs:
            rows = rows | self._last_step(len(next(iter(rows.values()))), reward)
        device = next(self.module.parameters()).device
        action = self.act({name: x.to(device) for name, x in rows.items()}).cpu()
        self._last_action = action
        if isinstance(self.spec.action, Continuous) and not scaled:
            result = action.clamp(-1, 1).numpy()
        else:
            result = self.interface.write(action)
        result = result[0] if single else result
        values = obs.values() if isinstance(obs, dict) else [obs]
        return torch.as_tensor(result) if any(isinstance(x, Tensor) for x in values) else np.asarray(result)

    def _last_step(self, rows: int, reward: Any) -> Obs:  # noqa: ANN401 - a number or one per row
        """Return the last action and reward as observations; zeros at the start of an episode."""
        if self._last_action is None or len(self._last_action) != rows:
            names = (LAST_ACTION, LAST_REWARD)
            return {name: torch.zeros(rows, *self.spec.obs[name].shape) for name in names}
        rewards = np.broadcast_to(np.asarray(reward, dtype=np.float32), (rows,))
        last = last_step_rows(self._last_action.numpy(), rewards, self.spec.action)
        return {name: torch.from_numpy(x) for name, x in last.items()}

    def _stack_frames(self, rows: Obs) -> Obs:
        """Append single frames to the stacks of the episode; the first one is repeated."""
        for name, field in self.spec.obs.items():
            if field.stack == 1 or name not in rows:
                continue
            frame, old = rows[name], self._stacks.get(name)
            if old is None or len(old) != len(frame):
                old = frame.repeat(1, field.stack, 1, 1)
            self._stacks[name] = rows[name] = torch.cat((old[:, frame.shape[1] :], frame), 1)
        return rows
