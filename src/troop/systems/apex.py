"""Ape-X: Horgan et al. 2018, "Distributed Prioritized Experience Replay".

Many actors, each with its own constant exploration, fill one prioritized replay, from which one learner
samples. docs/explanation/systems/ape-x.md has a diagram and the differences from the paper.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from troop.core.algorithm import AlgorithmConfig
from troop.core.batch import NStep, SequenceSpec, Trajectory, Transition
from troop.core.config import bounded
from troop.core.env import EnvConfig
from troop.core.errors import BadInput
from troop.core.exploration import EpsilonLadder
from troop.core.program import Program, build, derive_seed
from troop.core.system import RunSettings
from troop.replay.limiter import Limiter
from troop.replay.prioritized import PriorityConfig
from troop.replay.sequences import SequenceReplay, SequenceReplaySize
from troop.replay.sharded import Shard, ShardedReplay
from troop.replay.uniform import ReplaySize, UniformReplay
from troop.roles.actor import Actor
from troop.roles.learner import Learner, LearnerConfig
from troop.roles.weights import Weights
from troop.systems.components import (
    ActorConfig,
    MakeLearner,
    add_evaluator,
    auto_compile,
    make_replay,
    make_sampler,
    make_sequence_replay,
    replay_experience,
    rows_per_env,
    seeded_learner,
)
from troop.systems.devices import parse_devices


@dataclass(frozen=True)
class Apex:
    """Actors, prioritized replay, weights, learner and evaluator, each on its own host."""

    actors: int = bounded(4, low=1, high=10_000)
    """Number of actors; each steps --envs envs."""
    overlap: bool = True
    """Actors with an even number of envs step them in two halves, acting for one half while the other
    simulates; useful if simulating takes longer than acting."""
    chunk_length: int = bounded(25, low=1)
    """Vector steps per message of an actor to the replay."""
    weight_sync_steps: int = bounded(400, low=1)
    """Env steps of an actor between two requests for new weights."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay_capacity: int = bounded(1_000_000, low=1)
    """Rows of the replay, over all envs of all actors; the oldest are overwritten. For algorithms that learn
    from sequences, a row of a replay or of a batch is one sequence."""
    learning_starts: int = bounded(50_000, low=1)
    """Rows in the replay, over all envs, before the first update."""
    samples_per_insert: float = bounded(0.0, low=0)
    """Rows sampled per row inserted; 0: neither actors nor learner wait, as in the paper."""
    tolerance: int = bounded(0, low=0)
    """Rows by which samples_per_insert may be missed before one side waits, at least half a batch; 0: two
    batches."""
    priority: PriorityConfig = field(
        default_factory=lambda: PriorityConfig(alpha=0.6, beta=0.4, beta_end=0.4)
    )
    initial_priority: Literal["td_error", "max"] = "td_error"
    """Priority of new rows: |TD error| computed by the actor, if its policy outputs values, or the largest
    priority so far."""
    epsilon_base: float = bounded(0.4, above=0, below=1)
    """epsilon in epsilon^(1 + alpha i / (N - 1)), the constant exploration of env i of all N."""
    epsilon_alpha: float = bounded(7.0, low=0)
    """alpha in the same formula; larger values lower the exploration of most envs."""
    replay_shards: int = bounded(1, low=1, high=1024)
    """Number of replay shards, each on its own host; actors are assigned to them in turn."""
    devices: str = ""
    """Device of each role, such as learner=cuda:1,actor=cuda:0 or actor0=cuda:0. By default the learner uses
    --device and actors use the CPU."""
    replay_dir: str = ""
    """Directory of files that hold the replay instead of memory."""
    save_replay: bool = True
    """Include the replay in checkpoints; without it a resumed run starts with an empty replay."""
    recreate_every: int = bounded(0, low=0)
    """Vector steps after which the envs are recreated, so that a resumed run can restore them by repeating
    their actions; 0: never, and a resumed run starts new episodes. If not 0, overlap has no effect."""

    def program(
        self,
        algorithm: AlgorithmConfig[Transition] | AlgorithmConfig[Trajectory],
        env: EnvConfig,
        settings: RunSettings,
    ) -> Program:
        """Actors and learner call the replays and the weights; no role calls an actor or the learner."""
        program, seed = Program("apex"), settings.seed
        self.validate()
        experience = replay_experience(algorithm, env.spec, program.name)
        devices = self.role_devices(settings)
        replays = [
            program.add(f"replay{i or ''}", Shard, *self.shard_args(env, experience, seed, i))
            for i in range(self.replay_shards)
        ]
        weights = program.add("weights", Weights)
        make: MakeLearner[Any] = algorithm.algorithm
        program.add(
            "learner",
            Learner,
            build(seeded_learner, make, env.spec, seed, devices["learner"]),
            replays[0]
            if self.replay_shards == 1
            else build(ShardedReplay, replays, self.learner.prefetch, seed, experience.scale_rewards_to),
            weights,
            self.learner,
            devices["learner"],
            compilation=auto_compile(algorithm, env, settings, devices["learner"]),
        )
        ladder = EpsilonLadder(self.epsilon_base, self.epsilon_alpha)
        exploration = algorithm.exploration.per_env(self.actors * env.envs, ladder)
        for i in range(self.actors):
            config = ActorConfig(
                derive_seed(seed, f"actor {i}"),
                i // self.replay_shards * env.envs,
                self.chunk_length,
                exploration[i :: self.actors],  # every actor has both low and high values
                self.actor_priorities(experience),
                self.recreate_every,
                double_buffered=self.overlap and not settings.deterministic,
                device=devices[f"actor{i}"],
            )
            sampler, replay = build(make_sampler, algorithm, env, config), replays[i % self.replay_shards]
            program.add(f"actor{i}", Actor, sampler, replay, weights, self.weight_sync_steps)
        add_evaluator(program, algorithm, env, weights, settings)
        return program

    def validate(self) -> None:
        """Raise BadInput if the settings contradict each other."""
        if self.replay_shards > self.actors:
            raise BadInput(
                f"--system.replay-shards is {self.replay_shards}; it must be at most --system.actors, "
                f"{self.actors}."
            )
        if 0 < self.tolerance < (minimum := (self.learner.batch_size + 1) // 2):
            raise BadInput(
                f"--system.tolerance is {self.tolerance}; it must be 0 or at least {minimum}, half a batch."
            )
        if self.learning_starts >= self.replay_capacity:
            raise BadInput(
                f"--system.learning-starts is {self.learning_starts}; it must be below "
                f"--system.replay-capacity, {self.replay_capacity}."
            )

    def role_devices(self, settings: RunSettings) -> dict[str, str]:
        """Return the device of the learner and of each actor."""
        defaults = {"learner": settings.device} | {f"actor{i}": "cpu" for i in range(self.actors)}
        return parse_devices(self.devices, defaults)

    def actor_priorities(self, experience: NStep | SequenceSpec) -> bool:
        """Whether actors compute initial priorities: not if the replay scales rewards by unknown factors."""
        return (
            self.initial_priority == "td_error"
            and self.priority.alpha > 0
            and experience.scale_rewards_to is None
        )

    def shard_args(
        self, env: EnvConfig, experience: NStep | SequenceSpec, seed: int, shard: int
    ) -> tuple[UniformReplay | SequenceReplay, Limiter, bool, str]:
        """Return the arguments of replay shard number `shard`: buffer, limiter, whether it is saved, name."""
        tolerance = (self.tolerance or 2 * self.learner.batch_size) / self.replay_shards
        learning_starts = max(1, self.learning_starts // self.replay_shards)
        seed = derive_seed(seed, f"shard {shard}")
        return (
            self._replay(env, experience, seed, shard),
            build(Limiter, self.samples_per_insert, learning_starts, tolerance),
            self.save_replay,
            f"replay{shard or ''}",
        )

    def _replay(
        self, env: EnvConfig, experience: NStep | SequenceSpec, seed: int, shard: int
    ) -> UniformReplay | SequenceReplay:
        """Return the buffer of shard number `shard`, not built yet: of rows, or of sequences."""
        if isinstance(experience, SequenceSpec):
            capacity = max(1, self.replay_capacity // self.replay_shards)
            size = SequenceReplaySize(capacity, 1, self.replay_dir)
            return build(make_sequence_replay, env.spec, experience, size, self.priority, seed, "cpu")
        all_envs = self.actors * env.envs
        shard_envs = len(range(shard, self.actors, self.replay_shards)) * env.envs
        minimum = max(self.chunk_length + experience.n, self.learning_starts // all_envs) + 1
        rows = ReplaySize(rows_per_env(env.spec, self.replay_capacity, all_envs, minimum), 1, self.replay_dir)
        spec = dataclasses.replace(env.spec, envs=shard_envs)
        return build(make_replay, spec, experience, rows, self.priority, seed, "cpu")
