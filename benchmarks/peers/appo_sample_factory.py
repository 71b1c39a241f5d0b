"""Train Sample Factory's asynchronous APPO on EnvPool and report env steps per second; appo.py calls it.

Its own structure: a rollout worker, an inference worker and a learner, each a process; batched sampling over
EnvPool, as in its examples; double buffering, with two env objects of half the envs.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import time
from typing import Any

import appo_workload
import ppo_workload
from ppo_sample_factory import arguments, make_env
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

SPLITS = 2  # env objects of a worker: one is simulated while actions of the other are computed


def main() -> None:
    """Train for the given time; the rate is that of the library's own counts after the first report."""
    workload, _ = appo_workload.parse()
    unrolls = appo_workload.UNROLLS[workload.task]
    half = dataclasses.replace(workload, envs=workload.envs // SPLITS, threads=1)
    register_env("envpool_batch", functools.partial(make_env, half))
    changes: dict[str, Any] = {
        "async_rl": True,
        "serial_mode": False,
        "num_envs_per_worker": SPLITS,
        "worker_num_splits": SPLITS,
        "with_vtrace": True,
        "value_bootstrap": False,
        "batch_size": unrolls * workload.length // workload.minibatches,
    }
    with tempfile.TemporaryDirectory() as folder:
        argv = [flag for flag in arguments(workload, folder) if flag.split("=")[0][2:] not in changes]
        argv += [f"--{name}={value}" for name, value in changes.items()]
        parser, _ = parse_sf_args(argv=argv)
        _, runner = make_runner(parse_full_cfg(parser, argv))
        runner.init()
        deadline = time.monotonic() + workload.seconds + 15  # --train_for_seconds has no effect in 2.1.1
        runner._should_end_training = lambda: time.monotonic() > deadline
        runner.run()
        points = list(runner.fps_stats)  # (time, env steps) every five seconds
    measured = [point for point in points if point[1] > 0][1:]
    if len(measured) < 2:
        raise SystemExit("Fewer than two reports after the warm-up; use more --seconds.")
    (start, first), (end, last) = measured[0], measured[-1]
    ppo_workload.report(last - first, end - start)


if __name__ == "__main__":
    main()
