"""The synchronous training loop against the sum of its parts, each measured alone."""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Any

import torch

from troop import api
from troop.bench.table import BenchResult
from troop.bench.timing import Report, ignore, time_alternately
from troop.core.errors import BadInput
from troop.core.program import construct
from troop.core.role import Role
from troop.engines.runtime import cores, prepare
from troop.envs import EnvPool
from troop.experiment import Experiment
from troop.systems import Sync

WARMUP_STEPS, ROUNDS = 30, 4


def _sync(experiment: Experiment[Any]) -> Sync:
    assert isinstance(experiment.system, Sync), "the recipe must use the Sync system"
    return experiment.system


def _trainer(experiment: Experiment[Any], threads: int, overlap: bool) -> Role:
    """Build the trainer of the recipe and warm it up."""
    sync = _sync(experiment)
    schedule = dataclasses.replace(sync.schedule, overlap=overlap, max_updates_per_step=0.0)
    system = dataclasses.replace(sync, schedule=schedule, recreate_every=0)
    env = dataclasses.replace(experiment.env, threads=threads)  # type: ignore[type-var]
    program = system.program(experiment.algorithm, env, experiment.settings())
    trainer: Role = construct(program.nodes["trainer"].build, program.nodes.__getitem__)
    for _ in range(WARMUP_STEPS):
        trainer.step()
    return trainer


def _seconds_of_parts(experiment: Experiment[Any], threads: int) -> tuple[float, float]:
    """Return the seconds of one vector step of the simulator and of the updates of one step, each alone."""
    env = dataclasses.replace(experiment.env, threads=threads).make(0)  # type: ignore[type-var]
    env.reset(0)
    spec = experiment.env.spec
    action = torch.zeros(spec.envs, spec.action.size)  # type: ignore[union-attr]
    trainer = _trainer(experiment, threads, False)
    schedule = _sync(experiment).schedule
    batch = trainer.replay.sample(schedule.batch_size)  # type: ignore[attr-defined]

    def update() -> None:
        for _ in range(max(1, round(schedule.updates_per_step))):
            trainer.algorithm.update(batch)  # type: ignore[attr-defined]

    def simulate() -> None:
        env.step(action.uniform_(-1, 1))

    seconds = time_alternately({"env": simulate, "updates": update}, rounds=5)
    return seconds["env"], seconds["updates"]


def _steps_per_s(experiment: Experiment[Any], threads: int, overlap: bool, min_seconds: float = 4.0) -> float:
    """Return the vector steps per second of the complete loop, median of ROUNDS rounds."""
    trainer = _trainer(experiment, threads, overlap)
    rates = []
    for _ in range(ROUNDS):
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < min_seconds / ROUNDS:
            trainer.step()
            steps += 1
        rates.append(steps / (time.perf_counter() - start))
    return statistics.median(rates)


def run(
    env: str = "HalfCheetah-v5", recipe: str = "fasttd3-cpu", report: Report = ignore
) -> list[BenchResult]:
    """Compare the sequential loop with the sum of its parts, and the overlapped with the sequential loop."""
    experiment, results = api.make_experiment(recipe, env), []
    if not isinstance(experiment.env, EnvPool):
        raise BadInput(f"--env is {env}, which is not of EnvPool; this benchmark sets EnvPool's threads.")
    envs = experiment.env.envs
    rates: dict[str, float] = {}
    for threads in dict.fromkeys((cores(), 1)):
        prepare(threads)
        sequential = f"{threads} thread{'' if threads == 1 else 's'}, sequential"
        report(f"sync loop, {sequential}: its parts")
        env_seconds, update_seconds = _seconds_of_parts(experiment, threads)
        report(f"sync loop, {sequential}")
        rates[sequential] = rate = _steps_per_s(experiment, threads, False)
        results.append(
            BenchResult(
                f"sync loop, {sequential}",
                f"{rate * envs:.0f} env steps/s",
                f"env alone + updates alone {envs / (env_seconds + update_seconds):.0f} env steps/s",
                rate * (env_seconds + update_seconds),
                ">= 0.9",
            )
        )
    prepare(1)
    report("sync loop, 1 thread each, overlapped")
    rates["1 thread, overlapped"] = overlapped = _steps_per_s(experiment, 1, True)
    one_thread = rates["1 thread, sequential"]
    results.append(
        BenchResult(
            "sync loop, 1 thread each, overlapped",
            f"{overlapped * envs:.0f} env steps/s",
            f"1 thread, sequential {one_thread * envs:.0f} env steps/s",
            overlapped / one_thread,
            ">= 1.3",
        )
    )
    best = max(rates, key=lambda name: rates[name])
    all_cores = next(iter(rates))
    results.append(BenchResult("fastest sync loop", best, all_cores, rates[best] / rates[all_cores]))
    return results
