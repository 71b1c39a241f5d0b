"""What every library of ppo.py is given: task, envs, rollout, passes, network; and what it reports.

It needs only Python's standard library: each library imports it in a virtual environment of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import time
from dataclasses import dataclass

PACKAGES = ("trooprl", "stable-baselines3", "sample-factory", "ray", "torch", "envpool", "gymnasium", "numpy")
WARMUP_ROLLOUTS = 2  # rollouts and updates before the clock starts
RESULT = "result: "  # begins the line that the parent process reads


@dataclass(frozen=True)
class Workload:
    """One task with the settings that all libraries share; networks and passes are those of Troop's `ppo`."""

    task: str
    envs: int = 64
    length: int = 64
    epochs: int = 5
    minibatches: int = 8
    hidden: tuple[int, ...] = (128, 128)  # tanh, separate networks for actor and critic
    images: bool = False  # Nature CNN with 512 features, shared by actor and critic, in place of `hidden`
    gamma: float = 0.995
    gae_lambda: float = 0.97
    clip: float = 0.2
    lr: float = 3e-4
    seconds: float = 20.0  # of the measurement
    threads: int = 2  # cores of the machine

    @property
    def batch(self) -> int:
        """Env steps per rollout."""
        return self.envs * self.length

    @property
    def minibatch(self) -> int:
        """Rows per gradient step."""
        return self.batch // self.minibatches


WORKLOADS = {
    "CartPole-v1": Workload("CartPole-v1"),
    "HalfCheetah-v5": Workload("HalfCheetah-v5"),
    "Pong-v5": Workload("Pong-v5", 8, 128, 4, 4, images=True, gamma=0.99, gae_lambda=0.95, clip=0.1),
}


class Clock:
    """Counts rollouts; measures env steps per second after the warm-up."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.rollouts, self.start, self.end = workload, 0, 0.0, 0.0

    def rollout(self) -> bool:
        """Count a rollout with its update; return whether the measurement is complete."""
        self.rollouts += 1
        self.end = time.perf_counter()
        if self.rollouts <= WARMUP_ROLLOUTS:
            self.start = self.end
        return self.rollouts > WARMUP_ROLLOUTS and self.end - self.start >= self.workload.seconds

    def report(self) -> None:
        """Print the result."""
        report((self.rollouts - WARMUP_ROLLOUTS) * self.workload.batch, self.end - self.start)


def report(env_steps: int, seconds: float) -> None:
    """Print env steps, seconds and versions for the parent process."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    print(RESULT + json.dumps({"env_steps": env_steps, "seconds": seconds, "versions": versions}), flush=True)


def parse() -> Workload:
    """Return the workload of the command line, which ppo.py writes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=list(WORKLOADS))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    return dataclasses.replace(WORKLOADS[args.task], seconds=args.seconds, threads=args.threads)
