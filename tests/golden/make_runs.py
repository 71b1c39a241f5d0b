"""Make the golden run directories of a release: `python tests/golden/make_runs.py VERSION [RUN ...]`.

Run it once per release that changes a file of a run directory, with the code of that release, and commit the
result. The directories are never changed afterwards: test_golden_runs.py loads those of all releases.
"""

import json
import shutil
import sys
from pathlib import Path

import torch

import troop

REPLAY = {"system__learning_starts": 8, "system__replay_capacity": 400}
RUNS = {
    "sac": (
        "sac",
        "toy:PointMass",
        REPLAY
        | {
            "algorithm__actor_hidden": (8,),
            "algorithm__critic_hidden": (8,),
            "algorithm__compile": False,
            "system__schedule__batch_size": 4,
        },
    ),
    "dqn": (
        "dqn",
        "gym:CartPole-v1",
        REPLAY | {"algorithm__hidden": (8,), "system__schedule__batch_size": 4},
    ),
    "apex": (
        "apex-dqn",
        "gym:CartPole-v1",
        REPLAY | {"algorithm__hidden": (8,), "system__actors": 1, "system__learner__batch_size": 4},
    ),
    "ppo-lstm": (
        "ppo-lstm",
        "gym:CartPole-v1",
        {"algorithm__hidden": (8,), "algorithm__core_size": 4, "algorithm__rollout_length": 10},
    ),
    "impala": (
        "impala",
        "gym:CartPole-v1",
        {
            "algorithm__hidden": (8,),
            "algorithm__unroll_length": 5,
            "system__actors": 1,
            "system__batch_size": 2,
        },
    ),
    "r2d2": (
        "r2d2",
        "gym:CartPole-v1",
        {
            "algorithm__features": 8,
            "algorithm__core_size": 4,
            "algorithm__head": 8,
            "algorithm__sequence_length": 8,
            "algorithm__overlap": 2,
            "algorithm__burn_in": 2,
            "system__actors": 1,
            "system__replay_capacity": 60,
            "system__learning_starts": 4,
            "system__learner__batch_size": 2,
        },
    ),
}
EVERY_RUN = {"evaluation__episodes": 2, "evaluation__max_episode_steps": 10}
KEPT = ("config.json", "metrics.jsonl", "summary.json", "checkpoints")


def make_run(folder: Path, recipe: str, env: str, fields: dict[str, object]) -> None:
    """Train a small run, remove what is not part of the format, and store actions of its policy."""
    troop.train(
        recipe, env, envs=2, engine="inline", env_steps=120, run=folder, quiet=True, **EVERY_RUN | fields
    )
    for entry in folder.iterdir():
        if entry.name not in KEPT:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for checkpoint in sorted((folder / "checkpoints").iterdir())[:-1]:
        shutil.rmtree(checkpoint)
    metrics = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text(
        "".join([*metrics[:10], *metrics[-2:]] if len(metrics) > 12 else metrics)
    )
    policy = troop.load_policy(folder)
    obs = torch.linspace(-1, 1, 3 * policy.spec.width()).view(3, -1)
    expected = {"obs": obs.tolist(), "action": policy(obs).tolist()}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    root = Path(__file__).parent / sys.argv[1]
    for name in sys.argv[2:] or RUNS:
        recipe, env, fields = RUNS[name]
        make_run(root / name, recipe, env, fields)
