"""Ape-X on a cluster: `python clustered_apex.py FOLDER ADDRESS LOST_S`; leaves its run in FOLDER/run."""

import dataclasses
import sys
from pathlib import Path

from troop.core.engine import Until
from troop.engines import Ray
from troop.recipes import apex
from troop.recipes.recipe import Wish


def main():
    """Two actors, one on each machine, until CartPole is balanced for a while."""
    folder, address, lost = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    small = apex.small(Wish(env="CartPole-v1", envs=8))
    run = dataclasses.replace(
        small,
        system=dataclasses.replace(small.system, actors=2),
        # A machine of five CPUs has room for one actor only.
        engine=Ray(address, cpus=("actor=3",), threads=1, checkpoint_s=10, lost_limit_s=lost),
        until=Until(target=150.0, minutes=5),
        evaluation=dataclasses.replace(small.evaluation, seconds=5.0),
    )
    run.run(folder / "run", quiet=True)


if __name__ == "__main__":
    main()
