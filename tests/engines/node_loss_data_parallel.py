"""DD-PPO on a cluster that loses a machine: `python node_loss_data_parallel.py DIR ADDRESS LOST_LIMIT_S`."""

import dataclasses
import sys
from pathlib import Path

from troop.core.engine import Until
from troop.engines import Ray
from troop.recipes import data_parallel
from troop.recipes.recipe import RecipeArgs
from troop.systems import DataParallel


def main():
    """Train on CartPole-v1 with two workers, one per machine, until the mean return reaches 475."""
    directory, address, lost_limit_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    recipe = data_parallel.dd_ppo(RecipeArgs(env="CartPole-v1", envs=16))
    experiment = dataclasses.replace(
        recipe,
        system=DataParallel(2),
        # A machine has five CPUs, enough for one worker.
        engine=Ray(address, cpus=("worker=3",), threads=1, checkpoint_s=2, lost_limit_s=lost_limit_s),
        until=Until(target=475.0, minutes=5),
        # Rare, so that the run does not reach its target before the loss of the machine is detected.
        evaluation=dataclasses.replace(recipe.evaluation, seconds=60.0),
    )
    experiment.run(directory / "run", quiet=True)


if __name__ == "__main__":
    main()
