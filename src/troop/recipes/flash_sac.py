"""FlashSAC: the paper's settings on a GPU, small networks for CPUs; the same with PQL."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from troop.algorithms import FlashSACConfig
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.core.env import Continuous, EnvSpec
from troop.engines import Inline, Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.cpu import cpu_experiment, cpu_profile
from troop.recipes.env import resolve_env, with_threads
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import PQL, Sync

DEFAULT_ENV = "CartpoleSwingup-v1"

# Kim et al. 2026 (2604.04539) and authors' code, GPU simulators: 1024 envs, 50 million env steps, 2 updates
# of 2048 rows per vector step, 10 million rows, the first 100,000 with uniformly random actions.
ENVS = 1024
ENV_STEPS = 50_000_000
BATCH_SIZE = 2048
UPDATES_PER_STEP = 2
REPLAY_CAPACITY = 10_000_000
RANDOM_STEPS = 100_000
# gamma 0.99 and n 1 in Gym MuJoCo, DMC and HumanoidBench. Suites that no backend here has: IsaacLab 0.99 and
# n 3, Genesis and MyoSuite 0.95, ManiSkill 0.9.
PAPER_FAMILY: dict[str, dict[str, Any]] = {"playground": {"gamma": 0.97}}

# Small networks for CPUs: a quarter of the paper's widths. Runs of minutes have few updates: targets and
# running statistics follow faster, and the learning rates are ten times larger and constant. A step turns a
# row of constant length by about lr * sqrt(fan_in) radians, so narrow networks need larger rates: with 3e-4
# CartpoleSwingup stays at 217 for 1,400 updates (docs/explanation/algorithms/flashsac.md).
SMALL: dict[str, Any] = {
    "n_step": 3,
    "tau": 0.05,
    "noise_repeats": 0,
    "actor_width": 32,
    "critic_width": 64,
    "batch_norm_momentum": 0.05,
    "actor_lr": 3e-3,
    "critic_lr": 3e-3,
    "alpha_lr": 3e-3,
    "lr_end": 1.0,
}
# As in the paper; not measured here.
SMALL_FAMILY: dict[str, dict[str, Any]] = {"playground": {"gamma": 0.97, "n_step": 1, "noise_repeats": 16}}
SMALL_RANDOM_STEPS = 1_000  # env steps with random actions before the first update
# The paper's replay keeps a fifth of its run, or all of it (single envs). One of a million rows loses the
# failures of the first minutes: CartpoleBalanceSparse then falls from 1000 to 32.
SMALL_REPLAY_BYTES = 2_000_000_000
MIN_REPLAY_ROWS = 1_000_000
TREE_BYTES = 32  # of a row's priority


def replay_rows(spec: EnvSpec) -> int:
    """Return the paper's number of rows, or as many as SMALL_REPLAY_BYTES hold, at least a million."""
    assert isinstance(spec.action, Continuous)
    numbers = sum(spec.width(name) for name in spec.obs) + spec.action.size + 4
    return min(REPLAY_CAPACITY, max(MIN_REPLAY_ROWS, SMALL_REPLAY_BYTES // (4 * numbers + TREE_BYTES)))


def paper_algorithm(family: str, envs: int) -> FlashSACConfig:
    """Return the paper's settings for a family of envs; the schedule ends with the run of `envs` envs."""
    updates = UPDATES_PER_STEP * (ENV_STEPS - RANDOM_STEPS) // envs
    settings = PAPER_FAMILY.get(family, {})
    return FlashSACConfig(lr_updates=updates, random_steps=RANDOM_STEPS, **settings)


def cpu_algorithm(family: str) -> FlashSACConfig:
    """Return the settings of small networks for a family of envs."""
    return FlashSACConfig(**SMALL | SMALL_FAMILY.get(family, {}))


def paper_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings for GPU simulators."""
    env, family = resolve_env(args, DEFAULT_ENV, ENVS)
    return Experiment(
        env,
        paper_algorithm(family, env.envs),
        Sync(
            UpdateSchedule(BATCH_SIZE, UPDATES_PER_STEP),
            replay_capacity=REPLAY_CAPACITY,
            learning_starts=math.ceil(RANDOM_STEPS / env.envs),
        ),
        Inline(),
        until=Until(env_steps=ENV_STEPS),
        device=args.device,
        recipe="flashsac",
    )


def small_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return small networks and batches, with random actions until the first update."""
    experiment = cpu_experiment("flashsac", args, DEFAULT_ENV, cpu_algorithm)
    system, algorithm, envs = experiment.system, experiment.algorithm, experiment.env.envs
    assert isinstance(system, Sync) and isinstance(algorithm, FlashSACConfig)
    learning_starts = max(system.learning_starts, math.ceil(SMALL_RANDOM_STEPS / envs))
    spec = experiment.env.spec
    # Any other action space is refused later, with a reason.
    rows = replay_rows(spec) if isinstance(spec.action, Continuous) else system.replay_capacity
    return dataclasses.replace(
        experiment,
        algorithm=dataclasses.replace(algorithm, random_steps=learning_starts * envs),
        system=dataclasses.replace(system, learning_starts=learning_starts, replay_capacity=rows),
    )


def default_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the paper's settings on a GPU, small networks on a CPU."""
    return small_experiment(args) if args.on_cpu else paper_experiment(args)


def pql_experiment(args: RecipeArgs) -> Experiment[Transition]:
    """Return the same algorithm, critics and policy on separate hosts, with FlashSAC's ratios of updates."""
    base = default_experiment(args)
    profile = cpu_profile(args, DEFAULT_ENV)
    system, algorithm = base.system, base.algorithm
    assert isinstance(system, Sync) and isinstance(algorithm, FlashSACConfig)
    return dataclasses.replace(
        base,
        env=with_threads(base.env, cores() - 2) if args.on_cpu else base.env,
        system=PQL(
            beta_av=float(profile.updates_per_step if args.on_cpu else UPDATES_PER_STEP),
            beta_pv=float(algorithm.policy_delay),
            batch_size=system.schedule.batch_size,
            replay_capacity=system.replay_capacity,
            observation_capacity=MIN_REPLAY_ROWS if args.on_cpu else 0,
            learning_starts=system.learning_starts,
            priority=system.priority,
        ),
        engine=Processes(),
        recipe="pql-flashsac",
    )


RECIPES = [
    Recipe(
        "flashsac",
        "FlashSAC: BatchNorm, scaled rewards, held noise; the paper's settings on a GPU, small ones on a CPU",
        DEFAULT_ENV,
        default_experiment,
    ),
    Recipe("pql-flashsac", "PQL with FlashSAC's critic and policy updates", DEFAULT_ENV, pql_experiment),
]
