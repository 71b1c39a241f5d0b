"""SEED: Espeholt et al. 2019, "SEED RL". Runners step envs; servers on the learner's side choose all actions.

With dynamic batching this is also the shape of TorchBeast's PolyBeast. docs/explanation/systems/seed.md has a
diagram and the differences from the paper.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from troop.core.algorithm import AlgorithmConfig
from troop.core.batch import NStep, SequenceSpec, Trajectory, TrajectorySpec, Transition
from troop.core.config import bounded
from troop.core.env import EnvConfig
from troop.core.errors import BadInput
from troop.core.exploration import Exploration, PerEnv
from troop.core.program import Program, build, derive_seed
from troop.core.remote import BatchLimits
from troop.core.system import RunSettings
from troop.replay.limiter import Limiter, RateLimited
from troop.replay.recorders.env_rows import EnvRowRecorder
from troop.replay.recorders.sequences import SequenceRecorder
from troop.replay.recorders.unrolls import UnrollRecorder
from troop.replay.sequences import SequenceReplay, SequenceReplaySize, ServedReplay
from troop.replay.trajectory_queue import TrajectoryQueue
from troop.replay.uniform import ReplaySize, UniformReplay
from troop.roles.env_runner import EnvRunner
from troop.roles.inference_server import InferenceServer
from troop.roles.learner import Learner, LearnerConfig
from troop.roles.weights import Weights
from troop.systems.components import (
    MakeLearner,
    add_evaluator,
    auto_compile,
    initial_sequence_priority,
    make_policy,
    make_replay,
    make_sequence_replay,
    part_of,
    replay_experience,
    rows_per_env,
    seeded_learner,
)
from troop.systems.devices import parse_devices
from troop.systems.on_policy import trajectory_experience

CHUNK_LENGTH = 8  # rows of an env that are sent to a replay of rows at once


@dataclass(frozen=True)
class SEED:
    """Runners, inference servers, queue or replay, weights, learner and evaluator, each on its own host."""

    runners: int = bounded(2, low=1, high=10_000)
    """Number of runners; each steps --envs envs and holds no network."""
    servers: int = bounded(1, low=1, high=1024)
    """Number of inference servers; runners are divided among them."""
    batch_size: int = bounded(32, low=1)
    """Env streams, sequences or transitions per update; with streams or sequences it learns from batch_size x
    length steps."""
    queue_size: int = bounded(1, low=1)
    """Batches that may wait for the learner; a full queue makes the runners wait."""
    queue_mb: float = bounded(4096.0, above=0)
    """Megabytes of trajectories that may wait for the learner."""
    prefetch: int = bounded(1, low=1, high=100)
    """Batches that the learner requests ahead."""
    inference_batch: int = bounded(1024, low=1)
    """Maximum number of rows that a server acts for in one call of the policy; envs that step together, half
    of those of a runner, are not divided."""
    inference_deadline_us: float = bounded(0.0, low=0)
    """Microseconds that rows wait for a batch of inference_batch rows, or of all envs of the server; with 0 a
    server acts for the rows that wait when it is free."""
    publish_every: int = bounded(1, low=1)
    """Updates between two publications of the weights."""
    replay: ServedReplay = field(default_factory=ServedReplay)
    devices: str = ""
    """Device of the learner and of each server, such as learner=cuda:0,inference=cuda:1; by default the
    learner uses --device and servers use the CPU."""

    def program(
        self,
        algorithm: AlgorithmConfig[Trajectory] | AlgorithmConfig[Transition],
        env: EnvConfig,
        settings: RunSettings,
    ) -> Program:
        """Runners call their server; servers and learner call the queue or the replay, and the weights."""
        program, seed = Program("seed"), settings.seed
        if self.runners % self.servers:
            raise BadInput(
                f"--system.runners is {self.runners}, which --system.servers {self.servers} does not divide."
            )
        names = ["inference", *(f"inference{i}" for i in range(1, self.servers))]
        defaults = {"learner": settings.device} | dict.fromkeys(names, "cpu")
        devices = parse_devices(self.devices, defaults)
        store = self._add_store(program, algorithm, env, settings)
        weights = program.add("weights", Weights)
        make: MakeLearner[Any] = algorithm.algorithm
        program.add(
            "learner",
            Learner,
            build(seeded_learner, make, env.spec, seed, devices["learner"]),
            store,
            weights,
            LearnerConfig(self.batch_size, self.prefetch, self.publish_every),
            devices["learner"],
            compilation=auto_compile(algorithm, env, settings, devices["learner"]),
        )
        envs = self.runners // self.servers * env.envs  # of one server
        for number, name in enumerate(names):
            server = program.add(
                name,
                InferenceServer,
                env.spec,
                build(make_policy, algorithm, env.spec, devices[name]),
                build(make_env_recorder, algorithm, envs, number * envs, self.replay.priority.alpha > 0),
                self._exploration(algorithm, env, number),
                store,
                weights,
                name,
                BatchLimits(min(self.inference_batch, envs), self.inference_deadline_us / 1e6),
            )
            self._add_runners(program, server, number, env, settings)
        add_evaluator(program, algorithm, env, weights, settings)
        return program

    def _add_store(
        self, program: Program, algorithm: AlgorithmConfig[Any], env: EnvConfig, settings: RunSettings
    ) -> TrajectoryQueue | RateLimited:
        """Add the queue of trajectories, or the replay of algorithms that learn from sampled batches."""
        if isinstance(algorithm.experience, TrajectorySpec):
            trajectory_experience(algorithm, program.name, self.batch_size)
            streams, max_bytes = self.queue_size * self.batch_size, int(self.queue_mb * 2**20)
            return program.add("queue", TrajectoryQueue, streams, max_bytes, self.batch_size)
        experience, replay = replay_experience(algorithm, env.spec, "seed"), self.replay
        buffer: SequenceReplay | UniformReplay
        if isinstance(experience, SequenceSpec):
            size = SequenceReplaySize(replay.capacity)
            buffer = build(
                make_sequence_replay, env.spec, experience, size, replay.priority, settings.seed, "cpu"
            )
        else:
            envs, flag = self.runners * env.envs, "--system.replay.capacity"
            minimum = max(CHUNK_LENGTH + experience.n, replay.learning_starts // envs) + 1
            rows = ReplaySize(rows_per_env(env.spec, replay.capacity, envs, minimum, flag), 1)
            spec = dataclasses.replace(env.spec, envs=envs)
            buffer = build(make_replay, spec, experience, rows, replay.priority, settings.seed, "cpu")
        limiter = build(Limiter, replay.samples_per_insert, replay.learning_starts, 2.0 * self.batch_size)
        return program.add("replay", RateLimited, buffer, limiter, replay.save)

    def _exploration(self, algorithm: AlgorithmConfig[Any], env: EnvConfig, server: int) -> Exploration:
        """Return the schedule of the algorithm or, for sequences, a constant for each env, as Ape-X."""
        if not isinstance(algorithm.experience, SequenceSpec):
            return algorithm.exploration.share(self.servers)
        return PerEnv(algorithm.exploration.per_env(self.runners * env.envs)[server :: self.servers])

    def _add_runners(
        self, program: Program, server: InferenceServer, number: int, env: EnvConfig, settings: RunSettings
    ) -> None:
        """Add the runners of one server, whose envs it knows by numbers from 0."""
        per_server = self.runners // self.servers
        groups = 2 if env.envs % 2 == 0 and not settings.deterministic else 1
        group_env = part_of(env, groups)
        for place in range(per_server):
            runner = number * per_server + place
            program.add(
                f"runner{runner}",
                EnvRunner,
                f"runner{runner}",
                group_env,
                groups,
                derive_seed(settings.seed, f"runner {runner}"),
                server,
                place * env.envs,
            )


def make_env_recorder(
    algorithm: AlgorithmConfig[Any], envs: int, first_stream: int = 0, priorities: bool = False
) -> UnrollRecorder | SequenceRecorder | EnvRowRecorder:
    """Return the recorder of a server's envs for what the algorithm learns from."""
    experience = algorithm.experience
    if isinstance(experience, NStep):
        return EnvRowRecorder(envs, CHUNK_LENGTH, first_stream)
    if isinstance(experience, SequenceSpec):
        return SequenceRecorder(
            envs, experience, initial_sequence_priority(algorithm) if priorities else None
        )
    return UnrollRecorder(envs, experience)
