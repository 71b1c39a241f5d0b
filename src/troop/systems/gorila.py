"""Gorila: Nair et al. 2015, "Massively Parallel Methods for Deep Reinforcement Learning".

Bundles of actor, local replay and learner whose gradients meet at parameter servers, nobody waiting for
anybody. docs/systems/gorila.md has the picture, and what differs from the paper.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from troop.core.algorithm import Algorithm, AlgorithmConfig
from troop.core.batch import Transition
from troop.core.config import bounded
from troop.core.env import EnvConfig
from troop.core.errors import BadInput
from troop.core.exploration import Exploration, LinearSchedule
from troop.core.program import Program, build, derive_seed
from troop.replay.limiter import Limiter, RateLimited
from troop.replay.uniform import ReplaySize
from troop.roles.actor import Actor
from troop.roles.learner import Learner, LearnerConfig
from troop.roles.parameter_server import AdaGradConfig, ParameterServer
from troop.roles.server_peers import OutlierConfig, ServerPeers
from troop.roles.weights import Weights
from troop.systems.components import (
    ActorConfig,
    add_evaluator,
    make_sampler,
    n_step,
    seeded_learner,
    stream_length,
)
from troop.systems.devices import parse_devices
from troop.systems.settings import RunSettings
from troop.systems.sync import Sync, store


@dataclass(frozen=True)
class Gorila(Sync):
    """Each bundle is what Sync is alone; capacity, warmup and rhythm are those of one bundle."""

    bundles: int = bounded(2, low=1, high=10_000)
    servers: int = bounded(1, low=1, high=1024)
    """Parameter servers, each with a range of the parameters."""
    adagrad: AdaGradConfig = field(default_factory=AdaGradConfig)
    outliers: OutlierConfig = field(default_factory=OutlierConfig)
    devices: str = ""
    """Where bundles compute, as bundle0=cuda:0,bundle1=cuda:1; with a shared replay learners and actors. Who
    is not named: on --device, but actors on the CPU."""
    shared_replay: bool = False
    """One replay for all in place of bundles: as many actors, as many learners, each on a host of its own."""
    weight_sync_steps: int = bounded(100, low=1)
    """Shared replay only: env steps of an actor between two looks for newer weights."""
    chunk_length: int = bounded(10, low=1)
    """Shared replay only: vector steps that an actor sends in one piece."""

    def program(
        self, algorithm: AlgorithmConfig[Transition], env: EnvConfig, setting: RunSettings
    ) -> Program:
        """Bundles hold the servers; nobody holds a bundle but the evaluator, the first one."""
        program = Program("gorila")
        n_step(algorithm)
        # Twenty rounds of all learners: the paper has a bound and does not say which.
        most = 20 * self.bundles if self.adagrad.max_staleness is None else self.adagrad.max_staleness
        rule = dataclasses.replace(self.adagrad, max_staleness=most)
        servers = [
            program.add(name, ParameterServer, rule, name)
            for name in (f"server{s or ''}" for s in range(self.servers))
        ]
        device, name = self.parse_devices(setting), "learner" if self.shared_replay else "bundle"
        learners = [
            build(
                seeded_learner,
                algorithm.algorithm,
                env.spec,
                setting.seed,
                device[f"{name}{i}"],
                build(ServerPeers, servers, self.outliers),
            )
            for i in range(self.bundles)
        ]
        if self.shared_replay:
            self._add_apart(program, algorithm, env, setting, learners, device)
            return program
        explore, trainers = self.explored(algorithm.exploration), []
        for i, learner in enumerate(learners):
            seed = derive_seed(setting.seed, f"bundle {i}")
            own = dataclasses.replace(setting, seed=seed, device=device[f"bundle{i}"])
            node = self.add_trainer(
                program, f"bundle{i}", algorithm, env, own, learner, explore, f"replay{i}"
            )
            trainers.append(node)
        add_evaluator(program, algorithm, env, trainers[0], setting)
        return program

    def parse_devices(self, setting: RunSettings) -> dict[str, str]:
        """The device of each bundle or, with a shared replay, of each learner and actor."""
        if not self.shared_replay:
            return parse_devices(self.devices, {f"bundle{i}": setting.device for i in range(self.bundles)})
        usual = {f"learner{i}": setting.device for i in range(self.bundles)}
        return parse_devices(self.devices, usual | {f"actor{i}": "cpu" for i in range(self.bundles)})

    def explored(self, exploration: Exploration) -> Exploration:
        """The same for all, annealed by the steps of all together."""
        if isinstance(exploration, LinearSchedule):
            return dataclasses.replace(exploration, env_steps=exploration.env_steps // self.bundles)
        return exploration

    def _add_apart(
        self,
        program: Program,
        algorithm: AlgorithmConfig[Transition],
        env: EnvConfig,
        setting: RunSettings,
        learners: list[Algorithm[Transition]],
        device: dict[str, str],
    ) -> None:
        """Actors and learners by themselves, around one replay; the first learner's policy is acted with."""
        rows, spec, experience = self.bundles * env.envs, env.spec, n_step(algorithm)
        least = max(self.learning_starts, self.chunk_length + experience.n) + 1
        size = ReplaySize(
            stream_length(spec, self.bundles * self.replay_capacity, rows, least), 1, self.replay_dir
        )
        ratio = (
            self.schedule.batch_size * self.schedule.updates_per_step / env.envs
        )  # what a bundle learns for each env step
        if not ratio:
            raise BadInput(
                "--system.schedule.updates-per-step is 0; with --system.shared-replay it must be at least 1."
            )
        wide = dataclasses.replace(spec, envs=rows)
        replay = program.add(
            "replay",
            RateLimited,
            build(store, wide, experience, size, self.priority, setting.seed, "cpu"),
            build(Limiter, ratio, self.learning_starts * rows, 2.0 * self.schedule.batch_size * self.bundles),
            self.save_replay,
        )
        weights = program.add("weights", Weights)
        pace = LearnerConfig(self.schedule.batch_size, prefetch=2, publish_every=10)
        for i, learner in enumerate(learners):
            sink = None if i else weights
            program.add(f"learner{i}", Learner, learner, replay, sink, pace, device[f"learner{i}"])
        explore = self.explored(algorithm.exploration)
        for i in range(self.bundles):
            seed = derive_seed(setting.seed, f"actor {i}")
            duet, where = not setting.deterministic, device[f"actor{i}"]
            plan = ActorConfig(
                seed, i * env.envs, self.chunk_length, explore, False, double_buffered=duet, device=where
            )
            program.add(
                f"actor{i}",
                Actor,
                build(make_sampler, algorithm, env, plan),
                replay,
                weights,
                self.weight_sync_steps,
            )
        add_evaluator(program, algorithm, env, weights, setting)
