"""Suites of DeepMind Control tasks (Tassa et al. 2018), which all have vector observations in EnvPool.

The reference is the return of SAC after 1M env steps, as TD-MPC2 published it. Where that is less than half
of the return of SimbaV2 (a SAC with larger, normalised networks), it is the return of SimbaV2: on these tasks
most of the three seeds of SAC had not learned by then.
"""

from __future__ import annotations

from troop.suites.task import Suite, Task

SAC, SIMBA, CLEAN, NONE = "SAC, 1M steps", "SimbaV2", "SAC, CleanRL, 1M steps", "none"
SOURCES = {
    SAC: "SAC after 1M env steps, mean of 3 seeds; repository of TD-MPC2 (Hansen et al. 2024), results/sac",
    SIMBA: "SimbaV2 after at most 1M env steps (Lee et al. 2025, arXiv 2502.15280), tables per task; used "
    "where SAC reaches less than half of it",
    CLEAN: "SAC of CleanRL after 1M env steps, mean of 5 seeds (Lin 2025, arXiv 2511.08234)",
    NONE: "none found",
}

# fmt: off
_TASKS = (
    Task("AcrobotSwingup-v1",          3.1, 436.0, SIMBA),
    Task("BallInCupCatch-v1",         76.8, 978.4, SAC),
    Task("CartpoleBalance-v1",       347.5, 998.1, SAC),
    Task("CartpoleBalanceSparse-v1",  47.7, 983.3, SAC),
    Task("CartpoleSwingup-v1",        25.9, 838.7, SAC),
    Task("CartpoleSwingupSparse-v1",   0.0, 789.9, SAC),
    Task("CheetahRun-v1",              3.8, 730.1, SAC),
    Task("FingerSpin-v1",              0.1, 878.1, SAC),
    Task("FingerTurnEasy-v1",        199.8, 889.0, SAC),
    Task("FingerTurnHard-v1",         88.6, 765.5, SAC),
    Task("FishSwim-v1",               75.2, 826.0, SIMBA),
    Task("FishUpright-v1",           281.2, 923.0, CLEAN),
    Task("HopperHop-v1",               0.0, 290.0, SIMBA),
    Task("HopperStand-v1",             1.9, 944.0, SIMBA),
    Task("HumanoidRun-v1",             0.8, 194.0, SIMBA),
    Task("HumanoidStand-v1",           4.8, 916.0, SIMBA),
    Task("HumanoidWalk-v1",            1.0, 651.0, SIMBA),
    Task("PendulumSwingup-v1",         0.6, 827.0, SIMBA),
    Task("PointMassEasy-v1",           3.5, None,  NONE),
    Task("QuadrupedRun-v1",          109.7, 935.0, SIMBA),
    Task("QuadrupedWalk-v1",         109.9, 962.0, SIMBA),
    Task("ReacherEasy-v1",            49.2, 913.9, SAC),
    Task("ReacherHard-v1",             8.2, 928.0, SAC),
    Task("WalkerRun-v1",              22.9, 635.0, SAC),
    Task("WalkerStand-v1",           128.9, 949.1, SAC),
    Task("WalkerWalk-v1",             32.6, 957.3, SAC),
)
# fmt: on
_TWELVE = {
    "AcrobotSwingup-v1",
    "BallInCupCatch-v1",
    "CartpoleBalanceSparse-v1",
    "CartpoleSwingupSparse-v1",
    "CheetahRun-v1",
    "FingerTurnEasy-v1",
    "FishUpright-v1",
    "HopperStand-v1",
    "PendulumSwingup-v1",
    "PointMassEasy-v1",
    "ReacherEasy-v1",
    "WalkerRun-v1",
}  # fmt: skip
_REMARK = (
    "EnvPool's other DeepMind Control tasks (dogs, manipulators, stackers, swimmers, CMU humanoids, LQR, two "
    "and three poles) have no published return of SAC within 1M env steps, or SAC does not learn them."
)
SUITES = {
    "dmc": Suite("dmc", _TASKS, SOURCES, _REMARK),
    "dmc-12": Suite("dmc-12", tuple(task for task in _TASKS if task.env in _TWELVE), SOURCES),
}
