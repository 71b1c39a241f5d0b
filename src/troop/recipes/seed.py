"""SEED RL and PolyBeast: IMPALA's learner with central inference."""

from __future__ import annotations

from typing import Any

from troop import envs
from troop.algorithms import ImpalaConfig
from troop.core.batch import Trajectory
from troop.core.engine import Until
from troop.engines import Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.env import resolve_atari, resolve_env, with_threads
from troop.recipes.impala import FRAMES, MONOBEAST, MONOBEAST_STEPS, SMALL, with_last_step
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.systems import SEED

DEFAULT_ENV = "CartPole-v1"
# Espeholt et al. 2019 and the authors' code, V-trace agent: T 100, B 32, means of losses, Adam 4.8e-4,
# entropy 2.5e-4, deep residual network with an LSTM of 256 that reads the last step.
PAPER: dict[str, Any] = {
    "length": 100,
    "reduction": "mean",
    "optimizer": "adam",
    "lr": 4.8e-4,
    "eps": 3.125e-7,
    "entropy_cost": 2.5e-4,
    "reward_clip": "abs_one",
    "net": "impala",
    "core": "lstm",
    "anneal_steps": FRAMES // 4,
}
# Küttler et al. 2019: PolyBeast has MonoBeast's defaults with the deep residual network.
POLYBEAST: dict[str, Any] = MONOBEAST | {"net": "impala", "torso_features": 256}


def runners() -> int:
    """Return one runner per core besides the learner's, at least two."""
    return max(2, cores() - 1)


def small(name: str, args: RecipeArgs, settings: dict[str, Any]) -> Experiment[Trajectory]:
    """Return small networks found by measurement, as in `impala`."""
    env, _ = resolve_env(args, DEFAULT_ENV, 16)
    return Experiment(
        with_threads(env, 1),
        ImpalaConfig(**SMALL | settings),
        SEED(runners(), batch_size=16),
        Processes(),
        until=Until(minutes=10),
        device=args.device,
        recipe=name,
    )


def seed_vtrace(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return the paper's values for Atari games, small networks for other tasks."""
    if envs.family(args.env or DEFAULT_ENV) != "atari":
        return small("seed-vtrace", args, {})
    return with_last_step(
        Experiment(
            with_threads(resolve_atari(args, 16), 1),
            ImpalaConfig(**PAPER),
            SEED(runners(), batch_size=32),
            Processes(),
            until=Until(env_steps=FRAMES // 4),
            device=args.device,
            recipe="seed-vtrace",
        )
    )


def polybeast(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return PolyBeast's defaults for Atari games, its shape with small networks for other tasks."""
    if envs.family(args.env or "Pong-v5") != "atari":
        return with_last_step(small("polybeast", args, {}))
    return with_last_step(
        Experiment(
            with_threads(resolve_atari(args, 1), 1),
            ImpalaConfig(**POLYBEAST, anneal_steps=MONOBEAST_STEPS),
            SEED(4, batch_size=8),
            Processes(),
            until=Until(env_steps=MONOBEAST_STEPS),
            device=args.device,
            recipe="polybeast",
        )
    )


RECIPES = [
    Recipe(
        "seed-vtrace",
        "SEED RL (Espeholt et al. 2019): runners without networks, central inference, V-trace",
        DEFAULT_ENV,
        seed_vtrace,
    ),
    Recipe(
        "polybeast",
        "TorchBeast's PolyBeast (Küttler et al. 2019): env runners, dynamic batching, V-trace",
        "Pong-v5",
        polybeast,
    ),
]
