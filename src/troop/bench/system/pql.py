"""PQL: achieved update ratios, speed-up of three concurrent roles, and staleness of the peers' networks."""

from __future__ import annotations

from typing import Literal

from troop.algorithms import TD3Config
from troop.bench.system.measurement import RUN_SETTINGS, STEPS_AND_UPDATES, Measurement, measure
from troop.bench.system.scaling import ENGINES
from troop.bench.table import BenchResult
from troop.core.program import Program
from troop.engines import Inline, Processes
from troop.envs import Toy
from troop.recipes.fast_td3 import CPU
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import PQL, Sync

RATIOS = ((4, 1), (8, 2), (16, 4))  # critic updates per vector step, and per policy update
FAST_ENV = Toy("PointMass", envs=16, limit=100)
SLEEPING_ENV = Toy("Sleepy", envs=16, limit=100, seconds=0.005)
SMALL_TD3 = TD3Config(**CPU | {"actor_hidden": (16,), "critic_hidden": (16,), "atoms": 11})
# With SLEEPING_ENV the simulator, the critics and the policy take about the same time.
BALANCED_TD3 = TD3Config(**CPU | {"policy_delay": 1})
BATCH_SIZE, TOLERANCE = 256, 0.02
LearnerRole = Literal["critic", "policy"]
PEERS: dict[LearnerRole, LearnerRole] = {"critic": "policy", "policy": "critic"}


def system(beta_av: float, beta_pv: float, batch_size: int) -> PQL:
    """Return PQL with small replays."""
    return PQL(
        beta_av,
        beta_pv,
        batch_size=batch_size,
        replay_capacity=50_000,
        learning_starts=10,
        save_replay=False,
    )


def achieved_ratios(engine: str, beta_av: float, beta_pv: float, seconds: float) -> tuple[float, float]:
    """Return critic updates per vector step and per policy update, after the warm-up."""
    program = system(beta_av, beta_pv, 64).program(SMALL_TD3, FAST_ENV, RUN_SETTINGS)
    measurement = Measurement(seconds, warmup=2.0, counters=STEPS_AND_UPDATES)
    measure(program, ENGINES[engine], measurement)
    critic, policy = (
        measurement.increase_ratio(f"{learner}/updates", f"{learner}/steps") for learner in PEERS
    )
    return critic, critic / policy


def ratios(seconds: float, engines: tuple[str, ...]) -> list[BenchResult]:
    """Compare the achieved update ratios with the configured ones."""
    results = []
    for engine in engines:
        for configured in RATIOS:
            achieved = achieved_ratios(engine, *configured, seconds)
            for name, expected, value in zip(("a:v", "p:v"), configured, achieved, strict=True):
                results.append(
                    BenchResult(
                        f"{engine}, beta_{name}",
                        f"1:{value:.3f}",
                        f"1:{expected}",
                        value / expected,
                        f"{1 - TOLERANCE} to {1 + TOLERANCE}",
                    )
                )
    return results


def sync_program() -> Program:
    """Return the same steps and updates in one role, one after another."""
    schedule = UpdateSchedule(BATCH_SIZE, updates_per_step=1)
    sync = Sync(schedule, replay_capacity=50_000, save_replay=False, recreate_every=0)
    return sync.program(BALANCED_TD3, SLEEPING_ENV, RUN_SETTINGS)


def concurrency(seconds: float) -> list[BenchResult]:
    """Compare three concurrent roles with one role on one or two threads, whichever is faster."""
    sequential = max(
        measure(
            sync_program(), Inline(threads=threads), Measurement(seconds, counters=STEPS_AND_UPDATES)
        ).rate("env_steps")
        for threads in (1, 2)
    )
    program = system(1, 1, BATCH_SIZE).program(BALANCED_TD3, SLEEPING_ENV, RUN_SETTINGS)
    measurement = Measurement(seconds, warmup=2.0, counters=STEPS_AND_UPDATES)
    measure(program, Processes(threads=1), measurement)
    concurrent, envs = measurement.rate("env_steps"), SLEEPING_ENV.envs
    speed = BenchResult(
        "three concurrent roles",
        f"{concurrent / envs:.0f} vector steps/s with their updates",
        f"sequential, 1 or 2 threads {sequential / envs:.0f}",
        concurrent / sequential,
        ">= 1.6",
    )
    return [speed, *(staleness(measurement, reader, 1.0) for reader in PEERS)]


def idle_staleness(seconds: float) -> list[BenchResult]:
    """Measure the staleness at a learner that mostly waits: its peer makes four times as many updates."""
    results = []
    ratios: tuple[tuple[LearnerRole, float], ...] = (("critic", 1 / 4), ("policy", 4.0))
    for reader, beta_pv in ratios:
        pql = system(1, beta_pv, BATCH_SIZE)
        program = pql.program(BALANCED_TD3, SLEEPING_ENV, RUN_SETTINGS)
        measurement = Measurement(seconds, warmup=2.0, counters=STEPS_AND_UPDATES)
        measure(program, Processes(threads=1), measurement)
        publish_every = pql.learner_config(PEERS[reader]).publish_every
        results.append(staleness(measurement, reader, publish_every, idle=True))
    return results


def staleness(
    measurement: Measurement, reader: LearnerRole, publish_every: float, idle: bool = False
) -> BenchResult:
    """Return by how many publications a learner's copy was behind when newer weights arrived."""
    peer = PEERS[reader]
    lag = measurement.median(f"{reader}/{peer}_lag") / publish_every
    return BenchResult(
        f"staleness of the {peer} network at the {'idle' if idle else 'busy'} {reader} learner",
        f"{lag:.2f} publications",
        "1",
        lag,
        "<= 1" if idle else "",
    )


def run(seconds: float = 60.0, engines: tuple[str, ...] = ("processes", "ray")) -> list[BenchResult]:
    """Measure ratios, speed-up and staleness."""
    short = min(seconds, 10.0)
    return ratios(seconds, engines) + concurrency(short) + idle_staleness(short)
