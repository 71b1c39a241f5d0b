"""UNREAL: the paper's settings for Atari games, and small networks for other tasks."""

from __future__ import annotations

from typing import Any

from troop import envs
from troop.algorithms import UnrealConfig
from troop.core.batch import Trajectory
from troop.core.engine import Until
from troop.engines import Inline, Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.env import learner_threads, resolve_atari, resolve_env, with_threads
from troop.recipes.impala import reading_last_step
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.parameter_server import SharedRMSPropConfig
from troop.systems import A3C, OnPolicy

DEFAULT_ENV = "Catch-v0"
FRAMES = 200_000_000  # four per env step; the paper reports results up to this number
LR = 7e-4  # the geometric middle of the paper's range, 1e-4 to 5e-3

# Jaderberg et al. 2016, section 4 and appendix B: A3C with an LSTM of 256 units that reads the last action
# and reward, trajectories of 20 steps, a replay of 2,000 steps per worker. The weight of pixel control was
# drawn from [1e-4, 1e-2] for Atari games and that of the entropy from [5e-4, 1e-2]: these are geometric
# middles.
ATARI: dict[str, Any] = {
    "net": "nips",
    "pixel_control_coef": 1e-3,
    "entropy_coef": 0.002,
}
# Small networks: the values of the recipe impala, with A2C instead of A3C. Pixel control keeps the paper's
# weight for Labyrinth.
SMALL: dict[str, Any] = {
    "reduction": "mean",
    "optimizer": "adam",
    "lr": 1e-3,
    "eps": 1e-5,
    "max_grad_norm": 1.0,
    "entropy_coef": 0.005,
    "clip_rewards": False,
    "normalize_rewards": True,
    "normalize_observations": True,
    "hidden": (128, 128),
    "core_size": 128,
}


def unreal(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return A3C with the auxiliary tasks for Atari games, A2C with small networks for other tasks."""
    if envs.family(args.env or DEFAULT_ENV) == "atari":
        steps, config = FRAMES // 4, UnrealConfig(**ATARI)
        rmsprop = SharedRMSPropConfig(lr=LR, anneal_updates=steps // config.unroll_length)
        experiment = Experiment(
            with_threads(resolve_atari(args, 1), 1),
            config,
            A3C(min(16, max(2, cores())), rmsprop=rmsprop),
            Processes(),
            until=Until(env_steps=steps),
            device=args.device,
            recipe="unreal",
        )
    else:
        env, _ = resolve_env(args, DEFAULT_ENV, 16)
        experiment = Experiment(
            with_threads(env, cores()),
            UnrealConfig(**SMALL),
            OnPolicy(),
            Inline(threads=learner_threads()),
            until=Until(minutes=10),
            device=args.device,
            recipe="unreal",
        )
    return reading_last_step(experiment)


RECIPES = [
    Recipe(
        "unreal",
        "UNREAL (Jaderberg et al. 2016): an actor-critic with memory and auxiliary tasks",
        DEFAULT_ENV,
        unreal,
    )
]
