"""DataParallel: Wijmans et al. 2020, "DD-PPO". Workers act and learn; their gradients are averaged.

There is no central learner, no parameter server and no importance sampling: all workers have the same weights
in every step. With TD3 this is FastTD3 on several devices. docs/explanation/systems/dd-ppo.md has a diagram
and the differences from the paper.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from troop.core.algorithm import AlgorithmConfig
from troop.core.batch import TrajectorySpec
from troop.core.config import bounded
from troop.core.env import EnvConfig
from troop.core.errors import BadInput
from troop.core.group import Group
from troop.core.program import Program, build, derive_seed
from troop.core.system import RunSettings
from troop.roles.all_reduce_peers import AllReducePeers, ReplayPeers
from troop.roles.trainer import Trainer
from troop.systems.components import Membership, add_evaluator, seeded_learner
from troop.systems.devices import parse_devices
from troop.systems.on_policy import OnPolicy
from troop.systems.sync import Sync


@dataclass(frozen=True)
class DataParallel:
    """A group of workers, each an actor and a learner, and an evaluator."""

    workers: int = bounded(2, low=1, high=1024)
    """Number of workers; each steps --envs envs and learns from its own experience."""
    preemption: float = bounded(0.6, above=0, high=1)
    """Share of the workers that have finished their rollout at which the others end theirs, if they have
    at least a quarter of it; 1 waits for all."""
    rollouts: OnPolicy = field(default_factory=OnPolicy)
    replays: Sync = field(default_factory=Sync)
    """Updates and replay of each worker, for algorithms that learn from transitions."""
    devices: str = ""
    """Device of each worker, such as worker0=cuda:0,worker1=cuda:1; by default --device."""

    def program(self, algorithm: AlgorithmConfig[Any], env: EnvConfig, settings: RunSettings) -> Program:
        """Workers meet in a group; the evaluator pulls the policy of the first."""
        program = Program("data-parallel")
        if statistics := getattr(algorithm, "local_statistics", ""):
            raise BadInput(
                f"{type(algorithm).__name__} keeps {statistics} of its own batches, so that data-parallel "
                "workers would not stay equal; use TD3, SAC, DQN or PPO."
            )
        devices = parse_devices(self.devices, {f"worker{i}": settings.device for i in range(self.workers)})
        workers = []
        for rank, group in enumerate(program.group("workers", self.workers)):
            name = f"worker{rank}"
            own = dataclasses.replace(
                settings, seed=derive_seed(settings.seed, f"worker {rank}"), device=devices[name]
            )
            peers = build(AllReducePeers, group)
            learner = build(seeded_learner, algorithm.algorithm, env.spec, settings.seed, own.device, peers)
            workers.append(self._add_worker(program, name, algorithm, env, own, learner, group))
        add_evaluator(program, algorithm, env, workers[0], settings)
        return program

    def _add_worker(
        self,
        program: Program,
        name: str,
        algorithm: AlgorithmConfig[Any],
        env: EnvConfig,
        settings: RunSettings,
        learner: Any,  # noqa: ANN401 - Algorithm[Trajectory] or Algorithm[Transition]
        group: Group,
    ) -> Trainer[Any, Any]:
        membership = Membership(group, self.preemption)
        if isinstance(algorithm.experience, TrajectorySpec):
            return self.rollouts.add_trainer(program, name, algorithm, env, settings, learner, membership)
        # The number of updates must not depend on the time that a worker has.
        schedule = dataclasses.replace(self.replays.schedule, max_updates_per_step=0.0)
        return dataclasses.replace(self.replays, schedule=schedule).add_trainer(
            program,
            name,
            algorithm,
            env,
            settings,
            learner,
            algorithm.exploration.share(self.workers),
            name.replace("worker", "replay"),
            build(ReplayPeers, group),
            membership,
        )
