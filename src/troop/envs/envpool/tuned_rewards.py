"""FastTD3's tuned reward weights for the MuJoCo Playground humanoids, as settings of EnvPool.

Seo et al., 2025 (arXiv 2505.22642): with the default weights, which were tuned for PPO, FastTD3 learns worse
gaits and needs stronger penalties. The paper tunes the weights on the G1, reuses them for the T1, and
disables random pushes.
"""

from __future__ import annotations

from troop.envs.envpool.adapter import envpool_spec

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


def tuned_reward(id: str) -> tuple[tuple[str, float | bool], ...]:
    """Return the settings for a G1 or T1 joystick task, limited to those the task has; () for other envs."""
    name = id.rpartition("/")[2]
    if not name.startswith(("G1Joystick", "T1Joystick")):
        return ()
    known = envpool_spec(id, ()).config._fields
    settings: tuple[tuple[str, float | bool], ...] = (*G1, ("push_enable", False))
    return tuple((key, value) for key, value in settings if key in known)
