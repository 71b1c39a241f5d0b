"""SAC and TD3 on images with random shifts (DrQ-v2): the paper's settings, and small networks for CPUs."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

from troop import envs
from troop.algorithms import SACConfig, TD3Config
from troop.core.batch import Transition
from troop.core.engine import Until
from troop.core.env import EnvConfig
from troop.core.system import Evaluation
from troop.engines import Inline
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes import sac
from troop.recipes.env import learner_threads, resolve_env, with_threads
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync

DEFAULT_ENV = "toy:Reach"

# Yarats et al. 2021 (2107.09645), table 2: actions repeated twice, stacks of three colour frames of 84x84,
# three-step targets, Adam 1e-4, tau 0.01, a trunk of 50 features and two layers of 1024, one update of 256
# rows per two env steps (agent steps), a replay of a million rows, 4,000 exploration frames; noise clipped at
# 0.3. Its standard deviation decreases from 1 to 0.1 (medium tasks); here each env keeps its own in that
# range.
PAPER_FRAMES = {"repeat": 2, "stack": 3}
PAPER: dict[str, Any] = {
    "n_step": 3,
    "tau": 0.01,
    "actor_hidden": (1024, 1024),
    "critic_hidden": (1024, 1024),
    "actor_lr": 1e-4,
    "critic_lr": 1e-4,
    "atoms": 0,
    "random_steps": 2000,
}
PAPER_TD3: dict[str, Any] = PAPER | {
    "policy_delay": 1,
    "policy_noise": 0.2,
    "noise_clip": 0.3,
    "std_min": 0.1,
    "std_max": 1.0,
    "clip_actions": True,
    "weight_decay": 0.0,
    "normalize_observations": False,
}
PAPER_SAC: dict[str, Any] = PAPER | {"alpha_init": 0.1, "alpha_lr": 1e-4}

# Small networks for CPUs: grey frames of half the size and longer repeats, and the settings of `sac` on
# vectors: scaled rewards, held noise, larger learning rates. Scalar critics, as in DrQ-v2: on toy:Reach they
# return 6.0 of 8.5 after 1,000 updates, categorical ones 2.6. Few updates fit into the time, and an action
# lasts several frames: a shorter horizon is learned sooner. No average of the actor: the encoder has none.
CPU_FRAMES: dict[str, Any] = {"repeat": 4, "gray": True, "stack": 3}
LARGE_SIDE = 84  # images from this side on are shrunk to half
CPU_SAC: dict[str, Any] = sac.SMALL | {"atoms": 0, "gamma": 0.97, "alpha_init": 0.01, "average_tau": 0.0}
CPU_TD3: dict[str, Any] = {name: value for name, value in CPU_SAC.items() if not name.startswith("alpha")} | {
    "std_max": 0.6,
    "clip_actions": True,
    "weight_decay": 0.0,
}
REPLAY_ROWS = 100_000
CPU_ENVS, CPU_BATCH_SIZE, RANDOM_ROWS = 8, 128, 1000
# Envs that render images are slow: 16 episodes of CarRacing take a minute of a core.
SLOW_EVALUATION = Evaluation(episodes=8, seconds=120.0)


def with_frames(env: EnvConfig, on_cpu: bool) -> EnvConfig:
    """Return the env with the recipe's preprocessing of images; toy envs and vectors stay as they are."""
    side = image_side(env)
    if not isinstance(env, envs.EnvPool | envs.Gymnasium) or side is None:
        return env
    if any(env.spec.obs[name].stack > 1 for name in env.spec.images):
        return env
    settings = CPU_FRAMES | {"shrink": 2 if side >= LARGE_SIDE else 1} if on_cpu else PAPER_FRAMES
    return dataclasses.replace(env, frames=envs.FrameConfig(**settings))


def image_side(env: EnvConfig) -> int | None:
    """Return the shortest side of the images of an env in pixels; None if it has none."""
    spec = env.spec
    return min((min(spec.obs[name].shape[1:]) for name in spec.images), default=None)


def shift_pixels(side: int) -> int:
    """Return the random shift for images of this side: DrQ-v2's 4 of 84 pixels, at least 1."""
    return max(1, round(side * 4 / 84))


def experiment(name: str, args: RecipeArgs) -> Experiment[Transition]:
    """Return DrQ-v2's settings on a GPU, small networks and images on a CPU."""
    env, _ = resolve_env(args, DEFAULT_ENV, CPU_ENVS if args.on_cpu else 16)
    env = with_frames(env, args.on_cpu)
    return (_cpu_experiment if args.on_cpu else _paper_experiment)(name, env, args)


def _paper_experiment(name: str, env: EnvConfig, args: RecipeArgs) -> Experiment[Transition]:
    shift: dict[str, Any] = {"random_shift": shift_pixels(image_side(env) or 84)}
    config = SACConfig(**PAPER_SAC, **shift) if name == "sac-pixels" else TD3Config(**PAPER_TD3, **shift)
    return Experiment(
        env,
        config,
        Sync(
            UpdateSchedule(256, env.envs / 2),
            replay_capacity=1_000_000,
            learning_starts=math.ceil(config.random_steps / env.envs),
        ),
        Inline(),
        until=Until(env_steps=1_500_000),
        device=args.device,
        recipe=name,
    )


def _cpu_experiment(name: str, env: EnvConfig, args: RecipeArgs) -> Experiment[Transition]:
    side, threads = image_side(env) or 84, learner_threads()
    settings: dict[str, Any] = {"torso": "nips" if side >= 36 else "auto", "random_shift": shift_pixels(side)}
    config = SACConfig(**CPU_SAC | settings) if name == "sac-pixels" else TD3Config(**CPU_TD3 | settings)
    return Experiment(
        with_threads(env, cores() - threads),
        config,
        Sync(
            UpdateSchedule(CPU_BATCH_SIZE, 1, overlap=True, max_updates_per_step=8),
            replay_capacity=REPLAY_ROWS,
            learning_starts=math.ceil(RANDOM_ROWS / env.envs),
        ),
        Inline(threads=threads),
        until=Until(minutes=10),
        evaluation=Evaluation() if isinstance(env, envs.Toy) else SLOW_EVALUATION,
        device=args.device,
        recipe=name,
    )


RECIPES = [
    Recipe(name, f"{algorithm} on images with random shifts (DrQ-v2)", DEFAULT_ENV, partial(experiment, name))
    for name, algorithm in (("sac-pixels", "SAC"), ("td3-pixels", "TD3"))
]
