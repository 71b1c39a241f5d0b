"""Suite of Gymnasium's MuJoCo tasks; references are SAC's returns with 1M env steps."""

from __future__ import annotations

from troop.suites.task import Suite, Task

SAC = "SAC, 1M steps"
SOURCES = {
    SAC: "best SAC return within 1M env steps, mean of 10 seeds; Tianshou's MuJoCo benchmark (v3 and v2 envs)"
}

# fmt: off
_TASKS = (
    Task("Ant-v5",                    -54.2,  5850.2, SAC),
    Task("HalfCheetah-v5",           -277.2, 12138.8, SAC),
    Task("Hopper-v5",                  17.7,  3542.2, SAC),
    Task("Humanoid-v5",               114.7,  5488.5, SAC),
    Task("InvertedDoublePendulum-v5",  48.6,  9359.5, SAC),
    Task("Reacher-v5",                -43.2,    -2.6, SAC),
    Task("Swimmer-v5",                  2.5,    44.4, SAC),
    Task("Walker2d-v5",                 0.8,  5007.0, SAC),
)
# fmt: on
SUITES = {"gym-mujoco": Suite("gym-mujoco", _TASKS, SOURCES)}
