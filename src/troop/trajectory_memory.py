"""Memory of the trajectories that a run holds at the same time, compared with what is free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from troop.core.batch import TrajectorySpec
from troop.core.env import Continuous, EnvSpec
from troop.core.errors import SetupProblem
from troop.core.memory import free_memory
from troop.env_memory import count_copies

if TYPE_CHECKING:
    from troop.experiment import Experiment

STEP_BYTES = 40  # reward, discount, flags, log-probability, version and return of a step


def step_bytes(spec: EnvSpec) -> int:
    """Return the bytes of one step of one env in a trajectory."""
    observations = sum(spec.width(name) * field.dtype.itemsize for name, field in spec.obs.items())
    action = 4 * spec.action.size if isinstance(spec.action, Continuous) else torch.int64.itemsize
    return observations + action + STEP_BYTES


def count_streams(experiment: Experiment[Any]) -> int:
    """Return how many env streams of trajectories exist at once: recorded, waiting and learned from."""
    system: Any = experiment.system
    recorded, _ = count_copies(experiment)
    batch = getattr(system, "batch_size", None)
    if not isinstance(batch, int):  # each rollout is learned from where it was recorded
        return 2 * recorded
    batches = 1 + getattr(system, "prefetch", 1) + getattr(system, "circular_buffer_size", 1)
    return recorded + batch * batches * int(getattr(system, "learners", 1))


def check_trajectory_memory(experiment: Experiment[Any]) -> None:
    """Raise SetupProblem with the number of steps that would fit if the trajectories do not."""
    experience = experiment.algorithm.experience
    if not isinstance(experience, TrajectorySpec):
        return
    streams, row, free = count_streams(experiment), step_bytes(experiment.env.spec), free_memory()
    needed = streams * row * experience.length
    if needed <= free:
        return
    length = "unroll" if hasattr(experiment.algorithm, "unroll_length") else "rollout"
    most = int(0.8 * free / (streams * row))
    cure = f"--{length}-length {most} would fit" if most else "lower --envs or --batch-size"
    raise SetupProblem(
        f"{streams:,} env streams of {experience.length:,} steps of {row:,} B need {needed / 1e9:.1f} GB and "
        f"{free / 1e9:.1f} GB are free; {cure}."
    )
