"""IMPALA: the paper's settings for Atari games, and small networks found by measurement."""

from __future__ import annotations

import dataclasses
from typing import Any

from troop import envs
from troop.algorithms import ImpalaConfig
from troop.core.batch import Trajectory
from troop.core.engine import Until
from troop.engines import Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.env import resolve_atari, resolve_env, with_threads
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.systems import IMPALA

DEFAULT_ENV = "CartPole-v1"
FRAMES = 200_000_000  # four per env step

# Espeholt et al. 2018, table G.1: T 20, B 32, RMSProp 6e-4 with epsilon 0.01, entropy 0.01, gradient norm 40,
# rewards clipped to [-1, 1], learning rate to 0 over 200 million frames.
ATARI: dict[str, Any] = {"reward_clip": "abs_one", "anneal_steps": FRAMES // 4}
# Small networks: Adam and means instead of sums, so that neither batch size nor length decides the step size;
# rewards and observations are scaled, because those of the task are unknown.
SMALL: dict[str, Any] = {
    "unroll_length": 32,
    "reduction": "mean",
    "optimizer": "adam",
    "lr": 1e-3,
    "eps": 1e-5,
    "max_grad_norm": 1.0,
    "entropy_cost": 0.005,
    "normalize_rewards": True,
    "normalize_observations": True,
    "hidden": (128, 128),
    "log_std_init": None,
}


def impala(
    name: str,
    args: RecipeArgs,
    atari: dict[str, Any],
    small: dict[str, Any],
    default_env: str = DEFAULT_ENV,
) -> Experiment[Trajectory]:
    """Return the paper's settings for Atari games, small networks for other tasks; one actor per core."""
    actors = max(1, cores() - 1)
    if envs.family(args.env or default_env) == "atari":
        env, settings, system = resolve_atari(args, 16, False), ATARI | atari, IMPALA(actors, batch_size=32)
        until = Until(env_steps=FRAMES // 4)
    else:
        env, _ = resolve_env(args, default_env, 16)
        settings, system, until = SMALL | small, IMPALA(actors, batch_size=16), Until(minutes=10)
    return Experiment(
        with_threads(env, 1),
        ImpalaConfig(**settings),
        system,
        Processes(),
        until=until,
        device=args.device,
        recipe=name,
    )


def reading_last_step(experiment: Experiment[Trajectory]) -> Experiment[Trajectory]:
    """Return the experiment whose networks also read the last action and the last reward."""
    return dataclasses.replace(experiment, env=dataclasses.replace(experiment.env, last_step=True))  # type: ignore[type-var]


def impala_shallow(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return IMPALA without memory."""
    return impala("impala", args, {}, {})


def impala_lstm(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return IMPALA with an LSTM of 256 units, 128 in small networks, that reads the last step."""
    memory = {"core": "lstm"}
    return reading_last_step(impala("impala-lstm", args, memory, {**memory, "core_size": 128}))


def impala_deep(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return IMPALA with the deep residual network, which takes images."""
    return impala("impala-deep", args, {"net": "impala"}, {"net": "impala"}, "Pong-v5")


# Küttler et al. 2019, defaults of MonoBeast: 4 actors with one env each, T 80, B 8, PyTorch's RMSProp 4.8e-4
# with epsilon 0.01, entropy cost 6e-4, Nature CNN with 512 features; inputs: last action and clipped reward.
# The learning rate falls to 0 over 30 million env steps, as in the example of its documentation. The LSTM
# is off by default; --core lstm has two layers as wide as their input.
MONOBEAST: dict[str, Any] = {
    "unroll_length": 80,
    "optimizer": "rmsprop",
    "lr": 4.8e-4,
    "eps": 0.01,
    "entropy_cost": 6e-4,
    "max_grad_norm": 40.0,
    "reward_clip": "abs_one",
    "net": "auto",
    "torso_features": 512,
}
MONOBEAST_CORE: dict[str, Any] = {"core_size": 512, "core_layers": 2}
MONOBEAST_SMALL: dict[str, Any] = {"unroll_length": 80, "core_size": 128, "core_layers": 2}
MONOBEAST_STEPS = 30_000_000


def monobeast(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return MonoBeast's defaults for images, and its shape with small networks for other tasks."""
    if envs.family(args.env or "Pong-v5") != "atari":
        return reading_last_step(impala("monobeast", args, {}, MONOBEAST_SMALL))
    return reading_last_step(
        Experiment(
            with_threads(resolve_atari(args, 1, clip_rewards=False), 1),
            ImpalaConfig(**MONOBEAST, **MONOBEAST_CORE, anneal_steps=MONOBEAST_STEPS),
            IMPALA(4, batch_size=8, queue_size=1),
            Processes(),
            until=Until(env_steps=MONOBEAST_STEPS),
            device=args.device,
            recipe="monobeast",
        )
    )


RECIPES = [
    Recipe("impala", "IMPALA (Espeholt et al. 2018): actors, queue, V-trace", DEFAULT_ENV, impala_shallow),
    Recipe("impala-lstm", "IMPALA with a recurrent policy", DEFAULT_ENV, impala_lstm),
    Recipe(
        "monobeast",
        "TorchBeast's MonoBeast (Küttler et al. 2019): IMPALA in processes of one machine",
        "Pong-v5",
        monobeast,
    ),
    Recipe("impala-deep", "IMPALA with the deep residual network", "Pong-v5", impala_deep),
]
