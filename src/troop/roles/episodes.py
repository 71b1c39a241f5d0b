"""Counts of env steps and episodes, and the messages of an env, for every role that steps envs."""

from __future__ import annotations

from typing import Any

import numpy as np

from troop.core.env import Step
from troop.core.numpy_env import NumPyStep
from troop.core.role import HasFiles, HasNotes, Metrics


class EpisodeCounter:
    """Counts env steps, faults and episodes, and sums the rewards of the current episodes."""

    def __init__(self, first: Step | NumPyStep) -> None:
        self.returns: Any = first.reward * 0  # of the current episodes; tensor or array, as in steps

    def add(self, step: Step | NumPyStep) -> Metrics:
        """Return the counts of a step, with the mean return of the episodes that it ends."""
        metrics: Metrics = {"count/env_steps": _count_true(step.valid)}
        if step.faults:
            metrics["count/env_faults"] = step.faults
            self.returns[~step.valid] = 0.0
        self.returns += step.reward
        ended: Any = step.terminated | step.truncated
        if episodes := _count_true(ended):
            metrics |= {"train/return": self.returns[ended].mean(), "count/episodes": episodes}
            self.returns[ended] = 0.0
        return metrics


def take_messages(env: object, notes: list[str], files: dict[str, str]) -> None:
    """Move the notes and files of an env, if it has any, to those of a role."""
    if isinstance(env, HasNotes):
        notes += env.notes
        env.notes.clear()
    if isinstance(env, HasFiles):
        files.update(env.files)
        env.files.clear()


def _count_true(mask: Any) -> int:  # noqa: ANN401 - a tensor or an array
    """Count the true elements; for small tensors on the host NumPy is ten times faster than torch."""
    return int(np.count_nonzero(mask if isinstance(mask, np.ndarray) else mask.cpu().numpy()))
