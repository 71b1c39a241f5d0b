"""Train RLlib's IMPALA or APPO on CartPole and report env steps per second; appo.py calls this script."""

from __future__ import annotations

import time
from typing import Any

import appo_workload
import ppo_workload
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

CONFIGS: dict[str, Any] = {"appo": APPOConfig, "impala": IMPALAConfig}
WARMUP_S = 10.0


def main() -> None:
    """Train with one env runner and a learner in the main process; the rate is that of RLlib's own counts."""
    workload, name = appo_workload.parse("--algorithm", tuple(CONFIGS))
    steps = appo_workload.UNROLLS[workload.task] * workload.length
    config = (
        CONFIGS[name]()
        .environment(workload.task)
        .env_runners(
            num_env_runners=1,
            num_envs_per_env_runner=workload.envs,
            rollout_fragment_length=workload.length,
        )
        .learners(num_learners=0)
        .training(lr=1e-3, gamma=workload.gamma, train_batch_size_per_learner=steps)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(workload.hidden), fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .reporting(min_time_s_per_iteration=1)
    )
    if name == "appo":
        config = config.training(num_epochs=workload.epochs, minibatch_size=steps // workload.minibatches)
    algorithm = config.build_algo()
    begin = time.perf_counter()
    points: list[tuple[float, float]] = []
    while not points or points[-1][0] < WARMUP_S + workload.seconds:
        result = algorithm.train()
        counted = result.get("env_runners", {}).get("num_env_steps_sampled_lifetime")
        if counted is not None:  # the first iterations may have no results of the env runner yet
            points.append((time.perf_counter() - begin, float(counted)))
    algorithm.stop()
    measured = [point for point in points if point[0] >= WARMUP_S]
    (start, first), (end, last) = measured[0], measured[-1]
    ppo_workload.report(int(last - first), end - start)


if __name__ == "__main__":
    main()
