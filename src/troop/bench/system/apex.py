"""Ape-X on two cores against its actor and its learner alone on one core each; and Ape-X on Ray."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from troop import envs
from troop.algorithms import DQNConfig
from troop.bench.system.measurement import (
    RUN_SETTINGS,
    STEPS_AND_UPDATES,
    AnyEngine,
    Measurement,
    measure,
)
from troop.bench.table import BenchResult
from troop.core.algorithm import AlgorithmConfig
from troop.core.batch import Rollout, Transition
from troop.core.env import EnvConfig, EnvSpec
from troop.core.program import Program
from troop.engines import Processes, Ray
from troop.recipes.apex import ATARI, PRIORITY
from troop.roles.learner import LearnerConfig
from troop.systems import Apex

ENV, BATCH_SIZE, ENVS = "Pong-v5", 32, 32


def two_cores() -> tuple[int, int]:
    """Return the ids of two cores of this machine; the same one twice if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1] if len(cores) < 2 else cores[1]


class PinnedCores:
    """Pins its process to some cores; built before the other roles of a host, whose threads inherit it."""

    def __init__(self, cores: Iterable[int]) -> None:
        os.sched_setaffinity(0, cores)


class NullReplay:
    """A replay that discards all rollouts and always returns the same batch."""

    def __init__(self, spec: EnvSpec, rows: int) -> None:
        obs = {name: torch.zeros((rows, *field.shape), dtype=field.dtype) for name, field in spec.obs.items()}
        one = torch.ones(rows)
        action = torch.zeros(rows, dtype=torch.int64)
        self.batch = Transition(obs, action, one, 0.97 * one, dict(obs), one, torch.arange(rows))

    def wants_data(self) -> Literal[True] | None:
        """Return True: there is no back-pressure."""
        return True

    def add(self, rollout: Rollout) -> None:
        """Discard the rollout."""

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Do nothing; no stream is stored."""

    def sample(self, rows: int) -> Transition | None:
        """Return the constant batch."""
        return self.batch

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Discard the priorities."""


class StaticWeights:
    """Weights that never change: actors receive the initial ones, published ones are discarded."""

    def __init__(self, algorithm: AlgorithmConfig[Any], spec: EnvSpec) -> None:
        self.weights = algorithm.policy(spec).state_dict()

    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """Return the initial weights as version 0."""
        return (0, self.weights) if after < 0 else None

    def publish(self, updates: int, weights: dict[str, Tensor]) -> None:
        """Discard the weights."""


@dataclasses.dataclass(frozen=True)
class ApexBenchmark:
    """Ape-X with one actor and one learner, neither of which waits for the other."""

    algorithm: Any  # an AlgorithmConfig
    env: EnvConfig
    system: Apex

    def program(self) -> Program:
        """Return the complete system."""
        return self.system.program(self.algorithm, self.env, RUN_SETTINGS)

    def program_of(self, role: str) -> Program:
        """Return one role of the system with all its peers replaced by ones without cost."""
        program, spec = Program(f"{role} alone"), self.env.spec
        with program.host(role):
            program.add("replay", NullReplay, spec, self.system.learner.batch_size)
            program.add("weights", StaticWeights, self.algorithm, spec)
        node = self.program().nodes[role]
        program.nodes[role] = dataclasses.replace(node, host=role)
        return program


def atari(env: str = ENV) -> ApexBenchmark:
    """Return the paper's learner with a batch size that suits one core."""
    system = Apex(
        actors=1,
        overlap=False,  # there is no third core for the simulator
        chunk_length=8,
        weight_sync_steps=400,
        learner=LearnerConfig(BATCH_SIZE, prefetch=4, publish_every=25),
        replay_capacity=20_000,
        learning_starts=500,
        priority=PRIORITY,
        save_replay=False,
    )
    config = dataclasses.replace(envs.resolve(env, ENVS), threads=1)  # type: ignore[type-var]
    return ApexBenchmark(DQNConfig(**ATARI), config, system)


def pin_to_cores(program: Program, cores: Iterable[int]) -> Program:
    """Return the same program with every host pinned to these cores."""
    pinned = Program(program.name)
    for host in program.hosts():
        with pinned.host(host):
            pinned.add(f"{host} cores", PinnedCores, tuple(cores))
    for name, node in program.nodes.items():
        pinned.nodes[name] = dataclasses.replace(node, host=node.host or name)
    return pinned


def system_rates(benchmark: ApexBenchmark, engine: AnyEngine, seconds: float) -> tuple[float, float]:
    """Return env steps and updates per second of the complete system on two cores."""
    measurement = Measurement(seconds, warmup=3.0, counters=STEPS_AND_UPDATES)
    measure(pin_to_cores(benchmark.program(), two_cores()), engine, measurement)
    return measurement.rate("env_steps"), measurement.rate("updates")


def role_rate(benchmark: ApexBenchmark, role: str, counter: str, core: int, seconds: float) -> float:
    """Return the rate of a counter of one role alone on one core."""
    measurement = Measurement(seconds, warmup=2.0, counters=(counter,))
    measure(pin_to_cores(benchmark.program_of(role), (core,)), Processes(threads=1), measurement)
    return measurement.rate(counter)


def run(seconds: float = 10.0, env: str = ENV) -> list[BenchResult]:
    """Measure the rate of each role in the system relative to its rate alone, and the mean of the two."""
    benchmark = atari(env)
    first, second = two_cores()
    steps_alone = role_rate(benchmark, "actor0", "env_steps", first, seconds)
    updates_alone = role_rate(benchmark, "learner", "updates", second, seconds)
    steps, updates = system_rates(benchmark, Processes(threads=1), seconds)
    actor_ratio, learner_ratio = steps / steps_alone, updates / updates_alone
    return [
        BenchResult(
            f"Ape-X on two cores, actor, {env}",
            f"{steps:.0f} env steps/s",
            f"alone {steps_alone:.0f}",
            actor_ratio,
        ),
        BenchResult(
            f"Ape-X on two cores, learner, batch size {BATCH_SIZE}",
            f"{updates:.1f} updates/s",
            f"alone {updates_alone:.1f}",
            learner_ratio,
        ),
        BenchResult("Ape-X on two cores, mean of both", "", "", (actor_ratio + learner_ratio) / 2, ">= 0.9"),
    ]


def ray(seconds: float = 10.0, env: str = ENV) -> list[BenchResult]:
    """Measure the same system on Ray relative to processes."""
    benchmark = atari(env)
    on_processes = system_rates(benchmark, Processes(threads=1), seconds)
    on_ray = system_rates(benchmark, Ray(threads=1), seconds)
    return [
        BenchResult(
            f"Ape-X on Ray, {unit}",
            f"{ray_rate:.1f}",
            f"processes {process_rate:.1f}",
            ray_rate / process_rate,
        )
        for unit, process_rate, ray_rate in zip(
            ("env steps/s", "updates/s"), on_processes, on_ray, strict=True
        )
    ]
