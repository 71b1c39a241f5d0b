"""The recipe `munchausen`: the algorithm in one process, with few envs."""

from munchausen.algorithm import MunchausenConfig
from troop import Experiment, envs
from troop.core.engine import Until
from troop.engines import Inline
from troop.recipes import Recipe, RecipeArgs
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync

DEFAULT_ENV = "CartPole-v1"


def make(args: RecipeArgs) -> Experiment:
    """Build the experiment for the user's env, number of envs and device; None means not given."""
    return Experiment(
        envs.resolve(args.env or DEFAULT_ENV, args.envs or 8),
        MunchausenConfig(),
        Sync(
            UpdateSchedule(batch_size=128, updates_per_step=4), replay_capacity=100_000, learning_starts=125
        ),
        Inline(threads=1),
        until=Until(minutes=2),
        device=args.device,
    )


RECIPE = Recipe("munchausen", "Munchausen DQN with small networks", DEFAULT_ENV, make)
