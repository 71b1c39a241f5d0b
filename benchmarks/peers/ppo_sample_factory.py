"""Train Sample Factory's synchronous PPO on EnvPool and report env steps per second; ppo.py calls it.

Its settings for EnvPool: one worker in the process of the learner (`serial_mode`), batched sampling,
`async_rl` off. The env resets finished episodes at once, as the library's own EnvPool examples do.
"""

from __future__ import annotations

import functools
import tempfile
import time
from typing import Any

import envpool
import gymnasium
import numpy as np
import ppo_workload
from gymnasium import spaces
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

Array = np.ndarray[Any, Any]
Step = tuple[Array, Array, Array, Array, dict[str, Any]]


class EnvPoolBatch(gymnasium.Env[Any, Any]):
    """All envs of EnvPool as the agents of one env."""

    def __init__(self, workload: ppo_workload.Workload) -> None:
        options: dict[str, Any] = {"num_envs": workload.envs, "num_threads": workload.threads, "seed": 1}
        if workload.images:
            options |= {"episodic_life": True, "reward_clip": True}
        self.pool: Any = envpool.make_gymnasium(workload.task, **options)
        space, action_space = self.pool.observation_space, self.pool.action_space
        self.dtype = np.uint8 if workload.images else np.float32
        low, high = space.low.astype(self.dtype), space.high.astype(self.dtype)
        self.observation_space = spaces.Box(low, high, dtype=self.dtype)
        self.discrete = hasattr(action_space, "n")
        self.action_space = (
            spaces.Discrete(int(action_space.n))
            if self.discrete
            else spaces.Box(-1, 1, action_space.shape, np.float32)
        )
        self.num_agents, self.is_multiagent, self.render_mode = workload.envs, True, None

    def reset(self, **kwargs: Any) -> tuple[Array, dict[str, Any]]:  # noqa: ANN401
        """Start new episodes."""
        return np.asarray(self.pool.reset()[0], self.dtype), {}

    def step(self, actions: Any) -> Step:  # type: ignore[override] # noqa: ANN401
        """Make one step of all envs."""
        actions = np.asarray(actions)
        actions = actions.reshape(self.num_agents, -1)
        actions = actions[:, 0].astype(np.int32) if self.discrete else actions.astype(np.float64)
        obs, reward, terminated, truncated, _ = self.pool.step(actions)
        obs, rows = np.array(obs, self.dtype), np.nonzero(terminated | truncated)[0]
        if len(rows):
            obs[rows] = self.pool.reset(rows.astype(np.int32))[0]
        return obs, reward.astype(np.float32), terminated, truncated, {}

    def close(self) -> None:
        """Release threads and memory; EnvPool's own `close` needs a newer Gymnasium."""
        self.pool = None


def make_env(workload: ppo_workload.Workload, *args: object, **kwargs: object) -> EnvPoolBatch:
    """Make the envs; other processes look this function up by its name."""
    return EnvPoolBatch(workload)


def arguments(workload: ppo_workload.Workload, folder: str) -> list[str]:
    """Return the command line of Sample Factory."""
    values: dict[str, object] = {
        "env": "envpool_batch",
        "experiment": "ppo",
        "train_dir": folder,
        "device": "cpu",
        "seed": 1,
        "async_rl": False,
        "serial_mode": True,
        "batched_sampling": True,
        "num_workers": 1,
        "num_envs_per_worker": 1,
        "worker_num_splits": 1,
        "rollout": workload.length,
        "recurrence": 1,
        "use_rnn": False,
        "batch_size": workload.minibatch,
        "num_batches_per_epoch": workload.minibatches,
        "num_epochs": workload.epochs,
        "gamma": workload.gamma,
        "gae_lambda": workload.gae_lambda,
        "ppo_clip_ratio": workload.clip,
        "learning_rate": workload.lr,
        "exploration_loss_coeff": 0.01,
        "with_vtrace": False,
        "value_bootstrap": True,
        "adaptive_stddev": False,
        "normalize_input": not workload.images,
        "normalize_returns": not workload.images,
        "nonlinearity": "relu" if workload.images else "tanh",
        "actor_critic_share_weights": workload.images,
        "encoder_conv_architecture": "convnet_atari",
        "encoder_conv_mlp_layers": 512,
        "obs_scale": 255.0 if workload.images else 1.0,
        "save_every_sec": 100_000,
        "save_best_every_sec": 100_000,
        "set_workers_cpu_affinity": False,
    }
    flags = [f"--{name}={value}" for name, value in values.items()]
    return [*flags, "--encoder_mlp_layers", *map(str, workload.hidden)]


def main() -> None:
    """Train for the given time; the rate is that of the library's own counts after the first report."""
    workload = ppo_workload.parse()
    register_env("envpool_batch", functools.partial(make_env, workload))
    with tempfile.TemporaryDirectory() as folder:
        argv = arguments(workload, folder)
        parser, _ = parse_sf_args(argv=argv)
        _, runner = make_runner(parse_full_cfg(parser, argv))
        runner.init()
        # The library's own --train_for_seconds has no effect in 2.1.1: nothing adds to the time it compares.
        deadline = time.monotonic() + workload.seconds + 12
        runner._should_end_training = lambda: time.monotonic() > deadline
        runner.run()
        points = list(runner.fps_stats)  # (time, env steps) every five seconds
    measured = [point for point in points if point[1] >= ppo_workload.WARMUP_ROLLOUTS * workload.batch]
    if len(measured) < 2:
        raise SystemExit("Fewer than two reports after the warm-up; use more --seconds.")
    (start, first), (end, last) = measured[0], measured[-1]
    ppo_workload.report(last - first, end - start)


if __name__ == "__main__":
    main()
