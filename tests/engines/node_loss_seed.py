"""PolyBeast on a cluster that loses a machine: `python node_loss_seed.py DIRECTORY ADDRESS LOST_LIMIT_S`."""

import dataclasses
import sys
from pathlib import Path

from troop.core.engine import Until
from troop.engines import Ray
from troop.recipes import seed
from troop.recipes.recipe import RecipeArgs


def main():
    """Train on Catch-v0 with two runners, one per machine, until the mean return reaches 0.95."""
    directory, address, lost_limit_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    small = seed.polybeast(RecipeArgs(env="Catch-v0", envs=16))
    experiment = dataclasses.replace(
        small,
        system=dataclasses.replace(small.system, runners=2),
        # A machine has eight CPUs, enough for one runner.
        engine=Ray(address, cpus=("runner=5",), threads=1, checkpoint_s=10, lost_limit_s=lost_limit_s),
        until=Until(target=0.95, minutes=8),
        # Rare, so that the run does not reach its target before the pause of the machine is detected.
        evaluation=dataclasses.replace(small.evaluation, seconds=45.0),
    )
    experiment.run(directory / "run", quiet=True)


if __name__ == "__main__":
    main()
