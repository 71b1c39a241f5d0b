"""Compare env steps per second of asynchronous training: Troop, Sample Factory and RLlib.

`python benchmarks/peers/appo.py` runs APPO of Troop and of Sample Factory on HalfCheetah and Pong, IMPALA and
APPO of Troop and of RLlib on CartPole, in turn, `--rounds` times, and prints the medians. README.md describes
what is equal and what is not.
"""

from __future__ import annotations

import sys

from rates import ROOT, Library, compare

TROOP = (f"{ROOT}[envpool]",)
RLLIB = ("ray[rllib]==2.60.0", "gymnasium")
LIBRARIES = {
    "troop-appo": Library("Troop APPO", TROOP, "appo_troop.py", ("--recipe", "appo"), "troop"),
    "troop-impala": Library("Troop IMPALA", TROOP, "appo_troop.py", ("--recipe", "impala"), "troop"),
    "sample-factory": Library(
        "Sample Factory APPO",
        ("sample-factory==2.1.1", "envpool==1.2.5", "gymnasium[mujoco]<1"),
        "appo_sample_factory.py",
        venv="sample-factory",
        only_torch=True,
    ),
    "rllib-appo": Library(
        "RLlib APPO", RLLIB, "appo_rllib.py", ("--algorithm", "appo"), "rllib", only_torch=True
    ),
    "rllib-impala": Library(
        "RLlib IMPALA", RLLIB, "appo_rllib.py", ("--algorithm", "impala"), "rllib", only_torch=True
    ),
}
TASKS = {
    "HalfCheetah-v5": ("troop-appo", "sample-factory"),
    "Pong-v5": ("troop-appo", "sample-factory"),
    "CartPole-v1": ("troop-appo", "troop-impala", "rllib-appo", "rllib-impala"),
}

if __name__ == "__main__":
    sys.exit(compare(sys.argv[1:], LIBRARIES, TASKS))
