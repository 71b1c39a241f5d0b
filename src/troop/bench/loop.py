"""The sync loop against the sum of its parts, each measured alone."""

from __future__ import annotations

import dataclasses
import statistics
import time

import torch

from troop import api
from troop.bench.clock import in_turn
from troop.bench.table import Line
from troop.core.errors import BadInput
from troop.core.program import construct
from troop.core.role import Role
from troop.engines.runtime import cores, prepare
from troop.envs import EnvPool
from troop.experiment import Experiment
from troop.roles.trainer import UpdateSchedule


def _trainer(made: Experiment, threads: int, overlap: bool) -> Role:
    """The Trainer of the recipe, warmed up."""
    schedule = dataclasses.replace(made.system.schedule, overlap=overlap)
    system = dataclasses.replace(made.system, schedule=schedule, recreate_every=0)
    env = dataclasses.replace(made.env, threads=threads)  # type: ignore[type-var]
    program = system.program(made.algorithm, env, made.setting())
    trainer: Role = construct(program.nodes["trainer"].build, program.nodes.__getitem__)
    for _ in range(30):
        trainer.step()
    return trainer


def _alone(made: Experiment, threads: int) -> tuple[float, float]:
    """Seconds of one vector step of the simulator, and of one step's updates, each alone."""
    env = dataclasses.replace(made.env, threads=threads).make(0)  # type: ignore[type-var]
    env.reset(0)
    spec = made.env.spec
    action = torch.zeros(spec.envs, spec.action.size)  # type: ignore[union-attr]
    trainer = _trainer(made, threads, False)
    schedule: UpdateSchedule = made.system.schedule
    batch = trainer.store.sample(schedule.batch_size)  # type: ignore[attr-defined]

    def updates() -> None:
        for _ in range(schedule.updates_per_step):
            trainer.algorithm.update(batch)  # type: ignore[attr-defined]

    def simulate() -> None:
        env.step(action.uniform_(-1, 1))

    took = in_turn({"env": simulate, "updates": updates}, rounds=5)
    return took["env"], took["updates"]


def _steps_per_s(made: Experiment, threads: int, overlap: bool, least: float = 4.0) -> float:
    """Vector steps per second of the whole loop."""
    trainer = _trainer(made, threads, overlap)
    rates = []
    for _ in range(4):
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < least / 4:
            trainer.step()
            steps += 1
        rates.append(steps / (time.perf_counter() - start))
    return statistics.median(rates)


def run(env: str = "HalfCheetah-v5", recipe: str = "fasttd3-cpu") -> list[Line]:
    """All cores in turn against the sum; one thread each, overlapped against in turn."""
    made, lines = api.experiment(recipe, env), []
    if not isinstance(made.env, EnvPool):
        raise BadInput(f"{env} is not of EnvPool, whose threads this measures.")
    found: dict[str, float] = {}
    for threads in dict.fromkeys((cores(), 1)):
        prepare(threads)
        simulator, updates = _alone(made, threads)
        rate = _steps_per_s(made, threads, False)
        found[f"{threads} in turn"] = rate
        lines.append(
            Line(
                f"sync loop, {threads} threads, in turn",
                f"{rate * made.env.envs:.0f} env steps/s",
                f"env alone + updates alone {made.env.envs / (simulator + updates):.0f} env steps/s",
                rate * (simulator + updates),
                ">= 0.9",
            )
        )
    prepare(1)
    found["1 overlapped"] = _steps_per_s(made, 1, True)
    lines.append(
        Line(
            "overlap, 1 thread each",
            f"{found['1 overlapped'] * made.env.envs:.0f} env steps/s",
            f"the same threads in turn {found['1 in turn'] * made.env.envs:.0f} env steps/s",
            found["1 overlapped"] / found["1 in turn"],
            ">= 1.3",
        )
    )
    best = max(found, key=lambda name: found[name])
    lines.append(Line("fastest here", best, "", found[best] / found[f"{cores()} in turn"]))
    return lines
