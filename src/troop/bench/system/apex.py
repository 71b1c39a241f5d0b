"""Whole Ape-X on two cores, against its actor and its learner alone on one core each; and on Ray."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from troop import envs
from troop.algorithms import DQNConfig
from troop.bench.system.trial import BOTH, SETTING, AnyEngine, Trial, tried
from troop.bench.table import Line
from troop.core.algorithm import AlgorithmConfig
from troop.core.batch import Rollout, Transition
from troop.core.env import EnvConfig, EnvSpec
from troop.core.program import Program
from troop.engines import Processes, Ray
from troop.recipes.apex import ATARI, PRIORITY
from troop.roles.learner import LearnerConfig
from troop.systems import Apex

ENV, BATCH, ENVS = "Pong-v5", 32, 32


def cores() -> tuple[int, int]:
    """Two cores of this machine, one twice if there is no other."""
    mine = sorted(os.sched_getaffinity(0))
    return mine[0], mine[-1] if len(mine) < 2 else mine[1]


class Confined:
    """Keeps its host to some cores: built before its other roles, whose threads then stay there too."""

    def __init__(self, cores: Iterable[int]) -> None:
        os.sched_setaffinity(0, cores)


class Willing:
    """A store that takes everything and keeps nothing, and gives the same batch again and again."""

    def __init__(self, spec: EnvSpec, rows: int) -> None:
        obs = {name: torch.zeros((rows, *field.shape), dtype=field.dtype) for name, field in spec.obs.items()}
        one = torch.ones(rows)
        action = torch.zeros(rows, dtype=torch.int64)
        self.batch = Transition(obs, action, one, 0.97 * one, dict(obs), one, torch.arange(rows))

    def wants_data(self) -> Literal[True] | None:
        """Always."""
        return True

    def add(self, piece: Rollout) -> None:
        """Take it."""

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Nothing to cut."""

    def sample(self, rows: int) -> Transition | None:
        """The batch."""
        return self.batch

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Nothing to change."""


class Known:
    """First weights for an actor, and nothing newer."""

    def __init__(self, algorithm: AlgorithmConfig[Transition], spec: EnvSpec) -> None:
        self.weights = algorithm.policy(spec).state_dict()

    def latest(self, after: int) -> tuple[int, dict[str, Tensor]] | None:
        """They."""
        return (0, self.weights) if after < 0 else None

    def publish(self, updates: int, weights: dict[str, Tensor]) -> None:
        """Nobody reads it."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is measured: one actor and one learner that would each fill a core, running free."""

    algorithm: Any  # a config of one
    env: EnvConfig
    system: Apex

    def whole(self) -> Program:
        """All of it."""
        return self.system.program(self.algorithm, self.env, SETTING)

    def alone(self, name: str) -> Program:
        """One role as it is, with everyone it holds replaced by one who costs nothing."""
        program, spec = Program(f"{name} alone"), self.env.spec
        with program.host(name):
            program.add("replay", Willing, spec, self.system.learner.batch_size)
            program.add("weights", Known, self.algorithm, spec)
        node = self.whole().nodes[name]
        program.nodes[name] = dataclasses.replace(node, host=name)
        return program


def atari(env: str = ENV) -> Subject:
    """The paper's learner, with a batch that one core can learn from."""
    system = Apex(
        actors=1,
        overlap=False,  # there is no third core on which the simulator could go on
        chunk_length=8,
        weight_sync_steps=400,
        learner=LearnerConfig(BATCH, prefetch=4, publish_every=25),
        replay_capacity=20_000,
        learning_starts=500,
        priority=PRIORITY,
        save_replay=False,
    )
    config = dataclasses.replace(envs.resolve(env, ENVS), threads=1)  # type: ignore[type-var]
    return Subject(DQNConfig(**ATARI), config, system)


def confined(program: Program, to: Iterable[int]) -> Program:
    """The same program, every host of it kept to these cores."""
    kept = Program(program.name)
    for host in program.hosts():
        with kept.host(host):
            kept.add(f"{host} cores", Confined, tuple(to))
    for name, node in program.nodes.items():
        kept.nodes[name] = dataclasses.replace(node, host=node.host or name)
    return kept


def together(subject: Subject, engine: AnyEngine, seconds: float) -> tuple[float, float]:
    """Env steps and updates a second of the whole on two cores."""
    trial = Trial(seconds, warm=3.0, moving=BOTH)
    tried(confined(subject.whole(), cores()), engine, trial)
    return trial.rate("env_steps"), trial.rate("updates")


def alone(subject: Subject, role: str, count: str, core: int, seconds: float) -> float:
    """What one role counts a second, alone on a core."""
    trial = Trial(seconds, warm=2.0, moving=(count,))
    tried(confined(subject.alone(role), (core,)), Processes(threads=1), trial)
    return trial.rate(count)


def run(seconds: float = 10.0, env: str = ENV) -> list[Line]:
    """Each role's share of what it reaches alone, and the mean of the two."""
    subject = atari(env)
    first, second = cores()
    steps_alone = alone(subject, "actor0", "env_steps", first, seconds)
    updates_alone = alone(subject, "learner", "updates", second, seconds)
    steps, updates = together(subject, Processes(threads=1), seconds)
    acting, learning = steps / steps_alone, updates / updates_alone
    return [
        Line(
            f"Ape-X on two cores, actor, {env}",
            f"{steps:.0f} env steps/s",
            f"alone {steps_alone:.0f}",
            acting,
        ),
        Line(
            f"Ape-X on two cores, learner, batch {BATCH}",
            f"{updates:.1f} updates/s",
            f"alone {updates_alone:.1f}",
            learning,
        ),
        Line("Ape-X on two cores, both", "", "mean of the two", (acting + learning) / 2, ">= 0.9"),
    ]


def ray(seconds: float = 10.0, env: str = ENV) -> list[Line]:
    """The same run on both engines."""
    subject = atari(env)
    ours = together(subject, Processes(threads=1), seconds)
    rays = together(subject, Ray(threads=1), seconds)
    names = ("env steps/s", "updates/s")
    return [
        Line(f"Ape-X, {name}", f"ray {there:.1f}", f"processes {here:.1f}", there / here)
        for name, here, there in zip(names, ours, rays, strict=True)
    ]
