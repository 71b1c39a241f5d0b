"""SEED RL and PolyBeast: IMPALA's or SAC's learner with central inference."""

from __future__ import annotations

import dataclasses
from typing import Any

from troop import envs
from troop.algorithms import ImpalaConfig, SACConfig
from troop.core.batch import Trajectory, Transition
from troop.core.engine import Until
from troop.engines import Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.cpu import PRIORITY, with_auto_compile
from troop.recipes.env import resolve_atari, resolve_env, with_threads
from troop.recipes.impala import FRAMES, MONOBEAST, MONOBEAST_STEPS, SMALL, reading_last_step
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.recipes.sac import cpu_algorithm
from troop.replay.prioritized import PriorityConfig
from troop.replay.sequences import ServedReplay
from troop.systems import SEED

DEFAULT_ENV = "CartPole-v1"
# Espeholt et al. 2019 and the authors' code, V-trace agent: T 100, B 32, means of losses, Adam 4.8e-4,
# entropy 2.5e-4, deep residual network with an LSTM of 256 that reads the last step.
PAPER: dict[str, Any] = {
    "unroll_length": 100,
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
    return reading_last_step(
        Experiment(
            with_threads(resolve_atari(args, 16, clip_rewards=False), 1),
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
        return reading_last_step(small("polybeast", args, {}))
    return reading_last_step(
        Experiment(
            with_threads(resolve_atari(args, 1, clip_rewards=False), 1),
            ImpalaConfig(**POLYBEAST, anneal_steps=MONOBEAST_STEPS),
            SEED(4, batch_size=8),
            Processes(),
            until=Until(env_steps=MONOBEAST_STEPS),
            device=args.device,
            recipe="polybeast",
        )
    )


SAC_DEFAULT_ENV = "CartpoleSwingup-v1"
# The authors' code, SAC agent: transitions, batches of 256, a uniform replay of a million, each row sampled
# four times. SACConfig's defaults are their networks and learning rates; target networks follow with tau 0.1.
SAC_REPLAY = ServedReplay(1_000_000, 10_000, 4.0, PriorityConfig(), save=True)


def seed_sac(args: RecipeArgs) -> Experiment[Transition]:
    """Return the authors' settings on a GPU; on a CPU the small networks and priorities of `sac`."""
    env, family = resolve_env(args, SAC_DEFAULT_ENV, 32)
    algorithm, replay = SACConfig(tau=0.1, random_steps=10_000), SAC_REPLAY
    if args.on_cpu:
        algorithm = with_auto_compile(cpu_algorithm(family))
        replay = dataclasses.replace(SAC_REPLAY, learning_starts=1_000, priority=PRIORITY)
    return Experiment(
        with_threads(env, 1),
        algorithm,
        SEED(runners(), batch_size=256, prefetch=2, publish_every=2, replay=replay),
        Processes(),
        until=Until(minutes=10),
        device=args.device,
        recipe="seed-sac",
    )


RECIPES = [
    Recipe(
        "seed-sac",
        "SEED RL's SAC (Espeholt et al. 2019): central inference, replay of transitions",
        SAC_DEFAULT_ENV,
        seed_sac,
    ),
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
