"""Train Troop's `appo` or `impala` and report env steps per second; appo.py calls this script."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import appo_workload
import ppo_workload

import troop

WARMUP_S = 5.0  # after the first update


def main() -> None:
    """Train as a user does, on processes; the rate is that of metrics.jsonl after the warm-up."""
    workload, recipe = appo_workload.parse("--recipe", ("appo", "impala"))
    length = "rollout_length" if recipe == "appo" else "unroll_length"
    settings: dict[str, Any] = {length: workload.length, "gamma": workload.gamma}
    if recipe == "appo":
        names = ("epochs", "minibatches", "gae_lambda", "clip")
        settings |= {name: getattr(workload, name) for name in names}
    if workload.images:
        settings["net"] = "nature"
    else:
        settings["hidden"] = workload.hidden
    with tempfile.TemporaryDirectory() as folder:
        troop.train(
            recipe,
            workload.task,
            envs=workload.envs,
            minutes=(workload.seconds + WARMUP_S + 5) / 60,
            run=Path(folder) / "run",
            quiet=True,
            evaluation__episodes=1,
            evaluation__env_steps=10**12,
            evaluation__max_episode_steps=1,
            system__actors=1,
            system__batch_size=appo_workload.UNROLLS[workload.task],
            **{f"algorithm__{name}": value for name, value in settings.items()},
        )
        lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").open()]
    points = [(line["wall_s"], line["env_steps"]) for line in lines if line.get("updates", 0) > 0]
    measured = [point for point in points if point[0] >= points[0][0] + WARMUP_S]
    if len(measured) < 2:
        raise SystemExit("Fewer than two reports after the warm-up; use more --seconds.")
    (start, first), (end, last) = measured[0], measured[-1]
    ppo_workload.report(last - first, end - start)


if __name__ == "__main__":
    main()
