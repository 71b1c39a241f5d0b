"""Train Troop's recipes `ppo` and `ppo-atari` and report env steps per second; ppo.py calls this script."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import ppo_workload

import troop


def main() -> None:
    """Train as a user does; the rate is that of the lines of metrics.jsonl after the warm-up."""
    workload = ppo_workload.parse()
    settings: dict[str, Any] = {
        "rollout_length": workload.length,
        "epochs": workload.epochs,
        "minibatches": workload.minibatches,
        "gamma": workload.gamma,
        "gae_lambda": workload.gae_lambda,
        "clip": workload.clip,
    }
    if not workload.images:
        settings["hidden"] = workload.hidden
    with tempfile.TemporaryDirectory() as folder:
        troop.train(
            "ppo-atari" if workload.images else "ppo",
            workload.task,
            envs=workload.envs,
            minutes=(workload.seconds + 10) / 60,
            run=Path(folder) / "run",
            quiet=True,
            evaluation__episodes=1,
            evaluation__env_steps=10**12,
            evaluation__max_episode_steps=1,
            **{f"algorithm__{name}": value for name, value in settings.items()},
        )
        lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").open()]
    points = [(line["wall_s"], line["env_steps"], line["updates"]) for line in lines if "updates" in line]
    measured = [point for point in points if point[2] >= ppo_workload.WARMUP_ROLLOUTS]
    if len(measured) < 2:
        raise SystemExit("Fewer than two reports after the warm-up; use more --seconds.")
    (start, first, _), (end, last, _) = measured[0], measured[-1]
    ppo_workload.report(last - first, end - start)


if __name__ == "__main__":
    main()
