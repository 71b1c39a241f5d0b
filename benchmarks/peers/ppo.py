"""Compare env steps per second of complete PPO training: Troop, CleanRL, Stable-Baselines3, Sample Factory.

`python benchmarks/peers/ppo.py` runs every library on every task in turn, each in a virtual environment of
its own, `--rounds` times, and prints one table with the medians. It needs only Python's standard library.
README.md describes what is equal and what is not.
"""

from __future__ import annotations

import sys

from ppo_workload import WORKLOADS
from rates import ROOT, Library, compare

LIBRARIES = {
    "troop": Library("Troop", (f"{ROOT}[envpool]",), "ppo_troop.py"),
    "cleanrl": Library("CleanRL's structure", ("envpool", "gymnasium"), "ppo_plain.py"),
    "sb3": Library("Stable-Baselines3", ("stable-baselines3", "envpool", "gymnasium[mujoco]"), "ppo_sb3.py"),
    "sample-factory": Library(
        "Sample Factory",
        ("sample-factory==2.1.1", "envpool==1.2.5", "gymnasium[mujoco]<1"),
        "ppo_sample_factory.py",
        only_torch=True,
    ),
}

if __name__ == "__main__":
    sys.exit(compare(sys.argv[1:], LIBRARIES, {task: list(LIBRARIES) for task in WORKLOADS}))
