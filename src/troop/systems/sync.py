"""Sync: one place, in turn: collect, store, update. FastTD3, TD3, DDPG as their authors run them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial

from torch import nn

from troop.core.algorithm import AlgorithmConfig
from troop.core.batch import NStep, Transition
from troop.core.config import ranged
from troop.core.env import Continuous, EnvConfig, EnvSpec
from troop.core.errors import BadInput
from troop.core.program import Program, Schedule, build, derived
from troop.replay.steps import Steps
from troop.replay.uniform import Replay, Size
from troop.roles.collector import World
from troop.roles.evaluator import Evaluator
from troop.roles.trainer import Rhythm, Trainer
from troop.systems.setting import Setting


@dataclass(frozen=True)
class Sync:
    """A Trainer alone, and its Evaluator."""

    rhythm: Rhythm = field(default_factory=Rhythm)
    capacity: int = ranged(1_000_000, low=1)
    """Rows of replay over all envs."""
    warmup: int = ranged(10, low=1)
    """Rows per env before the first update."""
    renewal: int = ranged(5_000, low=0)
    """Vector steps after which envs are made anew, so that a resume can play them back exactly; 0: never.
    Choose more than an episode has, or its end is not seen in training."""

    def program(self, algorithm: AlgorithmConfig[Transition], env: EnvConfig, setting: Setting) -> Program:
        """The evaluator holds the trainer."""
        program, spec, seed = Program("sync"), env.spec, setting.seed
        rhythm = self.rhythm
        if setting.deterministic:
            rhythm = dataclasses.replace(rhythm, overlap=False)
        trainer = program.add(
            "trainer",
            Trainer,
            World(partial(env.make, device=setting.device), derived(seed, "train"), self.playable(env.spec)),
            build(algorithm.algorithm, spec, device=setting.device),
            build(Steps, env.envs),
            build(
                Replay,
                spec,
                _n_step(algorithm),
                self.size(env.envs, _n_step(algorithm).n),
                derived(seed, "replay"),
                setting.device,
            ),
            algorithm.exploration,
            rhythm,
        )
        evaluation = setting.evaluation
        own = env.resized(evaluation.episodes)
        program.add(
            "evaluator",
            Evaluator,
            partial(own.make, device=setting.device),
            build(_policy, algorithm, env, setting.device),
            trainer,
            derived(seed, "evaluate"),
            min(evaluation.longest, (spec.episode_limit or evaluation.longest) + 1),
        )
        program.schedule("evaluator", Schedule(evaluation.env_steps, evaluation.seconds))
        return program

    def playable(self, spec: EnvSpec) -> int:
        """Vector steps whose actions are kept for a resume: `renewal`, or 256 MB but at least an episode."""
        size = spec.action.size if isinstance(spec.action, Continuous) else 1
        return min(self.renewal, max(2**26 // (spec.envs * size), (spec.episode_limit or 0) + 2))

    def size(self, envs: int, n: int) -> Size:
        """Rows per env, and how many must be there before the first update."""
        length = self.capacity // envs
        if length < max(self.warmup, n) + 2:
            raise BadInput(
                f"--system.capacity is {self.capacity}; with {envs} envs it must be at least "
                f"{envs * (max(self.warmup, n) + 2)}."
            )
        return Size(length, self.warmup)


def _n_step(algorithm: AlgorithmConfig[Transition]) -> NStep:
    experience = algorithm.experience
    if not isinstance(experience, NStep):
        raise BadInput(f"{type(algorithm).__name__} wants trajectories; this system hands out transitions.")
    return experience


def _policy(algorithm: AlgorithmConfig[Transition], env: EnvConfig, device: str) -> nn.Module:
    return algorithm.policy(env.spec).to(device)
