"""Sync: one place, in turn: collect, store, update. FastTD3, TD3, DDPG as their authors run them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial

from torch import nn

from troop.core.algorithm import Algorithm, AlgorithmConfig
from troop.core.batch import NStep, Transition
from troop.core.config import bounded
from troop.core.env import Continuous, EnvConfig, EnvSpec
from troop.core.errors import BadInput
from troop.core.exploration import Exploration
from troop.core.program import Program, Schedule, build, derive_seed
from troop.replay.prioritized import PrioritizedReplay, PriorityConfig
from troop.replay.recorders.steps import StepRecorder
from troop.replay.uniform import ReplaySize, UniformReplay
from troop.roles.collector import EnvFactory
from troop.roles.evaluator import Evaluator
from troop.roles.trainer import Trainer, UpdateSchedule
from troop.systems.settings import RunSettings


@dataclass(frozen=True)
class Sync:
    """A Trainer alone, and its Evaluator."""

    schedule: UpdateSchedule = field(default_factory=UpdateSchedule)
    replay_capacity: int = bounded(1_000_000, low=1)
    """Rows of replay over all envs."""
    learning_starts: int = bounded(10, low=1)
    """Rows per env before the first update."""
    priority: PriorityConfig = field(default_factory=PriorityConfig)
    replay_dir: str = ""
    """Keep the replay in files of this folder instead of in memory: slower, but it may be larger."""
    save_replay: bool = True
    """Put the replay into checkpoints; without it a resumed run fills it anew."""
    recreate_every: int = bounded(5_000, low=0)
    """Vector steps after which envs are made anew, so that a resume can play them back exactly; 0: never.
    Choose more than an episode has, or its end is not seen in training."""

    def program(
        self, algorithm: AlgorithmConfig[Transition], env: EnvConfig, setting: RunSettings
    ) -> Program:
        """The evaluator holds the trainer."""
        program, spec, device = Program("sync"), env.spec, setting.device
        learner = build(algorithm.algorithm, spec, device=device)
        trainer = self.add_trainer(
            program, "trainer", algorithm, env, setting, learner, algorithm.exploration
        )
        evaluation = setting.evaluation
        own = env.for_evaluation().with_envs(evaluation.episodes)
        program.add(
            "evaluator",
            Evaluator,
            partial(own.make, device=device),
            build(_policy, algorithm, env, device),
            trainer,
            derive_seed(setting.seed, "evaluate"),
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
        setting: RunSettings,
        learner: Algorithm[Transition],
        exploration: Exploration,
        store_name: str = "replay",
    ) -> Trainer:
        """A node that collects, stores and learns in turn; metrics call its store `store_name`."""
        spec, seed, device = env.spec, setting.seed, setting.device
        schedule = dataclasses.replace(
            self.schedule, overlap=self.schedule.overlap and not setting.deterministic
        )
        experience = _n_step(algorithm)
        size = self.size(spec, experience.n)
        return program.add(
            name,
            Trainer,
            EnvFactory(
                partial(env.make, device=device), derive_seed(seed, "train"), self.recreate_interval(spec)
            ),
            learner,
            build(StepRecorder, env.envs),
            build(store, spec, experience, size, self.priority, seed, device),
            exploration,
            schedule,
            self.save_replay,
            store_name,
        )

    def recreate_interval(self, spec: EnvSpec) -> int:
        """Vector steps whose actions are kept for a resume: `recreate_every`, or 256 MB but at least an episode."""
        size = spec.action.size if isinstance(spec.action, Continuous) else 1
        return min(self.recreate_every, max(2**26 // (spec.envs * size), (spec.episode_limit or 0) + 2))

    def size(self, spec: EnvSpec, n: int) -> ReplaySize:
        """Rows per env, and how many must be there before the first update."""
        length = self.replay_capacity // spec.envs
        margin = max((field.stack for field in spec.obs.values()), default=1)
        if length < (least := max(self.learning_starts, n) + margin + 1):
            raise BadInput(
                f"--system.replay-capacity is {self.replay_capacity}; with {spec.envs} envs it must be at least "
                f"{spec.envs * least}."
            )
        return ReplaySize(length, self.learning_starts, self.replay_dir)


def store(
    spec: EnvSpec, experience: NStep, size: ReplaySize, priority: PriorityConfig, seed: int, device: str
) -> UniformReplay:
    """The replay a system's settings ask for."""
    seed = derive_seed(seed, "replay")
    if priority.alpha:
        return PrioritizedReplay(spec, experience, size, seed, device, priority)
    return UniformReplay(spec, experience, size, seed, device)


def _n_step(algorithm: AlgorithmConfig[Transition]) -> NStep:
    experience = algorithm.experience
    if not isinstance(experience, NStep):
        raise BadInput(f"{type(algorithm).__name__} wants trajectories; this system hands out transitions.")
    return experience


def _policy(algorithm: AlgorithmConfig[Transition], env: EnvConfig, device: str) -> nn.Module:
    return algorithm.policy(env.spec).to(device)
