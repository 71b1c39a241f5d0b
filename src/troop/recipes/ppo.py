"""PPO, A2C and A3C: the settings of the papers, and those for CPUs found by measurement."""

from __future__ import annotations

from typing import Any

from troop import envs
from troop.algorithms import PPOConfig
from troop.core.batch import Trajectory
from troop.core.engine import Until
from troop.core.system import System
from troop.engines import Inline, Processes
from troop.engines.runtime import cores
from troop.experiment import Experiment
from troop.recipes.env import alternating_threads, resolve_atari, resolve_env, with_threads
from troop.recipes.recipe import Recipe, RecipeArgs
from troop.roles.parameter_server import SharedRMSPropConfig
from troop.systems import A3C, OnPolicy

DEFAULT_ENV = "CartPole-v1"
ATARI_STEPS = 10_000_000  # 40 million frames

# Small networks for CPUs; the measurements are in docs/explanation/results/on-policy.md. The learning rate
# follows the KL divergence, so that neither the scale of the task nor the length of the run decides it; it
# changes between updates only, because within one it would rise and fall by a factor of a hundred. With gamma
# 0.99 LunarLander takes twice as long, with 0.999 HalfCheetah. Noise of deviation 1 on six joints throws
# HalfCheetah onto its back, noise of 0.4 leaves Walker in a slow gait and on a single action does not find
# MountainCar's goal: the initial noise depends on the number of actions, and an entropy bonus keeps it up.
SMALL: dict[str, Any] = {
    "rollout_length": 64,
    "epochs": 5,
    "minibatches": 16,
    "gamma": 0.995,
    "gae_lambda": 0.97,
    "lr": 1e-3,
    "desired_kl": 0.01,
    "adapt_lr": "update",
    "target_kl": 0.03,
    "entropy_coef": 0.005,
    "max_grad_norm": 1.0,
    "hidden": (128, 128),
    "log_std_init": None,
}
SMALL_ENVS = 128  # with 64, one seed in three stays in a slow gait of WalkerWalk
# Schulman et al. 2017, table 5, in the units of OpenAI's code: learning rate and clip range fall to 0 over
# ten million env steps.
ATARI: dict[str, Any] = {
    "rollout_length": 128,
    "epochs": 4,
    "minibatches": 4,
    "lr": 2.5e-4,
    "clip": 0.1,
    "value_clip": 0.1,
    "entropy_coef": 0.01,
    "anneal_steps": ATARI_STEPS,
    "anneal_clip": True,
    "normalize_rewards": False,  # they are clipped
}
# Fast on a few cores: the network of Mnih et al. 2013, and as for vectors a learning rate that follows the KL
# divergence, because a run of an hour ends long before ten million env steps.
ATARI_CPU: dict[str, Any] = ATARI | {
    "minibatches": 8,
    "lr": 5e-4,
    "desired_kl": 0.01,
    "clip": 0.2,
    "value_clip": 0.0,
    "anneal_steps": 0,
    "anneal_clip": False,
    "net": "nips",
}
# Rudin et al. 2022 and their code (rsl_rl): thousands of envs, short rollouts, a learning rate that follows
# the KL divergence, gradients of actor and critic clipped separately. The value loss there is not halved.
MASSIVE: dict[str, Any] = {
    "rollout_length": 24,
    "epochs": 5,
    "minibatches": 4,
    "lr": 1e-3,
    "desired_kl": 0.01,
    "entropy_coef": 0.01,
    "value_coef": 2.0,
    "value_clip": 0.2,
    "normalize_advantages": "batch",
    "normalize_rewards": False,
    "max_grad_norm": 1.0,
    "separate_grad_clip": True,
    "eps": 1e-8,
    "hidden": (512, 256, 128),
    "activation": "elu",
}
# Mnih et al. 2016 with N synchronous envs, as in OpenAI's code: no clipping, one step per rollout.
A2C: dict[str, Any] = {
    "rollout_length": 5,
    "epochs": 1,
    "minibatches": 1,
    "clip": 0.0,
    "gae_lambda": 1.0,
    "normalize_advantages": "none",
    "optimizer": "rmsprop_tf",
    "lr": 7e-4,
    "eps": 1e-5,
    "decay": 0.99,
    "entropy_coef": 0.01,
}
# Mnih et al. 2016, section 8: rollouts of 5 steps, gradients clipped to 40, RMSProp with shared statistics.
ASYNC: dict[str, Any] = A2C | {"max_grad_norm": 40.0}


def is_atari(args: RecipeArgs) -> bool:
    """Whether the env is an Atari game."""
    return envs.family(args.env or DEFAULT_ENV) == "atari"


def with_divisible_minibatches(settings: dict[str, Any], envs: int) -> dict[str, Any]:
    """Return the settings with at most as many minibatches, into which a rollout of `envs` envs divides."""
    rows = envs if settings.get("core", "none") != "none" else envs * settings["rollout_length"]
    minibatches = next(n for n in range(min(settings["minibatches"], rows), 0, -1) if rows % n == 0)
    return settings | {"minibatches": minibatches}


def on_policy_experiment(
    name: str, args: RecipeArgs, settings: dict[str, Any], default_envs: int, minutes: float | None = 10
) -> Experiment[Trajectory]:
    """Return rollouts and updates in turn; small networks are faster on half of the cores than on all."""
    env, _ = resolve_env(args, DEFAULT_ENV, default_envs)
    return Experiment(
        with_threads(env, cores()),
        PPOConfig(**with_divisible_minibatches(settings, env.envs)),
        OnPolicy(),
        Inline(threads=alternating_threads()),
        until=Until(minutes=minutes),
        device=args.device,
        recipe=name,
    )


def atari_experiment(
    name: str,
    args: RecipeArgs,
    settings: dict[str, Any],
    default_envs: int,
    until: Until = Until(env_steps=ATARI_STEPS),  # noqa: B008 - immutable
) -> Experiment[Trajectory]:
    """Return `settings` for Atari games, with rewards clipped and lives as episodes."""
    env = resolve_atari(args, default_envs)
    return Experiment(
        with_threads(env, cores()),
        PPOConfig(**with_divisible_minibatches(settings, env.envs)),
        OnPolicy(recreate_every=0),  # games are long: a resumed run starts new ones
        Inline(threads=cores()),
        until=until,
        device=args.device,
        recipe=name,
    )


def ppo(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return small networks on a CPU and for tasks other than Atari, the paper's settings for the rest."""
    if not is_atari(args):
        return on_policy_experiment("ppo", args, SMALL, SMALL_ENVS)
    if args.on_cpu:
        return atari_experiment("ppo", args, ATARI_CPU, 16, Until(minutes=60))
    return atari_experiment("ppo", args, ATARI, 8)


def ppo_atari(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return the paper's settings for Atari games."""
    return atari_experiment("ppo-atari", args, ATARI, 8)


def ppo_massive(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return the massively parallel variant; fewer envs on a CPU."""
    return on_policy_experiment("ppo-massive", args, MASSIVE, 256 if args.on_cpu else 4096)


def ppo_lstm(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return PPO with an LSTM of 128 units."""
    if is_atari(args):
        return atari_experiment("ppo-lstm", args, ATARI | {"core": "lstm"}, 8)
    return on_policy_experiment("ppo-lstm", args, SMALL | {"core": "lstm"}, SMALL_ENVS)


def a2c(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return A2C."""
    if is_atari(args):
        return atari_experiment("a2c", args, A2C | {"normalize_rewards": False, "value_coef": 0.25}, 16)
    return on_policy_experiment("a2c", args, A2C, 16)


def a3c(args: RecipeArgs) -> Experiment[Trajectory]:
    """Return A3C with a worker per core, at most the paper's sixteen."""
    workers = min(16, max(2, cores()))
    if is_atari(args):
        env, settings = resolve_atari(args, 1), ASYNC | {"normalize_rewards": False, "net": "nips"}
        # The paper sums gradients over the steps of a rollout, the loss here is their mean: epsilon within
        # the root and the bound of the norm are divided to the same steps.
        steps = settings["rollout_length"]
        settings["max_grad_norm"] /= steps
        rmsprop, until = SharedRMSPropConfig(eps=0.1 / steps**2), Until(env_steps=ATARI_STEPS)
    else:
        env, _ = resolve_env(args, DEFAULT_ENV, 4)
        settings, until = ASYNC, Until(minutes=10)
        rmsprop = SharedRMSPropConfig(lr=3e-3, eps=1e-3)
    system: System[Trajectory] = A3C(workers, rmsprop=rmsprop)
    return Experiment(
        with_threads(env, 1),
        PPOConfig(**settings),
        system,
        Processes(),
        until=until,
        device=args.device,
        recipe="a3c",
    )


RECIPES = [
    Recipe("ppo", "PPO (Schulman et al. 2017): rollouts of many envs, clipped updates", DEFAULT_ENV, ppo),
    Recipe("ppo-atari", "PPO with the paper's settings for Atari games", "Pong-v5", ppo_atari),
    Recipe(
        "ppo-massive",
        "PPO for thousands of envs (Rudin et al. 2022): short rollouts, adaptive learning rate",
        "CartpoleSwingup-v1",
        ppo_massive,
    ),
    Recipe("ppo-lstm", "PPO with a recurrent policy, for tasks that need memory", DEFAULT_ENV, ppo_lstm),
    Recipe("a2c", "A2C: synchronous advantage actor-critic, a special case of PPO", DEFAULT_ENV, a2c),
    Recipe("a3c", "A3C (Mnih et al. 2016): asynchronous workers share parameter servers", DEFAULT_ENV, a3c),
]
