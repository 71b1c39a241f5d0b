"""SEED: Espeholt et al. 2019, "SEED RL". Runners step envs; servers on the learner's side choose all actions.

With dynamic batching this is also the shape of TorchBeast's PolyBeast. docs/explanation/systems/seed.md has a
diagram and the differences from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from troop.core.algorithm import AlgorithmConfig
from troop.core.batch import Trajectory
from troop.core.config import bounded
from troop.core.env import EnvConfig
from troop.core.errors import BadInput
from troop.core.program import Program, build, derive_seed
from troop.core.system import RunSettings
from troop.replay.recorders.unrolls import UnrollRecorder
from troop.replay.trajectory_queue import TrajectoryQueue
from troop.roles.env_runner import EnvRunner
from troop.roles.inference_server import InferenceServer
from troop.roles.learner import Learner, LearnerConfig
from troop.roles.weights import Weights
from troop.systems.components import add_evaluator, make_policy, part_of, seeded_learner
from troop.systems.devices import parse_devices
from troop.systems.on_policy import trajectory_experience


@dataclass(frozen=True)
class SEED:
    """Runners, inference servers, trajectory queue, weights, learner and evaluator, each on its own host."""

    runners: int = bounded(2, low=1, high=10_000)
    """Number of runners; each steps --envs envs and holds no network."""
    servers: int = bounded(1, low=1, high=1024)
    """Number of inference servers; runners are divided among them."""
    batch_size: int = bounded(32, low=1)
    """Env streams per update; an update learns from batch_size x length steps."""
    queue_size: int = bounded(1, low=1)
    """Batches that may wait for the learner; a full queue makes the runners wait."""
    queue_mb: float = bounded(4096.0, above=0)
    """Megabytes of trajectories that may wait for the learner."""
    prefetch: int = bounded(1, low=1, high=100)
    """Batches that the learner requests ahead."""
    devices: str = ""
    """Device of the learner and of each server, such as learner=cuda:0,inference=cuda:1; by default the
    learner uses --device and servers use the CPU."""

    def program(
        self, algorithm: AlgorithmConfig[Trajectory], env: EnvConfig, settings: RunSettings
    ) -> Program:
        """Runners call their server; servers and learner call the queue and the weights."""
        program, seed = Program("seed"), settings.seed
        experience = trajectory_experience(algorithm, program.name)
        if self.runners % self.servers:
            raise BadInput(
                f"--system.runners is {self.runners}, which --system.servers {self.servers} does not divide."
            )
        names = ["inference", *(f"inference{i}" for i in range(1, self.servers))]
        defaults = {"learner": settings.device} | dict.fromkeys(names, "cpu")
        devices = parse_devices(self.devices, defaults)
        queue = program.add(
            "queue",
            TrajectoryQueue,
            self.queue_size * self.batch_size,
            int(self.queue_mb * 2**20),
            self.batch_size,
        )
        weights = program.add("weights", Weights)
        program.add(
            "learner",
            Learner,
            build(seeded_learner, algorithm.algorithm, env.spec, seed, devices["learner"]),
            queue,
            weights,
            LearnerConfig(self.batch_size, self.prefetch, publish_every=1),
            devices["learner"],
        )
        for number, name in enumerate(names):
            server = program.add(
                name,
                InferenceServer,
                build(make_policy, algorithm, env.spec, devices[name]),
                build(UnrollRecorder, self.runners // self.servers * env.envs, experience),
                algorithm.exploration,
                queue,
                weights,
                name,
            )
            self._add_runners(program, server, number, env, settings)
        add_evaluator(program, algorithm, env, weights, settings)
        return program

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
                partial(group_env.make, device="cpu"),
                groups,
                group_env.envs,
                derive_seed(settings.seed, f"runner {runner}"),
                server,
                place * env.envs,
            )
