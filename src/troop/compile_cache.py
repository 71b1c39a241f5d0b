"""Compile the losses of one learner into torch's cache on disk; roles/cache_filler.py starts this program."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

NICE = 10  # the process yields to training, but is not starved by it
UPDATES = 8  # in which every loss is computed at least once, also that of a delayed policy


def fill(job: dict[str, Any]) -> bool:
    """Make a few updates with compiled losses; return whether they could be compiled.

    `job` has algorithm and env as JSON, the method of the algorithm that builds the learner, device, number
    of threads, and the layout of a batch.
    """
    import torch

    from troop.core.config_json import decode
    from troop.experiment import config_class
    from troop.roles.cache_filler import batch_like

    algorithm, env = (decode(job[name], config_class, name) for name in ("algorithm", "env"))
    torch.set_num_threads(job["threads"])
    learner = getattr(algorithm, job["method"])(env.spec, device=job["device"])
    learner.set_compiled(True)
    batch = batch_like(job["batch"])
    for _ in range(UPDATES):
        learner.update(batch)
    return learner.compile_error is None


if __name__ == "__main__":
    os.nice(NICE)
    sys.exit(0 if fill(json.load(sys.stdin)) else 1)
