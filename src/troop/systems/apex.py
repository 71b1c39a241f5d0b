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
from troop.core.config import ranged
from troop.core.env import EnvConfig
from troop.core.errors import BadInput
from troop.core.program import Program, build, derived
from troop.replay.limiter import Limiter
from troop.replay.prioritized import Priority
from troop.replay.shards import Shard, Shards
from troop.replay.uniform import Replay, Size
from troop.roles.actor import Actor
from troop.roles.learner import Learner, Pace
from troop.roles.weights import Weights
from troop.systems.collecting import Plan, add_evaluator, alike, hands, n_step, rates, stream_length
from troop.systems.devices import placed
from troop.systems.setting import Setting
from troop.systems.sync import store


@dataclass(frozen=True)
class Apex:
    """Actors x n, prioritized replay, weights, learner, evaluator: each on a host of its own."""

    actors: int = ranged(4, low=1, high=10_000)
    """Each has as many envs as the env config says."""
    overlap: bool = True
    """Actors with an even number of envs step them in two halves, choosing for one while the other simulates:
    worth it where simulating takes longer than choosing."""
    length: int = ranged(25, low=1)
    """Vector steps that an actor sends in one piece."""
    sync: int = ranged(400, low=1)
    """Env steps of an actor between two looks for newer weights."""
    learner: Pace = field(default_factory=Pace)
    capacity: int = ranged(1_000_000, low=1)
    """Rows of replay over all envs of all actors; the oldest give way."""
    warmup: int = ranged(50_000, low=1)
    """Rows over all envs before the first update."""
    samples_per_insert: float = ranged(0.0, low=0)
    """Rows learned from for each row that comes; 0 lets actors and learner run free, as in the paper."""
    tolerance: int = ranged(0, low=0)
    """Rows by which the ratio may be missed, at least half a batch; 0 for two batches."""
    priority: Priority = field(default_factory=lambda: Priority(alpha=0.6, beta=0.4, beta_end=0.4))
    initial: Literal["surprise", "largest"] = "surprise"
    """Priority of new rows: the actor's own |TD error| where its policy tells values, or the largest yet."""
    epsilon: float = ranged(0.4, above=0, below=1)
    alpha: float = ranged(7.0, low=0)
    """Row i of all N explores with epsilon^(1 + alpha i / (N - 1)), for good."""
    shards: int = ranged(1, low=1, high=1024)
    """Replays, each on a host of its own, among which actors are dealt out."""
    devices: str = ""
    """Where roles compute, as learner=cuda:1,actor=cuda:0 or actor0=cuda:0. Who is not named: the learner on
    --device, actors on the CPU."""
    folder: str = ""
    """Keep the replay in files of this folder instead of in memory."""
    save_replay: bool = True
    """Put the replay into checkpoints; without it a resumed run fills it anew."""
    renewal: int = ranged(0, low=0)
    """Vector steps after which envs are made anew, so that a resume can play them back; 0: never, and a
    resumed run starts new episodes. Actors step two halves of their envs in turn only with 0."""

    def program(self, algorithm: AlgorithmConfig[Transition], env: EnvConfig, setting: Setting) -> Program:
        """Actors and the learner hold the replays and the weights; nobody holds an actor."""
        program, seed = Program("apex"), setting.seed
        experience, device = self.checked(algorithm), self.placed(setting)
        replays = [
            program.add(f"replay{s or ''}", Shard, *self.replay(env, experience, setting, s))
            for s in range(self.shards)
        ]
        weights = program.add("weights", Weights)
        program.add(
            "learner",
            Learner,
            build(alike, algorithm.algorithm, env.spec, seed, device["learner"]),
            replays[0] if self.shards == 1 else build(Shards, replays, self.learner.ahead, seed),
            weights,
            self.learner,
            device["learner"],
        )
        explore = rates(algorithm.exploration, self.actors * env.envs, self.epsilon, self.alpha)
        for i in range(self.actors):
            plan = Plan(
                derived(seed, f"actor {i}"),
                i // self.shards * env.envs,
                self.length,
                tuple(explore[i :: self.actors]),  # each actor has rungs from top to bottom
                self.judged(experience),
                self.renewal,
                duet=self.overlap and not setting.deterministic,
                device=device[f"actor{i}"],
            )
            shard = replays[i % self.shards]
            program.add(f"actor{i}", Actor, build(hands, algorithm, env, plan), shard, weights, self.sync)
        add_evaluator(program, algorithm, env, weights, setting)
        return program

    def checked(self, algorithm: AlgorithmConfig[Transition]) -> NStep:
        """The windows to be drawn; BadInput if these settings cannot work together."""
        if self.shards > self.actors:
            raise BadInput(f"--system.shards is {self.shards}; it must be at most the {self.actors} actors.")
        if 0 < self.tolerance < (least := (self.learner.batch + 1) // 2):
            raise BadInput(
                f"--system.tolerance is {self.tolerance}; it must be 0 or at least {least}, half a batch."
            )
        if self.warmup >= self.capacity:
            raise BadInput(
                f"--system.warmup is {self.warmup}; it must be below the capacity, {self.capacity}."
            )
        return n_step(algorithm)

    def placed(self, setting: Setting) -> dict[str, str]:
        """The device of the learner and of each actor."""
        usual = {"learner": setting.device} | {f"actor{i}": "cpu" for i in range(self.actors)}
        return placed(self.devices, usual)

    def judged(self, experience: NStep) -> bool:
        """Whether actors give rows their priorities: not where the replay scales rewards, unknown to them."""
        return self.initial == "surprise" and self.priority.alpha > 0 and experience.scale_rewards_to is None

    def replay(
        self, env: EnvConfig, experience: NStep, setting: Setting, shard: int
    ) -> tuple[Replay, Limiter, bool, str]:
        """What shard number `shard` is built from: its store, limiter, whether it is saved, its name."""
        rows = len(range(shard, self.actors, self.shards)) * env.envs
        least = max(self.length + experience.n, self.warmup // (self.actors * env.envs)) + 1
        capacity = self.capacity * rows // (self.actors * env.envs)
        size = Size(stream_length(env.spec, capacity, rows, least), 1, self.folder)
        spec, seed = dataclasses.replace(env.spec, envs=rows), derived(setting.seed, f"shard {shard}")
        tolerance = (self.tolerance or 2 * self.learner.batch) / self.shards
        warmup = max(1, self.warmup // self.shards)
        return (
            build(store, spec, experience, size, self.priority, seed, "cpu"),
            build(Limiter, self.samples_per_insert, warmup, tolerance),
            self.save_replay,
            f"replay{shard or ''}",
        )
