"""Suite of Gymnasium's classic control and Box2D tasks; references are the returns that count as solved."""

from __future__ import annotations

from troop.suites.task import Suite, Task

SOLVED, ZOO = "solved", "SAC, 20k steps"
SOURCES = {
    SOLVED: "return at which Gymnasium counts the task as solved (reward_threshold)",
    ZOO: "SAC after 20k env steps; benchmark of RL Baselines3 Zoo (Gymnasium has no threshold)",
}

# fmt: off
_TASKS = (
    Task("CartPole-v1",                 20.9,  475.0, SOLVED),
    Task("Acrobot-v1",                -500.0, -100.0, SOLVED),
    Task("MountainCar-v0",            -200.0, -110.0, SOLVED),
    Task("Pendulum-v1",              -1255.3, -157.0, ZOO),
    Task("MountainCarContinuous-v0",   -33.4,   90.0, SOLVED),
    Task("LunarLander-v3",            -184.5,  200.0, SOLVED),
    Task("LunarLanderContinuous-v3",  -206.5,  200.0, SOLVED),
    Task("BipedalWalker-v3",          -100.0,  300.0, SOLVED),
    Task("BipedalWalkerHardcore-v3",  -107.9,  300.0, SOLVED),
)
# fmt: on
_REMARK = "CarRacing-v3 is left out: its images need the recipes sac-pixels or td3-pixels."
SUITES = {"classic": Suite("classic", _TASKS, SOURCES, _REMARK)}
