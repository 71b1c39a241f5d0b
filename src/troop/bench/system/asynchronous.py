"""IMPALA, double buffering and data-parallel workers: each part against its own speed alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from troop import envs
from troop.algorithms import ImpalaConfig
from troop.bench.system.apex import StaticWeights, pin_to_cores, two_cores
from troop.bench.system.measurement import RUN_SETTINGS, AnyEngine, Measurement, measure
from troop.bench.system.sleeping import SleepingTrajectoryConfig, SleepingTrajectoryLearner
from troop.bench.system.sleeping_env import SleepingEnvConfig
from troop.bench.table import BenchResult
from troop.core.batch import Trajectory
from troop.core.env import EnvConfig, EnvSpec
from troop.core.peers import NO_PEERS, Peers
from troop.core.program import Program, derive_seed
from troop.engines import Processes, Ray
from troop.systems import IMPALA, DataParallel, OnPolicy

ENV, ENVS, BATCH_SIZE, LENGTH = "Pong-v5", 32, 16, 20
FRAME = (4, 84, 84)
REAL = ImpalaConfig(unroll_length=LENGTH, reward_clip="abs_one")
ACTOR_COUNTS = {"processes": (1, 2, 4, 8, 16, 32), "ray": (1, 2, 4, 8, 16)}
ENGINES: dict[str, AnyEngine] = {"processes": Processes(threads=1), "ray": Ray(threads=1)}
WORKERS, SLOW_WORKER = 4, 3  # of the preemption


class NullQueue:
    """A queue that discards all trajectories and always returns the same batch."""

    def __init__(self, spec: EnvSpec) -> None:
        flags, steps = torch.zeros(LENGTH, BATCH_SIZE, dtype=torch.bool), (LENGTH, BATCH_SIZE)
        obs = {
            name: torch.zeros(LENGTH + 1, BATCH_SIZE, *field.shape, dtype=field.dtype)
            for name, field in spec.obs.items()
        }
        self.batch = Trajectory(
            obs=obs,
            action=torch.zeros(steps, dtype=torch.int64),
            reward=torch.ones(steps),
            discount=torch.full(steps, 0.99),
            ended=flags,
            valid=~flags,
            started=torch.zeros(LENGTH + 1, BATCH_SIZE, dtype=torch.bool),
            final_obs={name: x[0, :0] for name, x in obs.items()},
            final_index=torch.empty(0, dtype=torch.int64),
            extras={
                "log_prob": torch.zeros(steps),
                "version": torch.zeros(steps, dtype=torch.int64),
                "episode_return": torch.zeros(steps),
            },
        )

    def wants_data(self) -> Literal[True] | None:
        """Return True: there is no back-pressure."""
        return True

    def add(self, trajectory: Trajectory) -> None:
        """Discard the trajectory."""

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Do nothing; no stream is stored."""

    def sample(self, rows: int) -> Trajectory | None:
        """Return the constant batch."""
        return self.batch


@dataclass(frozen=True)
class FreeLearnerConfig(ImpalaConfig):
    """IMPALA's policy with a learner whose updates cost nothing."""

    length: int = LENGTH

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> Any:  # noqa: ANN401
        """Build a learner that only receives batches."""
        return SleepingTrajectoryLearner(SleepingTrajectoryConfig(seconds=0.0), self.policy(spec), peers)


def impala_program(algorithm: Any, env: EnvConfig) -> Program:  # noqa: ANN401 - an AlgorithmConfig
    """Return IMPALA with one single-buffered actor: there is no third core for the simulator."""
    return IMPALA(1, BATCH_SIZE, prefetch=2, double_buffered=False).program(algorithm, env, RUN_SETTINGS)


def alone(program: Program, role: str, algorithm: Any, env: EnvConfig) -> Program:  # noqa: ANN401
    """Return one role of a program, with a queue and weights that cost nothing on its own host."""
    reduced = Program(f"{role} alone")
    with reduced.host(role):
        reduced.add("queue", NullQueue, env.spec)
        reduced.add("weights", StaticWeights, algorithm, env.spec)
    reduced.nodes[role] = dataclasses.replace(program.nodes[role], host=role)
    return reduced


def rate(program: Program, counter: str, seconds: float, cores: tuple[int, ...]) -> float:
    """Return the rate of a counter of the program on these cores."""
    measurement = Measurement(seconds, warmup=3.0, counters=(counter,))
    measure(pin_to_cores(program, cores), Processes(threads=1), measurement)
    return measurement.rate(counter)


def impala(seconds: float = 10.0, env: str = ENV) -> list[BenchResult]:
    """Compare actor and learner in the system with each alone, where the other one is not the limit."""
    first, second = two_cores()
    frames = dataclasses.replace(envs.resolve(env, ENVS), threads=1)  # type: ignore[type-var]
    fast = SleepingEnvConfig(ENVS, 0.0, shape=FRAME)  # simulators that take no time
    results = []
    for role, counter, algorithm, config in (
        ("actor0", "env_steps", FreeLearnerConfig(), frames),
        ("learner", "updates", REAL, fast),
    ):
        program = impala_program(algorithm, config)
        core = (first,) if role == "actor0" else (second,)
        by_itself = rate(alone(program, role, algorithm, config), counter, seconds, core)
        in_system = rate(program, counter, seconds, (first, second))
        unit = counter.replace("_", " ")
        results.append(
            BenchResult(
                f"IMPALA, {role.rstrip('0')}, {config.id}",
                f"{in_system:.1f} {unit}/s",
                f"alone {by_itself:.1f}",
                in_system / by_itself,
                ">= 0.9",
            )
        )
    return results


def steps_per_s(program: Program, engine: AnyEngine, seconds: float) -> float:
    """Return env steps per second."""
    measurement = Measurement(seconds, warmup=4.0)
    return measure(program, engine, measurement).rate("env_steps")


def double_buffering(seconds: float = 10.0) -> list[BenchResult]:
    """Compare an actor with two halves of its envs in turn with one that steps all at once."""
    env = SleepingEnvConfig(16, 0.0, seconds_per_env=0.005 / 16)
    algorithm = SleepingTrajectoryConfig(200, 0.0, seconds_per_row=0.005 / 16)
    rates = []
    for double_buffered in (False, True):
        system = IMPALA(1, BATCH_SIZE, double_buffered=double_buffered)
        rates.append(steps_per_s(system.program(algorithm, env, RUN_SETTINGS), ENGINES["processes"], seconds))
    single, double = rates
    text = f"one buffer {single:.0f}"
    return [
        BenchResult("double-buffered sampling", f"{double:.0f} env steps/s", text, double / single, ">= 1.4")
    ]


def workers_program(workers: int, preemption: float = 1.0, slow_worker: int | None = None) -> Program:
    """Return data-parallel workers with sleeping envs, one of which may be five times slower."""
    slow_seed = None
    if slow_worker is not None:
        seed = derive_seed(RUN_SETTINGS.seed, f"worker {slow_worker}")
        slow_seed = derive_seed(derive_seed(seed, "train"), "world 0")
    env = SleepingEnvConfig(4, 0.005, slow_seed=slow_seed)
    rollouts = OnPolicy(recreate_every=0, stagger=False)
    system = DataParallel(workers, preemption, rollouts)
    return system.program(SleepingTrajectoryConfig(64, 0.02), env, RUN_SETTINGS)


def data_parallel(seconds: float = 10.0) -> list[BenchResult]:
    """Compare workers with and without preemption of a slow one, and eight workers with one."""
    engine = ENGINES["processes"]
    waiting = steps_per_s(workers_program(WORKERS, 1.0, SLOW_WORKER), engine, seconds)
    preempting = steps_per_s(workers_program(WORKERS, 0.6, SLOW_WORKER), engine, seconds)
    one, eight = (steps_per_s(workers_program(count), engine, seconds) for count in (1, 8))
    return [
        BenchResult(
            f"DD-PPO, {WORKERS} workers, one 5 times slower, preemption",
            f"{preempting:.0f} env steps/s",
            f"without {waiting:.0f}",
            preempting / waiting,
            ">= 1.5",
        ),
        BenchResult("DD-PPO, 8 workers", f"{eight:.0f} env steps/s", f"one {one:.0f}", eight / one, ">= 7"),
    ]


def scaling(seconds: float = 5.0, engines: tuple[str, ...] = ("processes", "ray")) -> list[BenchResult]:
    """Compare IMPALA with increasing numbers of sleeping actors with one actor."""
    env, algorithm = SleepingEnvConfig(4, 0.005), SleepingTrajectoryConfig(200, 0.001)
    results = []
    for name in engines:
        rates = {
            count: steps_per_s(
                IMPALA(count, 4, double_buffered=False, queue_size=2 + count).program(
                    algorithm, env, RUN_SETTINGS
                ),
                ENGINES[name],
                seconds,
            )
            for count in ACTOR_COUNTS[name]
        }
        results += [
            BenchResult(
                f"IMPALA on {name}, {count} actors",
                f"{value:.0f} env steps/s",
                f"{count} x {rates[1]:.0f}",
                value / count / rates[1],
                ">= 0.9",
            )
            for count, value in rates.items()
            if count > 1
        ]
    return results
