"""Ape-X on a cluster that loses a machine: `python node_loss_apex.py DIRECTORY ADDRESS LOST_LIMIT_S`."""

import dataclasses
import sys
from pathlib import Path

from troop.core.engine import Until
from troop.engines import Ray
from troop.recipes import apex
from troop.recipes.recipe import RecipeArgs


def main():
    """Train on CartPole-v1 with two actors, one per machine, until the mean return reaches 150."""
    directory, address, lost_limit_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    small = apex.small_experiment(RecipeArgs(env="CartPole-v1", envs=8))
    experiment = dataclasses.replace(
        small,
        system=dataclasses.replace(small.system, actors=2),
        # A machine has five CPUs, enough for one actor.
        engine=Ray(address, cpus=("actor=3",), threads=1, checkpoint_s=10, lost_limit_s=lost_limit_s),
        until=Until(target=150.0, minutes=5),
        # Rare, so that the run does not reach its target before the loss of the machine is detected.
        evaluation=dataclasses.replace(small.evaluation, seconds=60.0),
    )
    experiment.run(directory / "run", quiet=True)


if __name__ == "__main__":
    main()
