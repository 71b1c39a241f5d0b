"""Sync: one role collects, stores and updates in turn, as the authors of FastTD3, TD3 and DQN do."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from troop.core.algorithm import Algorithm, AlgorithmConfig
from troop.core.batch import NStep, Trajectory, Transition
from troop.core.config import bounded
from troop.core.env import EnvConfig, EnvSpec
from troop.core.exploration import Exploration
from troop.core.peers import NO_PEERS, Peers
from troop.core.program import Program, build, derive_seed
from troop.core.system import RunSettings
from troop.replay.prioritized import PriorityConfig
from troop.replay.recorders.sequences import VectorSequenceRecorder
from troop.replay.recorders.steps import StepRecorder
from troop.replay.sequences import SequenceReplaySize
from troop.replay.uniform import ReplaySize
from troop.roles.collector import EnvFactory
from troop.roles.trainer import Trainer
from troop.roles.update_schedule import UpdateSchedule
from troop.systems.components import (
    MakeLearner,
    Membership,
    add_evaluator,
    add_trainer_node,
    affordable_steps,
    auto_compile,
    initial_sequence_priority,
    make_replay,
    make_sequence_replay,
    replay_experience,
    rows_per_env,
)


@dataclass(frozen=True)
class Sync:
    """A trainer and an evaluator."""

    schedule: UpdateSchedule = field(default_factory=UpdateSchedule)
    replay_capacity: int = bounded(1_000_000, low=1)
    """Rows of the replay, over all envs; the oldest are overwritten. For algorithms that learn from
    sequences, a row of a replay or of a batch is one sequence."""
    learning_starts: int = bounded(10, low=1)
    """Rows per env before the first update."""
    priority: PriorityConfig = field(default_factory=PriorityConfig)
    replay_dir: str = ""
    """Directory of files that hold the replay instead of memory: slower, but it may be larger than memory."""
    save_replay: bool = True
    """Include the replay in checkpoints; without it a resumed run starts with an empty replay."""
    recreate_every: int = bounded(5_000, low=0)
    """Vector steps after which the envs are recreated, so that a resumed run can restore them by repeating
    their actions; 0: never, and a resumed run starts new episodes. Use more steps than an episode has, or
    training never sees the end of an episode."""

    def program(
        self,
        algorithm: AlgorithmConfig[Transition] | AlgorithmConfig[Trajectory],
        env: EnvConfig,
        settings: RunSettings,
    ) -> Program:
        """The evaluator pulls the policy from the trainer."""
        program, device = Program("sync"), settings.device
        make: MakeLearner[Any] = algorithm.algorithm
        learner = build(make, env.spec, device=device)
        trainer = self.add_trainer(
            program, "trainer", algorithm, env, settings, learner, algorithm.exploration
        )
        add_evaluator(program, algorithm, env, trainer, settings, device)
        return program

    def add_trainer(
        self,
        program: Program,
        name: str,
        algorithm: AlgorithmConfig[Transition] | AlgorithmConfig[Trajectory],
        env: EnvConfig,
        settings: RunSettings,
        learner: Algorithm[Transition] | Algorithm[Trajectory],
        exploration: Exploration,
        replay_name: str = "replay",
        peers: Peers = NO_PEERS,
        membership: Membership | None = None,
    ) -> Trainer[Any, Any]:
        """Add a node that collects, stores and updates in turn; `replay_name` prefixes its replay metrics.

        Replays with `peers` share their reward scale. With a membership the node is one of a group.
        """
        spec, seed, device = env.spec, settings.seed, settings.device
        overlap = self.schedule.overlap and not settings.deterministic
        make_env = partial(env.make, device=device)
        compilation = None
        if peers is NO_PEERS:
            compilation = auto_compile(algorithm, env, settings, device)
        return add_trainer_node(
            program,
            name,
            membership,
            EnvFactory(make_env, derive_seed(seed, "train"), self.recreate_interval(spec)),
            learner,
            *self._recorder_and_replay(algorithm, env, settings, program.name, peers),
            exploration,
            dataclasses.replace(self.schedule, overlap=overlap),
            self.save_replay,
            replay_name,
            compilation,
        )

    def _recorder_and_replay(
        self,
        algorithm: AlgorithmConfig[Transition] | AlgorithmConfig[Trajectory],
        env: EnvConfig,
        settings: RunSettings,
        system: str,
        peers: Peers,
    ) -> tuple[Any, Any]:
        """Return what records and stores the experience of the algorithm: single steps, or sequences."""
        spec, seed, device = env.spec, settings.seed, settings.device
        experience = replay_experience(algorithm, spec, system)
        if isinstance(experience, NStep):
            rows = self.replay_size(spec, experience.n)
            replay = build(make_replay, spec, experience, rows, self.priority, seed, device, peers)
            return build(StepRecorder, env.envs), replay
        size = SequenceReplaySize(self.replay_capacity, self.learning_starts * env.envs, self.replay_dir)
        priority = initial_sequence_priority(algorithm) if self.priority.alpha else None
        return (
            build(VectorSequenceRecorder, env.envs, experience, 0, priority),
            build(make_sequence_replay, spec, experience, size, self.priority, seed, device, peers),
        )

    def recreate_interval(self, spec: EnvSpec) -> int:
        """Return `recreate_every`, or fewer steps if their actions exceed 256 MB, but at least an episode."""
        return min(self.recreate_every, max(affordable_steps(spec), (spec.episode_limit or 0) + 2))

    def replay_size(self, spec: EnvSpec, n: int) -> ReplaySize:
        """Return the rows per env of the replay; BadInput if they are too few to learn from."""
        minimum = max(self.learning_starts, n) + 1
        length = rows_per_env(spec, self.replay_capacity, spec.envs, minimum)
        return ReplaySize(length, self.learning_starts, self.replay_dir)
