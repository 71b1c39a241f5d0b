"""RoundTrips: a client of an inference server that measures its calls; needs no torch."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from troop.core.env import EnvSpec
from troop.core.role import Metrics
from troop.roles.runner_step import RunnerStep

if TYPE_CHECKING:  # it imports torch
    from troop.roles.inference_server import InferenceServer

ROWS = 64
CALLS_PER_STEP = 50


class RoundTrips:
    """Calls an inference server with ROWS rows, one call at a time; imports no torch."""

    light = True

    def __init__(self, spec: EnvSpec, server: InferenceServer) -> None:
        self.server, self.ids = server, np.arange(ROWS)
        false, field = np.zeros(ROWS, dtype=bool), spec.obs["obs"]
        obs = {"obs": np.zeros((ROWS, *field.shape), field.dtype_name)}
        self.message = RunnerStep(obs, None, np.zeros(ROWS, np.float32), false, false, ~false)

    def step(self) -> Metrics:
        """Make CALLS_PER_STEP calls; return the median round trip in seconds."""
        times = []
        for _ in range(CALLS_PER_STEP):
            start = time.perf_counter()
            if self.server.act(self.ids, self.ids * 0, self.message) is not None:
                times.append(time.perf_counter() - start)
        metrics: Metrics = {"count/env_steps": len(times)}
        return metrics | ({"round_trip": statistics.median(times)} if times else {})
