"""Checks shared by `unsupported_reason` of the algorithms: each returns a reason, or None if all is well."""

from __future__ import annotations

import torch

from troop.core.env import OBS, Continuous, Discrete, EnvSpec
from troop.nets.cnn import default_torso, unsupported_image_reason


def continuous_control_reason(spec: EnvSpec) -> str | None:
    """Require continuous actions and vector observations."""
    if not isinstance(spec.action, Continuous):
        return (
            f"{spec.id} has discrete actions; FastTD3, TD3, DDPG and SAC take continuous ones. "
            "Use DQN, C51 or Rainbow for discrete ones"
        )
    if len(spec.obs[OBS].shape) != 1:
        return f"{spec.id} has image observations {spec.obs[OBS].shape}; this algorithm takes vectors"
    return None


def support_reason(atoms: int, v_min: float, v_max: float, normalize_rewards: bool) -> str | None:
    """Require a non-empty support of the categorical distribution, around 0 if rewards are scaled to it."""
    if atoms == 1 or v_min >= v_max:
        return f"v_min {v_min:g} to v_max {v_max:g} with {atoms} atoms is not a range of values"
    if normalize_rewards and not v_min < 0 < v_max:
        return f"normalize_rewards needs v_min < 0 < v_max, not {v_min:g} to {v_max:g}"
    return None


def discrete_control_reason(spec: EnvSpec, net: str, normalize_observations: bool) -> str | None:
    """Require discrete actions, and vectors or images [channels, height, width] of uint8 or float32."""
    if not isinstance(spec.action, Discrete):
        return (
            f"{spec.id} has continuous actions; DQN, C51 and Rainbow take discrete ones. "
            "Use FastTD3, TD3, DDPG or SAC for continuous ones"
        )
    field = spec.obs[OBS]
    if field.dtype not in (torch.uint8, torch.float32):
        return f"{spec.id} has observations of {field.dtype}; expected torch.uint8 or torch.float32"
    if len(field.shape) == 1:
        if net not in ("auto", "mlp"):
            return f"{spec.id} has vector observations {field.shape}; the {net} torso takes images"
        return None
    return _image_reason(spec.id, field.shape, net, normalize_observations)


def _image_reason(env: str, shape: tuple[int, ...], net: str, normalize_observations: bool) -> str | None:
    if len(shape) != 3:
        return f"{env} has observations {shape}; expected [n] or images [channels, height, width]"
    if shape[2] <= 4 and shape[2] < shape[0]:
        return f"{env} has images {shape}, channels last; expected [channels, height, width]"
    if normalize_observations:
        return f"{env} has images {shape}; normalize_observations is for vectors, pixels are divided by 255"
    if net == "mlp":
        return None
    reason = unsupported_image_reason(default_torso(shape) if net == "auto" else net, shape)
    return f"{env}: {reason}" if reason else None
