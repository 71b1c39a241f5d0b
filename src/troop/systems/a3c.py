"""A3C: Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning".

Workers act and compute gradients on their own; parameter servers hold the parameters and the statistics of
RMSProp, which all workers share. docs/explanation/systems/a3c.md has a diagram and the differences from the
paper.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from troop.core.algorithm import AlgorithmConfig
from troop.core.batch import Trajectory
from troop.core.config import bounded
from troop.core.env import EnvConfig
from troop.core.errors import BadInput
from troop.core.program import Program, build, derive_seed
from troop.core.system import RunSettings
from troop.roles.parameter_server import ParameterServer, SharedRMSPropConfig
from troop.roles.server_peers import OutlierConfig, ServerPeers
from troop.systems.components import add_evaluator, seeded_learner
from troop.systems.devices import parse_devices
from troop.systems.on_policy import OnPolicy


@dataclass(frozen=True)
class A3C:
    """Workers and parameter servers."""

    workers: int = bounded(2, low=1, high=10_000)
    """Number of workers; each steps --envs envs."""
    servers: int = bounded(1, low=1, high=1024)
    """Number of parameter servers, each with a range of the parameters."""
    rmsprop: SharedRMSPropConfig = field(default_factory=SharedRMSPropConfig)
    recreate_every: int = bounded(0, low=0)
    """Vector steps after which the envs are recreated, so that a resumed run can restore them by repeating
    their actions; 0: never, and a resumed run starts new episodes."""
    devices: str = ""
    """Device of each worker, such as worker0=cuda:0,worker1=cuda:1; by default --device."""

    def program(
        self, algorithm: AlgorithmConfig[Trajectory], env: EnvConfig, settings: RunSettings
    ) -> Program:
        """Workers call the servers; the evaluator pulls the policy of the first worker."""
        for name in ("desired_kl", "anneal_steps"):
            if getattr(algorithm, name, 0):
                flag = name.replace("_", "-")
                raise BadInput(
                    f"--{flag} has no effect in A3C, whose parameter servers make the steps; set it to 0 and "
                    "use --system.rmsprop.lr and --system.rmsprop.anneal-updates."
                )
        program = Program("a3c")
        devices = parse_devices(self.devices, {f"worker{i}": settings.device for i in range(self.workers)})
        servers = [
            program.add(name, ParameterServer, self.rmsprop, name)
            for name in (f"server{i or ''}" for i in range(self.servers))
        ]
        peers = build(ServerPeers, servers, OutlierConfig(max_deviations=0.0))
        trainers = []
        for i in range(self.workers):
            name = f"worker{i}"
            own = dataclasses.replace(
                settings, seed=derive_seed(settings.seed, f"worker {i}"), device=devices[name]
            )
            learner = build(
                seeded_learner, algorithm.algorithm, env.spec, settings.seed, devices[name], peers
            )
            worker = OnPolicy(self.recreate_every)
            trainers.append(worker.add_trainer(program, name, algorithm, env, own, learner))
        add_evaluator(program, algorithm, env, trainers[0], settings)
        return program
