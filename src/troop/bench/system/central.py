"""Central inference (SEED RL): round trip, share of the network, SEED against IMPALA, many light runners."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from troop.algorithms import ImpalaConfig, R2D2Config
from troop.bench.system.apex import StaticWeights
from troop.bench.system.asynchronous import FreeLearnerConfig, NullQueue
from troop.bench.system.measurement import RUN_SETTINGS, Measurement, measure
from troop.bench.system.round_trips import ROWS, RoundTrips
from troop.bench.system.sleeping_env import SleepingEnvConfig
from troop.bench.table import BenchResult
from troop.central_memory import runner_bytes, sequence_bytes, server_bytes
from troop.core.algorithm import PolicyOutput
from troop.core.batch import State
from troop.core.env import EnvConfig, Obs
from troop.core.program import Program, build
from troop.core.role import Metrics
from troop.engines import Processes
from troop.envs import Gymnasium, Toy
from troop.replay.recorders.unrolls import UnrollRecorder
from troop.replay.sequences import ServedReplay
from troop.roles.env_runner import EnvRunner
from troop.roles.inference_server import InferenceServer
from troop.systems import IMPALA, SEED
from troop.systems.components import make_policy

ROW_SHAPE = (100,)  # 400 bytes of float32
FRAME = (4, 84, 84)
MLP = ImpalaConfig(unroll_length=20, hidden=(256, 256))
DEEP = FreeLearnerConfig(net="impala")
SEQUENCES = R2D2Config(sequence_length=16, overlap=4, burn_in=4, features=16, core_size=64, head=16)
SEQUENCE_ROW_SHAPE = (2048,)  # 8 kB: the replays differ by more than their processes vary
SEQUENCE_CAPACITIES = (64, 1064)
RUNNER_COUNTS = (1, 2, 4, 8, 16, 32, 64)
LIGHT_RUNNERS, LIGHT_LIMIT_S = 200, 60.0
ENGINE = Processes(threads=1)


class TimedServer(InferenceServer):
    """An InferenceServer that measures the time inside of its policy."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - those of InferenceServer
        super().__init__(*args, **kwargs)
        self.network_s, self.network_calls = 0.0, 0
        act = self.policy.act

        def timed(obs: Obs, state: State, explore: Any) -> PolicyOutput:  # noqa: ANN401 - a tensor
            began = time.perf_counter()
            output = act(obs, state, explore)
            self.network_s += time.perf_counter() - began
            self.network_calls += 1
            return output

        self.policy.act = timed  # type: ignore[method-assign]

    def gauges(self) -> Metrics:
        """Return also the seconds and calls of the network so far, and the time."""
        own: Metrics = {"network/seconds": self.network_s, "network/calls": self.network_calls}
        return super().gauges() | own | {"clock": time.monotonic()}


def server_program(algorithm: ImpalaConfig, env: EnvConfig, envs: int) -> tuple[Program, InferenceServer]:
    """Return a program with one server of `envs` envs, whose queue and weights cost nothing; and it."""
    program = Program("central")
    with program.host("inference"):
        queue = program.add("queue", NullQueue, env.spec)
        weights = program.add("weights", StaticWeights, algorithm, env.spec)
        server = program.add(
            "inference",
            TimedServer,
            env.spec,
            build(make_policy, algorithm, env.spec, "cpu"),
            build(UnrollRecorder, envs, algorithm.experience),
            algorithm.exploration,
            queue,
            weights,
        )
    return program, server


def runners_program(runners: int, algorithm: ImpalaConfig, env: EnvConfig, prefix: str = "runner") -> Program:
    """Return a server alone with its runners `prefix`0, 1, ..., each of which steps two groups of envs."""
    program, server = server_program(algorithm, env, runners * env.envs)
    group = env.with_envs(env.envs // 2)
    for i in range(runners):
        name = f"{prefix}{i}"
        program.add(name, EnvRunner, name, group, 2, i, server, i * env.envs)
    return program


def inference(seconds: float = 5.0, runners: int = 16) -> list[BenchResult]:
    """Measure a round trip without the network's time, and the server's share of time in two networks."""
    env, frames = SleepingEnvConfig(ROWS, 0.0, shape=ROW_SHAPE), SleepingEnvConfig(16, 0.0, shape=FRAME)
    program, server = server_program(MLP, env, ROWS)
    program.add("client", RoundTrips, env.spec, server)
    call = measure(program, ENGINE, Measurement(seconds))
    network = call.increase_ratio("network/seconds", "network/calls")
    beyond = call.median("round_trip") - network
    return [
        BenchResult(
            f"round trip of {ROWS} x 400 B",
            f"{1e3 * beyond:.3f} ms beyond the network's {1e3 * network:.3f}",
            "0.15 ms",
            beyond / 1.5e-4,
            "<= 1",
        ),
        network_share("an MLP", MLP, env.with_envs(16), runners, seconds),
        network_share("the deep network", DEEP, frames, runners, 2 * seconds),
    ]


def network_share(
    name: str, algorithm: ImpalaConfig, env: EnvConfig, runners: int, seconds: float
) -> BenchResult:
    """Measure the share of time that the server of `runners` runners spends in the network called `name`."""
    program = runners_program(runners, algorithm, env)
    busy = measure(program, ENGINE, Measurement(seconds, warmup=2.0))
    share = busy.increase_ratio("network/seconds", "clock")
    rows = busy.median("inference/batch_rows")
    return BenchResult(
        f"server in {name}, {runners} runners x {env.envs} rows",
        f"{100 * share:.0f} % of the time, {rows:.0f} rows per call",
        "80 %",
        share / 0.8,
        ">= 1",
    )


def cpu_per_step(measurement: Measurement, role: str, count: int) -> float:
    """Return the CPU seconds per env step of the processes `role0`, `role1`, ..."""
    cores = sum(measurement.median(f"role/{role}{i}/cpu") for i in range(count))
    return cores / measurement.rate("env_steps")


def images(seconds: float = 10.0, count: int = 2, algorithm: ImpalaConfig = DEEP) -> list[BenchResult]:
    """Compare SEED's runners with IMPALA's actors: images, the deep network, a learner without cost."""
    env = SleepingEnvConfig(8, 0.0, shape=FRAME)
    systems: dict[str, SEED | IMPALA] = {"runner": SEED(count, batch_size=16), "actor": IMPALA(count, 16)}
    rates, costs = {}, {}
    for role, system in systems.items():
        program = system.program(algorithm, env, RUN_SETTINGS)
        measurement = measure(
            program, ENGINE, Measurement(seconds, warmup=3.0, counters=("env_steps", "updates"))
        )
        rates[role], costs[role] = measurement.rate("env_steps"), cpu_per_step(measurement, role, count)
    return [
        BenchResult(
            "SEED, deep network",
            f"{rates['runner']:.0f} env steps/s",
            f"IMPALA {rates['actor']:.0f}",
            rates["runner"] / rates["actor"],
        ),
        BenchResult(
            "CPU per env step of IMPALA's actors",
            f"{1e3 * costs['actor']:.2f} ms",
            f"SEED's runners {1e3 * costs['runner']:.3f} ms",
            costs["actor"] / costs["runner"],
            ">= 5",
        ),
    ]


def scaling(seconds: float = 5.0, counts: tuple[int, ...] = RUNNER_COUNTS) -> list[BenchResult]:
    """Compare growing numbers of runners of envs that sleep 5 ms with one runner, on one server."""
    env, rates = SleepingEnvConfig(4, 0.005), {}
    for count in counts:
        measurement = measure(runners_program(count, MLP, env), ENGINE, Measurement(seconds, warmup=2.0))
        rates[count] = measurement.rate("env_steps"), measurement.increase_ratio("network/seconds", "clock")
    one = rates[counts[0]][0] / counts[0]
    return [
        BenchResult(
            f"SEED, {count} runners of a 5 ms env",
            f"{rate:.0f} env steps/s",
            f"{count} x {one:.0f}, network {100 * share:.0f} % busy",
            rate / count / one,
            ">= 0.9",
        )
        for count, (rate, share) in rates.items()
    ]


def light(runners: int = LIGHT_RUNNERS) -> list[BenchResult]:
    """Start many runners of a trivial env, let all of them step, stop them, and count what is left."""
    prefix = f"run{os.getpid()}n"  # unlike the runners of other programs on this machine
    program = runners_program(runners, MLP, Toy("Clock", 2), prefix)
    start = time.monotonic()
    measurement = measure(program, ENGINE, Measurement(0.5, warmup=0.0))
    seconds, left = time.monotonic() - start, len(processes_named(prefix))
    started = (measurement.warmup_start_s or start) - start
    return [
        BenchResult(
            f"{runners} light runners start, run and stop",
            f"{seconds:.1f} s (all stepped after {started:.1f} s), {left} processes left",
            f"{LIGHT_LIMIT_S:.0f} s",
            seconds / LIGHT_LIMIT_S,
            "<= 1",
        )
    ]


def memory(seconds: float = 3.0) -> list[BenchResult]:
    """Compare the memory of runner, server and replayed sequence with what `troop doctor` predicts."""
    env, runners = Gymnasium("CartPole-v1", 16), 2
    predicted = {
        "runner0": runner_bytes(env),
        "inference": server_bytes(MLP, env, runners * env.envs),
    }
    program = SEED(runners, batch_size=16).program(MLP, env, RUN_SETTINGS)
    measurement = measure(program, ENGINE, Measurement(seconds, counters=("env_steps", "updates")))
    measured = {role: measurement.median(f"role/{role}/memory_bytes") for role in predicted}
    results = [memory_result(role, measured[role], expected) for role, expected in predicted.items()]
    return [*results, sequence_memory(seconds)]


def memory_result(name: str, resident: float, expected: float) -> BenchResult:
    """Compare measured with predicted bytes."""
    return BenchResult(
        f"memory of {name}",
        f"{resident / 1e6:.3g} MB",
        f"doctor {expected / 1e6:.3g} MB",
        resident / expected,
        "0.9 to 1.1",
    )


def sequence_memory(seconds: float) -> BenchResult:
    """Compare the memory of a replay per sequence, from two capacities, with what `troop doctor` predicts."""
    env, resident = SleepingEnvConfig(8, 0.0, shape=SEQUENCE_ROW_SHAPE), []
    for capacity in SEQUENCE_CAPACITIES:
        replay = ServedReplay(capacity, 8, samples_per_insert=0.0)
        program = SEED(2, batch_size=4, replay=replay).program(SEQUENCES, env, RUN_SETTINGS)
        measurement = measure(program, ENGINE, Measurement(seconds, counters=("env_steps", "updates")))
        resident.append(measurement.median("role/replay/memory_bytes"))
    fewer, more = SEQUENCE_CAPACITIES
    per_sequence = (resident[1] - resident[0]) / (more - fewer)
    return memory_result("a replayed sequence", per_sequence, sequence_bytes(SEQUENCES, env.spec))


def processes_named(prefix: str) -> list[int]:
    """Return the ids of the living processes of this user whose name starts with `prefix`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            own = path.stat().st_uid == os.getuid()
            living = "\nState:\tZ" not in (path / "status").read_text()
            if own and living and (path / "comm").read_text().startswith(prefix):
                found.append(int(path.name))
        except OSError:
            continue  # the process has ended meanwhile
    return found
