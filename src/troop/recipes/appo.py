"""APPO: the settings of Sample Factory and of RLlib, and small networks found by measurement."""

from __future__ import annotations

from typing import Any

from troop import envs
from troop.algorithms import APPOConfig
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

# Sample Factory 2, its preset for Atari games run asynchronously: rollouts of 128, four passes over four
# minibatches of 256 steps; the learning rate falls to 0 within the run.
ATARI: dict[str, Any] = {
    "rollout_length": 128,
    "epochs": 4,
    "minibatches": 4,
    "lr": 2.5e-4,
    "anneal_steps": FRAMES // 4,
    "eps": 1e-5,
    "entropy_coef": 0.01,
    "max_grad_norm": 0.5,
    "normalize_rewards": False,  # they are clipped
}
# Fast on a few cores: the network of Mnih et al. 2013; two passes, so that one core of learning keeps up with
# one of sampling. `ppo`, whose learning rate follows the KL divergence, stays near the rate of 1e-3 on Pong;
# with 5e-4 the divergence of an update of this recipe is 0.002: a million env steps teach it nothing.
ATARI_CPU: dict[str, Any] = ATARI | {
    "rollout_length": 64,
    "epochs": 2,
    "minibatches": 8,
    "lr": 1e-3,
    "anneal_steps": 0,
    "clip": 0.2,
    "value_clip": 0.0,
    "net": "nips",
}
# RLlib's IMPACT: batches of ten rollouts of 50, target network, clip 0.4, lambda 1, gradient norm 40; a
# circular buffer of four batches, each used twice.
IMPACT_ATARI: dict[str, Any] = {
    "clip_against": "target",
    "rollout_length": 50,
    "clip": 0.4,
    "gae_lambda": 1.0,
    "lr": 5e-4,
    "entropy_coef": 0.01,
    "max_grad_norm": 40.0,
    "value_clip": 0.0,
    "normalize_advantages": False,
    "kl_coef": 1.0,
    "kl_target": 0.01,
    "normalize_rewards": False,
}
IMPACT_BUFFER: dict[str, Any] = {"circular_buffer_size": 4, "replay_times": 2}
SMALL: dict[str, Any] = {
    "rollout_length": 32,
    "epochs": 2,
    "minibatches": 2,
    "gamma": 0.995,
    "gae_lambda": 0.97,
    "clip": 0.2,
    "value_clip": 0.0,
    "lr": 1e-3,
    "max_grad_norm": 1.0,
    "entropy_coef": 0.002,
    "hidden": (128, 128),
    "log_std_init": None,
}
IMPACT_SMALL: dict[str, Any] = SMALL | {
    "clip_against": "target",
    "clip": 0.4,
    "kl_coef": 0.3,
    "target_update_period": 4,
}


def appo(
    name: str,
    args: RecipeArgs,
    atari: dict[str, Any],
    small: dict[str, Any],
    atari_batch: int = 8,
    atari_buffer: dict[str, Any] | None = None,
) -> Experiment[Trajectory]:
    """Return the published settings for Atari games, small networks for other tasks; one actor per core."""
    actors = max(1, cores() - 1)
    if envs.family(args.env or DEFAULT_ENV) == "atari":
        env, settings = resolve_atari(args, 16), atari
        system = IMPALA(actors, batch_size=atari_batch, **(atari_buffer or {}))
        until = Until(env_steps=FRAMES // 4)
    else:
        env, _ = resolve_env(args, DEFAULT_ENV, 32)
        settings, system, until = small, IMPALA(actors, batch_size=32), Until(minutes=10)
    return Experiment(
        with_threads(env, 1),
        APPOConfig(**settings),
        system,
        Processes(),
        until=until,
        device=args.device,
        recipe=name,
    )


def appo_behaviour(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return Sample Factory's kind; on a CPU a small network for Atari games."""
    if args.on_cpu:
        return appo("appo", args, ATARI_CPU, SMALL, atari_batch=32)
    return appo("appo", args, ATARI, SMALL)


def appo_impact(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return the kind with a target network."""
    return appo("appo-impact", args, IMPACT_ATARI, IMPACT_SMALL, atari_batch=10, atari_buffer=IMPACT_BUFFER)


RECIPES = [
    Recipe("appo", "APPO (Sample Factory): asynchronous PPO with V-trace", DEFAULT_ENV, appo_behaviour),
    Recipe("appo-impact", "APPO with a target network (IMPACT, RLlib)", DEFAULT_ENV, appo_impact),
]
