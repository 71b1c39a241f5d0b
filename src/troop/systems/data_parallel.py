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
    """Number of workers; each steps --envs envs, or its share of them, and learns from its own experience."""
    preemption: float = bounded(0.6, above=0, high=1)
    """Share of the workers that have finished their rollout at which the others end theirs, if they have
    at least a quarter of it; 1 waits for all."""
    rollouts: OnPolicy = field(default_factory=OnPolicy)
    replays: Sync = field(default_factory=Sync)
    """Updates and replay of each worker, for algorithms that learn from transitions."""
    devices: str = ""
    """Device of each worker, such as worker0=cuda:0,worker1=cuda:1; by default --device."""
    divide_among_workers: bool = False
    """--envs, the batch size and the replay capacity are totals, of which each worker has an equal share;
    otherwise each worker has all of them."""

    def program(self, algorithm: AlgorithmConfig[Any], env: EnvConfig, settings: RunSettings) -> Program:
        """Workers meet in a group; the evaluator pulls the policy of the first."""
        program = Program("data-parallel")
        if statistics := getattr(algorithm, "local_statistics", ""):
            raise BadInput(
                f"{type(algorithm).__name__} keeps {statistics} of its own batches, so that data-parallel "
                "workers would not stay equal; use TD3, SAC, DQN or PPO."
            )
        env = self._worker_env(env)
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
        return self._worker_replay().add_trainer(
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

    def _worker_env(self, env: EnvConfig) -> EnvConfig:
        """Return the envs of one worker."""
        return env.with_envs(self._share("--envs", env.envs)) if self.divide_among_workers else env

    def _worker_replay(self) -> Sync:
        """Return the updates and the replay of one worker.

        The number of updates must not depend on the time that a worker has.
        """
        schedule = dataclasses.replace(self.replays.schedule, max_updates_per_step=0.0)
        capacity = self.replays.replay_capacity
        if self.divide_among_workers:
            batch_size = self._share("--system.replays.schedule.batch-size", schedule.batch_size)
            schedule = dataclasses.replace(schedule, batch_size=batch_size)
            capacity = max(1, capacity // self.workers)  # replays round down to whole rows per env anyway
        return dataclasses.replace(self.replays, schedule=schedule, replay_capacity=capacity)

    def _share(self, flag: str, total: int) -> int:
        """Return the share of one worker; BadInput if the total does not divide."""
        share, rest = divmod(total, self.workers)
        if rest:
            fitting = " or ".join(str(each * self.workers) for each in (share, share + 1) if each)
            raise BadInput(
                f"{flag} is {total}, which {self.workers} workers cannot share equally; use {fitting}, or "
                "another number of workers."
            )
        return share
