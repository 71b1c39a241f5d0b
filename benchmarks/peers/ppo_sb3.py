"""Train PPO of Stable-Baselines3 on EnvPool and report env steps per second; ppo.py calls this script."""

from __future__ import annotations

from typing import Any

import envpool
import numpy as np
import ppo_workload
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

Array = np.ndarray[Any, Any]
UNLIMITED = 2**31 - 1  # env steps: the callback ends the training


class EnvPoolVecEnv(VecEnv):  # type: ignore[misc] # the library is not installed where types are checked
    """EnvPool as a VecEnv, as EnvPool's example does it: envs whose episode ended are reset at once."""

    def __init__(self, workload: ppo_workload.Workload) -> None:
        options: dict[str, Any] = {"num_envs": workload.envs, "num_threads": workload.threads, "seed": 1}
        if workload.images:
            options |= {"episodic_life": True, "reward_clip": True}
        self.pool = envpool.make_gymnasium(workload.task, **options)
        space, action_space = self.pool.observation_space, self.pool.action_space
        dtype = np.uint8 if workload.images else np.float32
        obs_space = spaces.Box(space.low.astype(dtype), space.high.astype(dtype), dtype=dtype)
        self.discrete = hasattr(action_space, "n")
        if not self.discrete:
            action_space = spaces.Box(-1, 1, action_space.shape, np.float32)
        self.dtype, self.pending = dtype, np.empty(0)
        super().__init__(workload.envs, obs_space, action_space)

    def reset(self) -> Array:
        """Start new episodes."""
        return np.asarray(self.pool.reset()[0], self.dtype)

    def step_async(self, actions: Array) -> None:
        """Keep the actions."""
        self.pending = actions if self.discrete else actions.astype(np.float64)

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        """Make the step."""
        obs, reward, terminated, truncated, _ = self.pool.step(self.pending)
        obs, done = np.array(obs, self.dtype), terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        rows = np.nonzero(done)[0]
        for row in rows:
            limit = bool(truncated[row] and not terminated[row])
            infos[row] = {"terminal_observation": obs[row].copy(), "TimeLimit.truncated": limit}
        if len(rows):
            obs[rows] = self.pool.reset(rows.astype(np.int32))[0]
        return obs, reward, done, infos

    def close(self) -> None:
        """Release threads and memory."""
        self.pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ANN401
        """Return an attribute for each env; only the render mode is asked for."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: ANN401
        """Do nothing."""

    def env_method(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:  # noqa: ANN401
        """Return nothing for each env."""
        return [None] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ANN401
        """Return False for each env."""
        return [False] * self.num_envs


class RolloutClock(BaseCallback):  # type: ignore[misc] # the library is not installed where types are checked
    """Ends the training when the measurement is complete."""

    def __init__(self, clock: ppo_workload.Clock) -> None:
        super().__init__()
        self.clock, self.complete = clock, False

    def _on_rollout_start(self) -> None:
        """Count the rollout before, with its update."""
        if self.num_timesteps:
            self.complete = self.clock.rollout()

    def _on_step(self) -> bool:
        return not self.complete


def main() -> None:
    """Train until the measurement is complete."""
    workload = ppo_workload.parse()
    env, clock = EnvPoolVecEnv(workload), ppo_workload.Clock(workload)
    layers = list(workload.hidden)
    options: dict[str, Any] = {} if workload.images else {"net_arch": {"pi": layers, "vf": layers}}
    if not workload.images:
        options["activation_fn"] = torch.nn.Tanh
    model = PPO(
        "CnnPolicy" if workload.images else "MlpPolicy",
        env if workload.images else VecNormalize(env, gamma=workload.gamma),
        learning_rate=workload.lr,
        n_steps=workload.length,
        batch_size=workload.minibatch,
        n_epochs=workload.epochs,
        gamma=workload.gamma,
        gae_lambda=workload.gae_lambda,
        clip_range=workload.clip,
        ent_coef=0.01,
        policy_kwargs=options,
        device="cpu",
        seed=1,
    )
    model.learn(UNLIMITED, callback=RolloutClock(clock), log_interval=None)
    clock.report()


if __name__ == "__main__":
    main()
