"""Gorila: Nair et al. 2015, "Massively Parallel Methods for Deep Reinforcement Learning".

Bundles of actor, local replay and learner whose gradients meet at parameter servers, nobody waiting for
anybody. docs/systems/gorila.md has the picture, and what differs from the paper.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from troop.core.algorithm import Algorithm, AlgorithmConfig
from troop.core.batch import Transition
from troop.core.config import ranged
from troop.core.env import EnvConfig
from troop.core.errors import BadInput
from troop.core.exploration import Annealed, Exploration
from troop.core.program import Program, build, derived
from troop.replay.limiter import Limited, Limiter
from troop.replay.uniform import Size
from troop.roles.actor import Actor
from troop.roles.learner import Learner, Pace
from troop.roles.parameter_server import ParameterServer, Rule
from troop.roles.server_peers import Outliers, ServerPeers
from troop.roles.weights import Weights
from troop.systems.collecting import Plan, add_evaluator, alike, hands, n_step, stream_length
from troop.systems.devices import placed
from troop.systems.setting import Setting
from troop.systems.sync import Sync, store


@dataclass(frozen=True)
class Gorila(Sync):
    """Each bundle is what Sync is alone; capacity, warmup and rhythm are those of one bundle."""

    bundles: int = ranged(2, low=1, high=10_000)
    servers: int = ranged(1, low=1, high=1024)
    """Parameter servers, each with a range of the parameters."""
    rule: Rule = field(default_factory=Rule)
    outliers: Outliers = field(default_factory=Outliers)
    devices: str = ""
    """Where bundles compute, as bundle0=cuda:0,bundle1=cuda:1; with a shared replay learners and actors. Who
    is not named: on --device, but actors on the CPU."""
    shared_replay: bool = False
    """One replay for all in place of bundles: as many actors, as many learners, each on a host of its own."""
    sync: int = ranged(100, low=1)
    """Shared replay only: env steps of an actor between two looks for newer weights."""
    length: int = ranged(10, low=1)
    """Shared replay only: vector steps that an actor sends in one piece."""

    def program(self, algorithm: AlgorithmConfig[Transition], env: EnvConfig, setting: Setting) -> Program:
        """Bundles hold the servers; nobody holds a bundle but the evaluator, the first one."""
        program = Program("gorila")
        n_step(algorithm)
        # Twenty rounds of all learners: the paper has a bound and does not say which.
        most = 20 * self.bundles if self.rule.staleness is None else self.rule.staleness
        rule = dataclasses.replace(self.rule, staleness=most)
        servers = [
            program.add(name, ParameterServer, rule, name)
            for name in (f"server{s or ''}" for s in range(self.servers))
        ]
        device, name = self.placed(setting), "learner" if self.shared_replay else "bundle"
        learners = [
            build(
                alike,
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
            seed = derived(setting.seed, f"bundle {i}")
            own = dataclasses.replace(setting, seed=seed, device=device[f"bundle{i}"])
            node = self.add_trainer(
                program, f"bundle{i}", algorithm, env, own, learner, explore, f"replay{i}"
            )
            trainers.append(node)
        add_evaluator(program, algorithm, env, trainers[0], setting)
        return program

    def placed(self, setting: Setting) -> dict[str, str]:
        """The device of each bundle or, with a shared replay, of each learner and actor."""
        if not self.shared_replay:
            return placed(self.devices, {f"bundle{i}": setting.device for i in range(self.bundles)})
        usual = {f"learner{i}": setting.device for i in range(self.bundles)}
        return placed(self.devices, usual | {f"actor{i}": "cpu" for i in range(self.bundles)})

    def explored(self, exploration: Exploration) -> Exploration:
        """The same for all, annealed by the steps of all together."""
        if isinstance(exploration, Annealed):
            return dataclasses.replace(exploration, env_steps=exploration.env_steps // self.bundles)
        return exploration

    def _add_apart(
        self,
        program: Program,
        algorithm: AlgorithmConfig[Transition],
        env: EnvConfig,
        setting: Setting,
        learners: list[Algorithm[Transition]],
        device: dict[str, str],
    ) -> None:
        """Actors and learners by themselves, around one replay; the first learner's policy is acted with."""
        rows, spec, experience = self.bundles * env.envs, env.spec, n_step(algorithm)
        least = max(self.warmup, self.length + experience.n) + 1
        size = Size(stream_length(spec, self.bundles * self.capacity, rows, least), 1, self.folder)
        ratio = self.rhythm.batch * self.rhythm.updates / env.envs  # what a bundle learns for each env step
        if not ratio:
            raise BadInput("--system.rhythm.updates is 0; with --system.shared-replay it must be at least 1.")
        wide = dataclasses.replace(spec, envs=rows)
        replay = program.add(
            "replay",
            Limited,
            build(store, wide, experience, size, self.priority, setting.seed, "cpu"),
            build(Limiter, ratio, self.warmup * rows, 2.0 * self.rhythm.batch * self.bundles),
            self.save_replay,
        )
        weights = program.add("weights", Weights)
        pace = Pace(self.rhythm.batch, ahead=2, publish=10)
        for i, learner in enumerate(learners):
            sink = None if i else weights
            program.add(f"learner{i}", Learner, learner, replay, sink, pace, device[f"learner{i}"])
        explore = self.explored(algorithm.exploration)
        for i in range(self.bundles):
            seed = derived(setting.seed, f"actor {i}")
            duet, where = not setting.deterministic, device[f"actor{i}"]
            plan = Plan(seed, i * env.envs, self.length, explore, False, duet=duet, device=where)
            program.add(f"actor{i}", Actor, build(hands, algorithm, env, plan), replay, weights, self.sync)
        add_evaluator(program, algorithm, env, weights, setting)
