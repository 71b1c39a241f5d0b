"""Sync: one place, in turn: collect, store, update. FastTD3, TD3, DDPG as their authors run them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial

from torch import nn

from troop.core.algorithm import Algorithm, AlgorithmConfig
from troop.core.batch import NStep, Transition
from troop.core.config import ranged
from troop.core.env import Continuous, EnvConfig, EnvSpec
from troop.core.errors import BadInput
from troop.core.exploration import Exploration
from troop.core.program import Program, Schedule, build, derived
from troop.replay.prioritized import PrioritizedReplay, Priority
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
    priority: Priority = field(default_factory=Priority)
    folder: str = ""
    """Keep the replay in files of this folder instead of in memory: slower, but it may be larger."""
    save_replay: bool = True
    """Put the replay into checkpoints; without it a resumed run fills it anew."""
    renewal: int = ranged(5_000, low=0)
    """Vector steps after which envs are made anew, so that a resume can play them back exactly; 0: never.
    Choose more than an episode has, or its end is not seen in training."""

    def program(self, algorithm: AlgorithmConfig[Transition], env: EnvConfig, setting: Setting) -> Program:
        """The evaluator holds the trainer."""
        program, spec, device = Program("sync"), env.spec, setting.device
        learner = build(algorithm.algorithm, spec, device=device)
        trainer = self.add_trainer(
            program, "trainer", algorithm, env, setting, learner, algorithm.exploration
        )
        evaluation = setting.evaluation
        own = env.judged().resized(evaluation.episodes)
        program.add(
            "evaluator",
            Evaluator,
            partial(own.make, device=device),
            build(_policy, algorithm, env, device),
            trainer,
            derived(setting.seed, "evaluate"),
            min(evaluation.longest, (spec.episode_limit or evaluation.longest) + 1),
        )
        program.schedule("evaluator", Schedule(evaluation.env_steps, evaluation.seconds))
        return program

    def add_trainer(
        self,
        program: Program,
        name: str,
        algorithm: AlgorithmConfig[Transition],
        env: EnvConfig,
        setting: Setting,
        learner: Algorithm[Transition],
        exploration: Exploration,
        store_name: str = "replay",
    ) -> Trainer:
        """A node that collects, stores and learns in turn; metrics call its store `store_name`."""
        spec, seed, device = env.spec, setting.seed, setting.device
        rhythm = dataclasses.replace(self.rhythm, overlap=self.rhythm.overlap and not setting.deterministic)
        experience = _n_step(algorithm)
        size = self.size(spec, experience.n)
        return program.add(
            name,
            Trainer,
            World(partial(env.make, device=device), derived(seed, "train"), self.playable(spec)),
            learner,
            build(Steps, env.envs),
            build(store, spec, experience, size, self.priority, seed, device),
            exploration,
            rhythm,
            self.save_replay,
            store_name,
        )

    def playable(self, spec: EnvSpec) -> int:
        """Vector steps whose actions are kept for a resume: `renewal`, or 256 MB but at least an episode."""
        size = spec.action.size if isinstance(spec.action, Continuous) else 1
        return min(self.renewal, max(2**26 // (spec.envs * size), (spec.episode_limit or 0) + 2))

    def size(self, spec: EnvSpec, n: int) -> Size:
        """Rows per env, and how many must be there before the first update."""
        length = self.capacity // spec.envs
        margin = max((field.stack for field in spec.obs.values()), default=1)
        if length < (least := max(self.warmup, n) + margin + 1):
            raise BadInput(
                f"--system.capacity is {self.capacity}; with {spec.envs} envs it must be at least "
                f"{spec.envs * least}."
            )
        return Size(length, self.warmup, self.folder)


def store(spec: EnvSpec, experience: NStep, size: Size, priority: Priority, seed: int, device: str) -> Replay:
    """The replay a system's settings ask for."""
    seed = derived(seed, "replay")
    if priority.alpha:
        return PrioritizedReplay(spec, experience, size, seed, device, priority)
    return Replay(spec, experience, size, seed, device)


def _n_step(algorithm: AlgorithmConfig[Transition]) -> NStep:
    experience = algorithm.experience
    if not isinstance(experience, NStep):
        raise BadInput(f"{type(algorithm).__name__} wants trajectories; this system hands out transitions.")
    return experience


def _policy(algorithm: AlgorithmConfig[Transition], env: EnvConfig, device: str) -> nn.Module:
    return algorithm.policy(env.spec).to(device)
