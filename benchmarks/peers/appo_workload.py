"""What every library of appo.py is given; the shape of the measurement is that of ppo_workload.py."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from ppo_workload import Workload

# Troop's `appo`: unrolls of 32, batches of 32 unrolls, two passes over two minibatches. One worker with
# `envs` envs, so that sampling and learning have a core each. Atari: Sample Factory's preset.
WORKLOADS = {
    "HalfCheetah-v5": Workload("HalfCheetah-v5", 32, 32, 2, 2),
    "CartPole-v1": Workload("CartPole-v1", 32, 32, 2, 2),
    "Pong-v5": Workload("Pong-v5", 16, 128, 4, 4, images=True, gamma=0.99, gae_lambda=0.95, clip=0.1),
}
UNROLLS = {"HalfCheetah-v5": 32, "CartPole-v1": 32, "Pong-v5": 8}  # of a batch of the learner


def parse(option: str = "", choices: Sequence[str] = ()) -> tuple[Workload, str]:
    """Return the workload of the command line, which appo.py writes, and the value of `option`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=list(WORKLOADS))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--threads", type=int, required=True)
    if option:
        parser.add_argument(option, choices=choices, required=True)
    args = vars(parser.parse_args())
    workload = dataclasses.replace(WORKLOADS[args["task"]], seconds=args["seconds"], threads=args["threads"])
    return workload, args.get(option.lstrip("-"), "")
