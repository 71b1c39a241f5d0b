"""Checks shared by `unsupported_reason` of the algorithms: each returns a reason, or None if all is well."""

from __future__ import annotations

import math

import torch

from troop.core.env import ACTION_MASK, PRIVILEGED, Continuous, Discrete, EnvSpec
from troop.nets.cnn import TORSOS, default_torso, unsupported_image_reason
from troop.nets.user_network import unknown_network_reason

MAX_CHOICES = 4096  # actions for which a Q-network has an output each
ANY_ACTIONS = "PPO, A2C, A3C, IMPALA, APPO and UNREAL"  # algorithms that take every kind of action


def continuous_control_reason(spec: EnvSpec, torso: str | None = None) -> str | None:
    """Require continuous actions and observations that `torso` takes; None: vectors only."""
    if not isinstance(spec.action, Continuous):
        return (
            f"{spec.id} has discrete actions; FastTD3, TD3, DDPG, SAC and FlashSAC take continuous ones. "
            f"Use DQN, C51, Rainbow or R2D2 for discrete ones; {ANY_ACTIONS} take both"
        )
    if torso is None:
        if not spec.images:
            return None
        name = spec.images[0]
        return (
            f"{spec.id} has images {spec.obs[name].shape} as observation '{name}'; this algorithm takes "
            "vectors. Use SAC or TD3, for instance with the recipe sac-pixels, or PPO, IMPALA or APPO"
        )
    return observation_reason(spec, torso, False)


def privileged_names(spec: EnvSpec) -> list[str]:
    """Return the observations that only critics of continuous actions read."""
    return [PRIVILEGED] if PRIVILEGED in spec.obs else []


def split_images_reason(spec: EnvSpec) -> str | None:
    """Require vectors: the critic learner trains the encoder of images, the actor learner publishes it."""
    if not spec.images:
        return None
    return (
        f"{spec.id} has images as the observation '{spec.images[0]}', whose encoder critics and policy "
        "share; PQL trains them on separate hosts and takes vectors. Use the system Sync or Ape-X"
    )


def support_reason(atoms: int, v_min: float, v_max: float, normalize_rewards: bool) -> str | None:
    """Require a non-empty support of the categorical distribution, around 0 if rewards are scaled to it.

    Without atoms there is none.
    """
    if not atoms:
        return None
    if atoms == 1 or v_min >= v_max:
        return f"v_min {v_min:g} to v_max {v_max:g} with {atoms} atoms is not a range of values"
    if normalize_rewards and not v_min < 0 < v_max:
        return f"normalize_rewards needs v_min < 0 < v_max, not {v_min:g} to {v_max:g}"
    return None


def truncation_reason(rho_bar: float, c_bar: float) -> str | None:
    """Require rho_bar >= c_bar, under which V-trace was proved to converge (Espeholt et al. 2018)."""
    if rho_bar >= c_bar:
        return None
    return f"--rho-bar {rho_bar:g} is below --c-bar {c_bar:g}; V-trace needs rho_bar >= c_bar"


def sequence_reason(length: int, overlap: int, burn_in: int) -> str | None:
    """Require burn-in <= overlap < length: else sequences leave steps out, or never advance."""
    if burn_in <= overlap < length:
        return None
    return f"sequences need burn_in <= overlap < length, not {burn_in}, {overlap} and {length}"


def discrete_control_reason(
    spec: EnvSpec, torso: str, normalize_observations: bool, joins_vectors: bool = False
) -> str | None:
    """Require discrete actions, and vectors or images [channels, height, width] of uint8 or float32."""
    if not isinstance(spec.action, Discrete):
        return (
            f"{spec.id} has continuous actions; DQN, C51, Rainbow and R2D2 take discrete ones. "
            f"Use FastTD3, TD3, DDPG, SAC or FlashSAC for continuous ones; {ANY_ACTIONS} take both"
        )
    if spec.action.choices > MAX_CHOICES:
        return (
            f"{spec.id} has {spec.action.choices:,} actions{_factors(spec.action)}; DQN, C51, Rainbow and "
            f"R2D2 have an output for each and take at most {MAX_CHOICES:,}. {ANY_ACTIONS} have no such limit"
        )
    return observation_reason(spec, torso, normalize_observations, joins_vectors)


def observation_reason(
    spec: EnvSpec, torso: str, normalize_observations: bool, joins_vectors: bool = True
) -> str | None:
    """Require uint8 or float32 vectors and images [channels, height, width] that the torso takes.

    A network of the user takes one image, or the columns of all vectors. With `joins_vectors` the algorithm
    has layers behind it, which take the vectors beside an image.
    """
    if reason := unknown_network_reason(torso, ("auto", "mlp", *TORSOS)):
        return reason
    shapes = spec.shapes(privileged=False)
    beside = len(shapes) - len(spec.images) - (ACTION_MASK in shapes)
    if ":" in torso and (len(spec.images) > 1 or (spec.images and beside and not joins_vectors)):
        return (
            f"{spec.id} has the observations {', '.join(shapes)}; the network {torso} takes a single image, "
            "or the columns of all vectors"
        )
    for name, shape in shapes.items():
        dtype = spec.obs[name].dtype
        if dtype not in (torch.uint8, torch.float32):
            return f"{spec.id} has observations of {dtype}; expected torch.uint8 or torch.float32"
        if len(shape) not in (1, 3):
            return f"{spec.id} has observations {shape}; expected [n] or images [channels, height, width]"
        if len(shape) == 3 and (reason := _image_reason(spec.id, shape, torso)):
            return reason
    first = next(iter(shapes.values()))
    if not spec.images and torso not in ("auto", "mlp") and ":" not in torso:
        return f"{spec.id} has vector observations {first}; the {torso} torso takes images"
    if normalize_observations and len(spec.images) == len(shapes):
        return (
            f"{spec.id} has images {first}; normalize_observations is for vectors, pixels are divided by 255"
        )
    return None


def action_mask_reason(spec: EnvSpec) -> str | None:
    """Require one element of an action mask for each choice of each discrete action."""
    if ACTION_MASK not in spec.obs:
        return None
    if not isinstance(spec.action, Discrete):
        return f"{spec.id} has an action mask, which is for discrete actions, but continuous actions"
    choices = sum(spec.action.factors) if spec.action.factors else spec.action.choices
    if spec.width(ACTION_MASK) != choices:
        return f"{spec.id} has an action mask of {spec.width(ACTION_MASK)} elements for {choices} choices"
    return None


def minibatch_reason(minibatches: int, count: int, unit: str, steps: int, streams: int) -> str | None:
    """Require that `minibatches` divides the `count` rows or env streams of a batch of `steps` steps."""
    if count % minibatches == 0:
        return None
    small = [n for n in range(1, math.isqrt(count) + 1) if count % n == 0]
    divisors = {*small, *(count // n for n in small)}
    nearest = sorted(sorted(divisors, key=lambda n: (abs(n - minibatches), n))[:3])
    return (
        f"--minibatches is {minibatches}, which does not divide the {count} {unit} of a batch of {steps} "
        f"steps of {streams} env streams; {', '.join(map(str, nearest))} would"
    )


def _image_reason(env: str, shape: tuple[int, ...], torso: str) -> str | None:
    if shape[2] <= 4 and shape[2] < shape[0]:
        return f"{env} has images {shape}, channels last; expected [channels, height, width]"
    if torso == "mlp" or ":" in torso:
        return None
    reason = unsupported_image_reason(default_torso(shape) if torso == "auto" else torso, shape)
    return f"{env}: {reason}" if reason else None


def _factors(action: Discrete) -> str:
    return f" ({' x '.join(map(str, action.factors))})" if action.factors else ""
