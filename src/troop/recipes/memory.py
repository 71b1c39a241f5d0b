"""Recurrent TD3 and SAC: the values of Ni et al. 2022, and small networks for CPUs found by measurement."""

from __future__ import annotations

from typing import Any

from troop.algorithms import SACGRUConfig, TD3GRUConfig
from troop.core.algorithm import AlgorithmConfig
from troop.core.batch import Trajectory
from troop.core.engine import Until
from troop.engines import Inline
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.cpu import MAX_UPDATES_PER_STEP, PRIORITY
from troop.recipes.env import learner_threads, resolve_env, with_threads
from troop.recipes.impala import reading_last_step
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync

DEFAULT_ENV = "Pendulum-v1"

# Ni et al. 2022 (2110.05038), their code for tasks with hidden velocities: 64 sequences of 64 steps per
# update, one update per env step, ten episodes of random actions first. The configs' defaults are theirs too.
PAPER_ENVS, RANDOM_STEPS, REPLAY_STEPS = 8, 10_000, 1_000_000

# Small networks for CPUs: learning rates, n, tau, scaled rewards, held noise and averaged actor of `sac` for
# CPUs. An embedding of 32 rectified units need not keep every observation: actor and critics read them, too.
SMALL: dict[str, Any] = {
    "sequence_length": 16,
    "burn_in": 4,
    "overlap": 8,
    "n_step": 3,
    "tau": 0.05,
    "noise_repeats": 0,
    "average_tau": 0.01,
    "embedding": 32,
    "core_size": 64,
    "input_shortcut": True,
    "actor_hidden": (64,),
    "critic_hidden": (128, 64),
    "layer_norm": True,
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "normalize_observations": True,
    "normalize_rewards": True,
}
# Noise of `fasttd3` for CPUs, and its penalty that keeps a deterministic actor out of saturation: without it
# 70 % of the actions of Pendulum without velocities were saturated (docs/explanation/algorithms/memory.md).
SMALL_TD3: dict[str, Any] = SMALL | {
    "std_min": 0.05,
    "std_max": 2.0,
    "std_distribution": "log_uniform",
    "preactivation_penalty": 1.0,
}
# Temperature and noise of `sac` for CPUs: little noise in the targets, more while exploring.
SMALL_SAC: dict[str, Any] = SMALL | {
    "policy_delay": 2,
    "alpha_init": 0.001,
    "alpha_lr": 3e-3,
    "log_std_max": 0.0,
    "noise_scale_max": 8.0,
}
SMALL_ENVS, SMALL_BATCH, SMALL_REPLAY = 32, 24, 50_000  # the last two in sequences


def paper_experiment(
    name: str, args: RecipeArgs, algorithm: TD3GRUConfig | SACGRUConfig
) -> Experiment[Trajectory]:
    """Return the paper's values in a few envs, with one update per env step."""
    env, _ = resolve_env(args, DEFAULT_ENV, PAPER_ENVS)
    new_steps = algorithm.sequence_length - algorithm.overlap
    return Experiment(
        env,
        algorithm,
        Sync(
            UpdateSchedule(64, env.envs),
            replay_capacity=REPLAY_STEPS // new_steps,
            learning_starts=max(1, RANDOM_STEPS // new_steps // env.envs),
        ),
        Inline(),
        until=Until(minutes=10),
        device=args.device,
        recipe=name,
    )


def cpu_experiment(
    name: str, args: RecipeArgs, algorithm: AlgorithmConfig[Trajectory]
) -> Experiment[Trajectory]:
    """Return small networks that learn on half of the cores while the simulator steps on the others."""
    env, _ = resolve_env(args, DEFAULT_ENV, SMALL_ENVS)
    threads = learner_threads()
    return Experiment(
        with_threads(env, cores() - threads),
        algorithm,
        Sync(
            UpdateSchedule(SMALL_BATCH, 1, True, MAX_UPDATES_PER_STEP),
            replay_capacity=SMALL_REPLAY,
            learning_starts=2,
            priority=PRIORITY,
        ),
        Inline(threads=threads),
        until=Until(minutes=10),
        device=args.device,
        recipe=name,
    )


def td3_gru(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return the paper's values on a GPU, small networks on a CPU; both see the last action and reward."""
    if args.on_cpu:
        return reading_last_step(cpu_experiment("td3-gru", args, TD3GRUConfig(**SMALL_TD3)))
    return reading_last_step(paper_experiment("td3-gru", args, TD3GRUConfig(random_steps=RANDOM_STEPS)))


def sac_gru(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return the paper's values on a GPU, small networks on a CPU; both see the last action and reward."""
    if args.on_cpu:
        return reading_last_step(cpu_experiment("sac-gru", args, SACGRUConfig(**SMALL_SAC)))
    algorithm = SACGRUConfig(random_steps=RANDOM_STEPS)
    return reading_last_step(paper_experiment("sac-gru", args, algorithm))


RECIPES = [
    Recipe(
        "td3-gru", "TD3 with memory (Ni et al. 2022), for partially observable tasks", DEFAULT_ENV, td3_gru
    ),
    Recipe(
        "sac-gru", "SAC with memory (Ni et al. 2022), for partially observable tasks", DEFAULT_ENV, sac_gru
    ),
]
