"""Rewards of the MuJoCo Playground tasks, as settings of EnvPool.

Seo et al., 2025 (arXiv 2505.22642): with the default weights, which were tuned for PPO, FastTD3 learns worse
gaits and needs stronger penalties. The paper tunes the weights on the G1 and reuses them for the T1. Like the
authors' code, Troop trains on the tuned reward and reports returns of the default one, without pushes.
"""

from __future__ import annotations

from troop.envs.envpool import catalog
from troop.envs.envpool.task_spec import envpool_spec
from troop.envs.settings import Setting

MODULE = "envpool.mujoco.playground"

# In brackets: the default of the task.
G1: tuple[tuple[str, float], ...] = (
    ("energy_scale", -5e-5),  # (0)
    ("action_rate_scale", -0.1),  # (0)
    ("torques_scale", -1e-3),  # (0)
    ("pose_scale", -1.0),  # (-0.1)
    ("tracking_ang_vel_scale", 1.25),  # (0.75)
    ("tracking_lin_vel_scale", 1.25),  # (1.0)
    ("feet_phase_scale", 1.0),  # (1.0)
    ("ang_vel_xy_scale", -0.3),  # (-0.15)
    ("orientation_scale", -5.0),  # (-2.0)
)


def tuned_reward(id: str) -> tuple[tuple[str, float], ...]:
    """Return the weights for a G1 or T1 joystick task, limited to those the task has; () for other envs."""
    if not id.rpartition("/")[2].startswith(("G1Joystick", "T1Joystick")):
        return ()
    known = envpool_spec(id, ()).config._fields
    return tuple((name, weight) for name, weight in G1 if name in known)


def evaluation_settings(id: str, settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Remove the settings of the reward from those of a Playground task, and disable pushes if it has them.

    Settings of other tasks are returned as they are.
    """
    if catalog.modules().get(id) != MODULE:
        return settings
    settings = tuple((name, value) for name, value in settings if not _is_reward_setting(name))
    default = getattr(envpool_spec(id, ()).config, "push_enable", None)
    if default is None:
        return settings
    disabled: Setting = ("push_enable", type(default)(False))  # a bool, or for some tasks a number
    return (*(pair for pair in settings if pair[0] != "push_enable"), disabled)


def _is_reward_setting(name: str) -> bool:
    weight = name.endswith(("_scale", "_reward")) and name != "action_scale"
    return weight or name in ("tracking_sigma", "action_rate")
