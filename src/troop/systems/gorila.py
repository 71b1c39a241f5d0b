"""Gorila: Nair et al. 2015, "Massively Parallel Methods for Deep Reinforcement Learning".

Bundles of actor, local replay and learner send gradients to parameter servers; no bundle waits for another.
docs/explanation/systems/gorila.md has a diagram and the differences from the paper.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from troop.core.algorithm import Algorithm, AlgorithmConfig
from troop.core.batch import NStep, Transition
from troop.core.config import bounded
from troop.core.env import EnvConfig
from troop.core.errors import BadInput
from troop.core.exploration import Exploration
from troop.core.program import Program, build, derive_seed
from troop.core.system import RunSettings
from troop.replay.limiter import Limiter, RateLimited
from troop.replay.prioritized import PriorityConfig
from troop.replay.uniform import ReplaySize
from troop.roles.actor import Actor
from troop.roles.global_updates import GlobalUpdates
from troop.roles.learner import Learner, LearnerConfig
from troop.roles.parameter_server import AdaGradConfig, ParameterServer
from troop.roles.server_peers import OutlierConfig, ServerPeers
from troop.roles.update_schedule import UpdateSchedule
from troop.roles.weights import Weights
from troop.systems.components import (
    ActorConfig,
    add_evaluator,
    make_replay,
    make_sampler,
    n_step_experience,
    rows_per_env,
    seeded_learner,
)
from troop.systems.devices import parse_devices
from troop.systems.sync import Sync


@dataclass(frozen=True)
class Gorila:
    """Parameter servers and bundles. A bundle is a Sync trainer: its settings are those of one bundle."""

    schedule: UpdateSchedule = field(default_factory=UpdateSchedule)
    replay_capacity: int = bounded(1_000_000, low=1)
    """Rows of the replay of one bundle, over all its envs; the oldest are overwritten."""
    learning_starts: int = bounded(10, low=1)
    """Rows per env before the first update."""
    priority: PriorityConfig = field(default_factory=PriorityConfig)
    replay_dir: str = ""
    """Directory of files that hold the replays instead of memory: slower, but larger than memory."""
    save_replay: bool = True
    """Include the replays in checkpoints; without it a resumed run starts with empty replays."""
    recreate_every: int = bounded(5_000, low=0)
    """Vector steps after which the envs are recreated, so that a resumed run can restore them by repeating
    their actions; 0: never, and a resumed run starts new episodes."""
    bundles: int = bounded(2, low=1, high=10_000)
    """Number of bundles; each steps --envs envs."""
    servers: int = bounded(1, low=1, high=1024)
    """Number of parameter servers, each with a range of the parameters."""
    adagrad: AdaGradConfig = field(default_factory=AdaGradConfig)
    outliers: OutlierConfig = field(default_factory=OutlierConfig)
    devices: str = ""
    """Device of each bundle, such as bundle0=cuda:0,bundle1=cuda:1; with a shared replay, of each learner and
    actor. By default bundles and learners use --device and actors use the CPU."""
    shared_replay: bool = False
    """Use one replay for all in place of bundles: --system.bundles actors and as many learners, each on its
    own host."""
    weight_sync_steps: int = bounded(100, low=1)
    """Env steps of an actor between two requests for new weights; only with a shared replay."""
    chunk_length: int = bounded(10, low=1)
    """Vector steps per message of an actor to the replay; only with a shared replay."""

    def program(
        self, algorithm: AlgorithmConfig[Transition], env: EnvConfig, settings: RunSettings
    ) -> Program:
        """Bundles call the servers; the evaluator pulls the policy of the first bundle."""
        program = Program("gorila")
        experience = n_step_experience(algorithm, env.spec, program.name)
        devices = self.role_devices(settings)
        adagrad = self.adagrad_config()
        servers = [
            program.add(name, ParameterServer, adagrad, name)
            for name in (f"server{i or ''}" for i in range(self.servers))
        ]
        peers = build(ServerPeers, servers, self.outliers)
        role = "learner" if self.shared_replay else "bundle"
        learners = [
            build(
                seeded_learner,
                algorithm.algorithm,
                env.spec,
                settings.seed,
                devices[f"{role}{i}"],
                peers,
            )
            for i in range(self.bundles)
        ]
        exploration = build(
            worker_exploration, algorithm.exploration, self.bundles, build(GlobalUpdates, servers[0])
        )
        if self.shared_replay:
            self.add_shared_replay(
                program, algorithm, experience, env, settings, learners, exploration, devices
            )
            return program
        trainers = []
        for i, learner in enumerate(learners):
            bundle = dataclasses.replace(
                settings, seed=derive_seed(settings.seed, f"bundle {i}"), device=devices[f"bundle{i}"]
            )
            trainers.append(
                self.bundle_config().add_trainer(
                    program, f"bundle{i}", algorithm, env, bundle, learner, exploration, f"replay{i}", peers
                )
            )
        add_evaluator(program, algorithm, env, trainers[0], settings)
        return program

    def bundle_config(self) -> Sync:
        """Return the settings of one bundle."""
        return Sync(
            self.schedule,
            self.replay_capacity,
            self.learning_starts,
            self.priority,
            self.replay_dir,
            self.save_replay,
            self.recreate_every,
        )

    def adagrad_config(self) -> AdaGradConfig:
        """Return `adagrad` with a bound of staleness; the paper has one without saying which."""
        if self.adagrad.max_staleness is not None:
            return self.adagrad
        return dataclasses.replace(self.adagrad, max_staleness=20 * self.bundles)  # 20 rounds of all learners

    def role_devices(self, settings: RunSettings) -> dict[str, str]:
        """Return the device of each bundle or, with a shared replay, of each learner and actor."""
        if not self.shared_replay:
            return parse_devices(self.devices, {f"bundle{i}": settings.device for i in range(self.bundles)})
        defaults = {f"learner{i}": settings.device for i in range(self.bundles)}
        return parse_devices(self.devices, defaults | {f"actor{i}": "cpu" for i in range(self.bundles)})

    def add_shared_replay(
        self,
        program: Program,
        algorithm: AlgorithmConfig[Transition],
        experience: NStep,
        env: EnvConfig,
        settings: RunSettings,
        learners: list[Algorithm[Transition]],
        exploration: Exploration,
        devices: dict[str, str],
    ) -> None:
        """Add one replay, learners, and actors that pull the first learner's policy, each on its own host."""
        if not self.schedule.updates_per_step:
            raise BadInput(
                "--system.schedule.updates-per-step is 0; with --system.shared-replay it must be above 0."
            )
        all_envs, batch_size = self.bundles * env.envs, self.schedule.batch_size
        minimum = max(self.learning_starts, self.chunk_length + experience.n) + 1
        length = rows_per_env(env.spec, self.replay_capacity, env.envs, minimum)
        size, spec = ReplaySize(length, 1, self.replay_dir), dataclasses.replace(env.spec, envs=all_envs)
        samples_per_insert = batch_size * self.schedule.updates_per_step / env.envs  # as in a bundle
        replay = program.add(
            "replay",
            RateLimited,
            build(make_replay, spec, experience, size, self.priority, settings.seed, "cpu"),
            build(
                Limiter, samples_per_insert, self.learning_starts * all_envs, 2.0 * batch_size * self.bundles
            ),
            self.save_replay,
        )
        weights = program.add("weights", Weights)
        config = LearnerConfig(batch_size, prefetch=2, publish_every=10)
        for i, learner in enumerate(learners):
            sink = weights if i == 0 else None
            program.add(f"learner{i}", Learner, learner, replay, sink, config, devices[f"learner{i}"])
        for i in range(self.bundles):
            actor = build(
                ActorConfig,
                derive_seed(settings.seed, f"actor {i}"),
                i * env.envs,
                self.chunk_length,
                exploration,
                actor_priorities=False,
                double_buffered=not settings.deterministic,
                device=devices[f"actor{i}"],
            )
            sampler = build(make_sampler, algorithm, env, actor)
            program.add(f"actor{i}", Actor, sampler, replay, weights, self.weight_sync_steps)
        add_evaluator(program, algorithm, env, weights, settings)


def worker_exploration(schedule: Exploration, workers: int, updates: GlobalUpdates) -> Exploration:
    """Return the exploration of one of `workers` workers: epsilon is annealed over the updates of all."""
    return schedule.over_updates(updates).share(workers)
