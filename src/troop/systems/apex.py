"""Ape-X: Horgan et al. 2018, "Distributed Prioritized Experience Replay".

Many actors, each exploring in its own measure, fill one prioritized replay from which one learner learns.
docs/systems/apex.md has the picture, and what differs from the paper.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from troop.core.algorithm import AlgorithmConfig
from troop.core.batch import NStep, Transition
from troop.core.config import bounded
from troop.core.env import EnvConfig
from troop.core.errors import BadInput
from troop.core.program import Program, build, derive_seed
from troop.replay.limiter import Limiter
from troop.replay.prioritized import PriorityConfig
from troop.replay.sharded import Shard, ShardedReplay
from troop.replay.uniform import ReplaySize, UniformReplay
from troop.roles.actor import Actor
from troop.roles.learner import Learner, LearnerConfig
from troop.roles.weights import Weights
from troop.systems.components import (
    ActorConfig,
    add_evaluator,
    exploration_rates,
    make_sampler,
    n_step,
    seeded_learner,
    stream_length,
)
from troop.systems.devices import parse_devices
from troop.systems.settings import RunSettings
from troop.systems.sync import store


@dataclass(frozen=True)
class Apex:
    """Actors x n, prioritized replay, weights, learner, evaluator: each on a host of its own."""

    actors: int = bounded(4, low=1, high=10_000)
    """Each has as many envs as the env config says."""
    overlap: bool = True
    """Actors with an even number of envs step them in two halves, choosing for one while the other simulates:
    worth it where simulating takes longer than choosing."""
    chunk_length: int = bounded(25, low=1)
    """Vector steps that an actor sends in one piece."""
    weight_sync_steps: int = bounded(400, low=1)
    """Env steps of an actor between two looks for newer weights."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay_capacity: int = bounded(1_000_000, low=1)
    """Rows of replay over all envs of all actors; the oldest give way."""
    learning_starts: int = bounded(50_000, low=1)
    """Rows over all envs before the first update."""
    samples_per_insert: float = bounded(0.0, low=0)
    """Rows learned from for each row that comes; 0 lets actors and learner run free, as in the paper."""
    tolerance: int = bounded(0, low=0)
    """Rows by which the ratio may be missed, at least half a batch; 0 for two batches."""
    priority: PriorityConfig = field(
        default_factory=lambda: PriorityConfig(alpha=0.6, beta=0.4, beta_end=0.4)
    )
    initial_priority: Literal["td_error", "max"] = "td_error"
    """Priority of new rows: the actor's own |TD error| where its policy tells values, or the largest yet."""
    epsilon_base: float = bounded(0.4, above=0, below=1)
    epsilon_alpha: float = bounded(7.0, low=0)
    """Row i of all N explores with epsilon^(1 + alpha i / (N - 1)), for good."""
    replay_shards: int = bounded(1, low=1, high=1024)
    """Replays, each on a host of its own, among which actors are dealt out."""
    devices: str = ""
    """Where roles compute, as learner=cuda:1,actor=cuda:0 or actor0=cuda:0. Who is not named: the learner on
    --device, actors on the CPU."""
    replay_dir: str = ""
    """Keep the replay in files of this folder instead of in memory."""
    save_replay: bool = True
    """Put the replay into checkpoints; without it a resumed run fills it anew."""
    recreate_every: int = bounded(0, low=0)
    """Vector steps after which envs are made anew, so that a resume can play them back; 0: never, and a
    resumed run starts new episodes. Actors step two halves of their envs in turn only with 0."""

    def program(
        self, algorithm: AlgorithmConfig[Transition], env: EnvConfig, setting: RunSettings
    ) -> Program:
        """Actors and the learner hold the replays and the weights; nobody holds an actor."""
        program, seed = Program("apex"), setting.seed
        experience, device = self.validate(algorithm), self.parse_devices(setting)
        replays = [
            program.add(f"replay{s or ''}", Shard, *self.replay(env, experience, setting, s))
            for s in range(self.replay_shards)
        ]
        weights = program.add("weights", Weights)
        program.add(
            "learner",
            Learner,
            build(seeded_learner, algorithm.algorithm, env.spec, seed, device["learner"]),
            replays[0]
            if self.replay_shards == 1
            else build(ShardedReplay, replays, self.learner.prefetch, seed),
            weights,
            self.learner,
            device["learner"],
        )
        explore = exploration_rates(
            algorithm.exploration, self.actors * env.envs, self.epsilon_base, self.epsilon_alpha
        )
        for i in range(self.actors):
            plan = ActorConfig(
                derive_seed(seed, f"actor {i}"),
                i // self.replay_shards * env.envs,
                self.chunk_length,
                tuple(explore[i :: self.actors]),  # each actor has rungs from top to bottom
                self.actor_priorities(experience),
                self.recreate_every,
                double_buffered=self.overlap and not setting.deterministic,
                device=device[f"actor{i}"],
            )
            shard = replays[i % self.replay_shards]
            program.add(
                f"actor{i}",
                Actor,
                build(make_sampler, algorithm, env, plan),
                shard,
                weights,
                self.weight_sync_steps,
            )
        add_evaluator(program, algorithm, env, weights, setting)
        return program

    def validate(self, algorithm: AlgorithmConfig[Transition]) -> NStep:
        """The windows to be drawn; BadInput if these settings cannot work together."""
        if self.replay_shards > self.actors:
            raise BadInput(
                f"--system.replay-shards is {self.replay_shards}; it must be at most the {self.actors} actors."
            )
        if 0 < self.tolerance < (least := (self.learner.batch_size + 1) // 2):
            raise BadInput(
                f"--system.tolerance is {self.tolerance}; it must be 0 or at least {least}, half a batch."
            )
        if self.learning_starts >= self.replay_capacity:
            raise BadInput(
                f"--system.learning-starts is {self.learning_starts}; it must be below the capacity, {self.replay_capacity}."
            )
        return n_step(algorithm)

    def parse_devices(self, setting: RunSettings) -> dict[str, str]:
        """The device of the learner and of each actor."""
        usual = {"learner": setting.device} | {f"actor{i}": "cpu" for i in range(self.actors)}
        return parse_devices(self.devices, usual)

    def actor_priorities(self, experience: NStep) -> bool:
        """Whether actors give rows their priorities: not where the replay scales rewards, unknown to them."""
        return (
            self.initial_priority == "td_error"
            and self.priority.alpha > 0
            and experience.scale_rewards_to is None
        )

    def replay(
        self, env: EnvConfig, experience: NStep, setting: RunSettings, shard: int
    ) -> tuple[UniformReplay, Limiter, bool, str]:
        """What shard number `shard` is built from: its store, limiter, whether it is saved, its name."""
        rows = len(range(shard, self.actors, self.replay_shards)) * env.envs
        least = max(self.chunk_length + experience.n, self.learning_starts // (self.actors * env.envs)) + 1
        capacity = self.replay_capacity * rows // (self.actors * env.envs)
        size = ReplaySize(stream_length(env.spec, capacity, rows, least), 1, self.replay_dir)
        spec, seed = dataclasses.replace(env.spec, envs=rows), derive_seed(setting.seed, f"shard {shard}")
        tolerance = (self.tolerance or 2 * self.learner.batch_size) / self.replay_shards
        warmup = max(1, self.learning_starts // self.replay_shards)
        return (
            build(store, spec, experience, size, self.priority, seed, "cpu"),
            build(Limiter, self.samples_per_insert, warmup, tolerance),
            self.save_replay,
            f"replay{shard or ''}",
        )
