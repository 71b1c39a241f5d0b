"""Train one peer on one task for a number of minutes and write its learning curve; run.py calls this script.

It runs in the virtual environment of the peer. Library and task have their defaults: one env, the library's
own hyperparameters, all cores.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback  # SBX builds on Stable-Baselines3

DMC_MODULE = "envpool.mujoco.dmc"
EVALUATION_SEED = 10_000  # plus the seed of the run
PACKAGES = ("stable-baselines3", "sbx-rl", "torch", "jax", "flax", "gymnasium", "envpool", "mujoco", "numpy")
UNLIMITED = 2**31 - 1  # env steps: the callback ends the training

Array = np.ndarray[Any, Any]


def flatten(obs: dict[str, Array]) -> Array:
    """Concatenate the arrays of a DMC observation, [envs, ...] each, to [envs, columns] in float32."""
    parts = [np.asarray(obs[key], np.float32) for key in sorted(obs)]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], -1)


class EnvPoolTasks:
    """DMC tasks of EnvPool; `reset` starts new episodes, also in the middle of one."""

    def __init__(self, task: str, envs: int, seed: int) -> None:
        import envpool

        self.pool = envpool.make_gymnasium(task, num_envs=envs, num_threads=1, seed=seed)
        self.columns = flatten(self.pool.reset()[0]).shape[1]

    def reset(self) -> Array:
        """Return the first observations, [envs, columns]."""
        return flatten(self.pool.reset()[0])

    def step(self, action: Array) -> tuple[Array, Array, Array, Array]:
        """Return observations, rewards, terminated and truncated."""
        obs, reward, terminated, truncated, _ = self.pool.step(action.astype(np.float64))
        return flatten(obs), reward, terminated, truncated

    def close(self) -> None:
        """Release threads and memory."""
        self.pool.close()


class EnvPoolTask(gymnasium.Env[Array, Array]):
    """One DMC task as a Gymnasium env; its seed is given at construction."""

    def __init__(self, task: str, seed: int) -> None:
        self.tasks = EnvPoolTasks(task, 1, seed)
        space = self.tasks.pool.action_space
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.tasks.columns,), np.float32)
        self.action_space = gymnasium.spaces.Box(
            space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start a new episode."""
        return self.tasks.reset()[0], {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Make one step; the caller resets after the end of an episode."""
        obs, reward, terminated, truncated = self.tasks.step(action[None])
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}


class GymnasiumTasks:
    """Gymnasium envs that step together, without the autoreset that evaluation does not need."""

    def __init__(self, task: str, envs: int, seed: int) -> None:
        self.envs, self.seed = [gymnasium.make(task) for _ in range(envs)], seed

    def reset(self) -> Array:
        """Return the first observations, [envs, columns]."""
        return np.stack([env.reset(seed=self.seed + i)[0] for i, env in enumerate(self.envs)])

    def step(self, action: Array) -> tuple[Array, Array, Array, Array]:
        """Return observations, rewards, terminated and truncated."""
        columns = zip(*(env.step(row)[:4] for env, row in zip(self.envs, action, strict=True)), strict=True)
        obs, reward, terminated, truncated = (np.stack(column) for column in columns)
        return obs, reward, terminated, truncated

    def close(self) -> None:
        """Close all envs."""
        for env in self.envs:
            env.close()


def is_dmc(task: str) -> bool:
    """Return whether the task is a DeepMind Control task of EnvPool, whose episodes are those of Troop."""
    import envpool.registration

    entry = envpool.registration.registry.specs.get(task)
    return entry is not None and entry[0] == DMC_MODULE


def evaluate(predict: Callable[[Array], Array], tasks: EnvPoolTasks | GymnasiumTasks) -> float:
    """Return the mean return of the first episode of each env."""
    obs = tasks.reset()
    returns, running = np.zeros(len(obs)), np.ones(len(obs), bool)
    while running.any():
        obs, reward, terminated, truncated = tasks.step(predict(obs))
        returns += np.where(running, reward, 0.0)
        running &= ~(terminated | truncated)
    tasks.close()
    return float(returns.mean())


class CurveRecorder(BaseCallback):  # type: ignore[misc] # not installed where types are checked
    """Evaluates on schedule and ends the training; the time of evaluations is not training time."""

    def __init__(self, seconds: float, evaluations: int, make: Callable[[], Any], title: str) -> None:
        super().__init__()
        self.seconds, self.evaluations, self.make, self.title = seconds, evaluations, make, title
        self.points: list[tuple[float, int, float]] = []  # training seconds, env steps, mean return
        self.pauses = 0.0

    def _on_training_start(self) -> None:
        self.start = time.monotonic()

    def _on_step(self) -> bool:
        """Return False, which ends the training, after the last evaluation."""
        elapsed = time.monotonic() - self.start - self.pauses
        if elapsed < self.seconds * (len(self.points) + 1) / self.evaluations:
            return True
        begin = time.monotonic()
        # New envs from the same seed each time, as Troop does: two evaluations of one policy are equal.
        result = evaluate(lambda obs: self.model.predict(obs, deterministic=True)[0], self.make())
        self.points.append((round(elapsed, 3), self.num_timesteps, result))
        print(
            f"{self.title}: {elapsed:.0f} s, {self.num_timesteps:,} env steps, return {result:.1f}",
            flush=True,
        )
        self.pauses += time.monotonic() - begin
        return len(self.points) < self.evaluations


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that matter."""
    installed = {item.metadata["Name"].replace("_", "-").lower(): item.version for item in _packages()}
    return {"python": platform.python_version()} | {k: installed[k] for k in PACKAGES if k in installed}


def _packages() -> list[importlib.metadata.Distribution]:
    return list(importlib.metadata.distributions())


def machine() -> dict[str, Any]:
    """Return the CPU and the number of cores that this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {"cpu": models[0] if models else "unknown", "cores": len(os.sched_getaffinity(0))}


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", help="stable_baselines3 or sbx")
    parser.add_argument("algorithm", help="name of the algorithm in lower case")
    for name, kind in (("name", str), ("task", str), ("seed", int), ("minutes", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--command", required=True, help="how to repeat the run, for the file")
    parser.add_argument("--out", type=Path, required=True, help="file of the curve")
    parser.add_argument("--evaluations", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=10)
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Train and write the curve."""
    args = parse(argv)
    kind = getattr(importlib.import_module(args.module), args.algorithm.upper())
    dmc = is_dmc(args.task)
    env = EnvPoolTask(args.task, args.seed) if dmc else gymnasium.make(args.task)
    tasks = EnvPoolTasks if dmc else GymnasiumTasks
    recorder = CurveRecorder(
        60 * args.minutes,
        args.evaluations,
        lambda: tasks(args.task, args.episodes, EVALUATION_SEED + args.seed),
        f"{args.name} {args.task} seed {args.seed}",
    )
    model = kind("MlpPolicy", env, seed=args.seed)
    model.learn(UNLIMITED, callback=recorder)
    curve = {
        "name": args.name,
        "command": args.command,
        "versions": versions(),
        "points": recorder.points,
        "task": args.task,
        "seed": args.seed,
        "minutes": args.minutes,
        "episodes": args.episodes,
        "machine": machine(),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    partial = args.out.with_suffix(".partial")
    partial.write_text(json.dumps(curve, indent=1))
    partial.replace(args.out)


if __name__ == "__main__":
    main(sys.argv[1:])
