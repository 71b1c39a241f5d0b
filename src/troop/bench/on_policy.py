"""On-policy learning: advantages against a pass over memory, updates against matmul, loops against parts."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import torch

from troop import api
from troop.algorithms import PPO, PPOConfig
from troop.bench.learner import multiply_adds
from troop.bench.table import BenchResult
from troop.bench.timing import Report, ignore, time_alternately
from troop.core.batch import Trajectory, TrajectorySpec
from troop.core.devices import cpp_compiler
from troop.core.env import Continuous, EnvSpec, Field
from troop.core.program import construct
from troop.engines.runtime import cores, prepare
from troop.functional.gae import gae
from troop.functional.vtrace import vtrace

STEPS, STREAMS = 128, 1024  # of the advantages
ROWS, HIDDEN, OBS_WIDTH, ACTIONS = 32_768, (256, 256, 256), 24, 6  # of the update
LOOPS = [("HalfCheetah-v5", "ppo"), ("Pong-v5", "ppo"), ("Pong-v5", "ppo-atari")]
LOOP_ROUNDS, LOOP_SECONDS = 4, 6.0


def advantages(rounds: int = 15) -> list[BenchResult]:
    """Time GAE and V-trace on [128, 1024] against copying their inputs once."""
    inputs = torch.rand(6, STEPS, STREAMS)
    out = torch.empty_like(inputs)
    log_ratio, reward, discount, value, next_value, trace = inputs.unbind(0)
    functions: dict[str, Callable[[], object]] = {
        "GAE": lambda: gae(reward, discount, value, next_value, trace, 0.95),
        "5 inputs": lambda: out[1:].copy_(inputs[1:]),
        "V-trace": lambda: vtrace(log_ratio, reward, discount, value, next_value, trace),
        "6 inputs": lambda: out.copy_(inputs),
    }
    seconds = time_alternately(functions, rounds)
    return [
        BenchResult(
            f"{name}, {STEPS} steps of {STREAMS} envs",
            f"{seconds[name] * 1e6:.0f} us",
            f"one pass over its {tensors} {seconds[tensors] * 1e6:.0f} us",
            seconds[name] / seconds[tensors],
            "<= 3",
        )
        for name, tensors in (("GAE", "5 inputs"), ("V-trace", "6 inputs"))
    ]


def learner(device: str, compile: bool) -> PPO:
    """Return PPO with separate networks, one epoch and one minibatch per update."""
    config = PPOConfig(
        rollout_length=32,
        epochs=1,
        minibatches=1,
        hidden=HIDDEN,
        normalize_observations=False,
        compile=compile,
    )
    spec = EnvSpec("bench", {"obs": Field((OBS_WIDTH,))}, Continuous(ACTIONS), ROWS // 32)
    return config.algorithm(spec, device=device)


def random_trajectory(device: str) -> Trajectory:
    """Return a trajectory of noise with 32,768 steps."""
    steps, streams = 32, ROWS // 32
    flags = torch.zeros(steps, streams, dtype=torch.bool, device=device)
    return Trajectory(
        obs={"obs": torch.randn(steps + 1, streams, OBS_WIDTH, device=device)},
        action=torch.randn(steps, streams, ACTIONS, device=device),
        reward=torch.randn(steps, streams, device=device),
        discount=torch.full((steps, streams), 0.99, device=device),
        ended=flags,
        valid=~flags,
        started=torch.zeros(steps + 1, streams, dtype=torch.bool, device=device),
        final_obs={"obs": torch.empty(0, OBS_WIDTH, device=device)},
        final_index=torch.empty(0, dtype=torch.int64, device=device),
        extras={
            "log_prob": torch.randn(steps, streams, device=device) - 8,
            "episode_return": torch.randn(steps, streams, device=device),
        },
    )


def update_flop() -> int:
    """Return the FLOP of the linear layers per row: forward for values, then forward and backward."""
    actor, critic = multiply_adds(OBS_WIDTH, HIDDEN, ACTIONS), multiply_adds(OBS_WIDTH, HIDDEN, 1)
    first_layers = 2 * OBS_WIDTH * HIDDEN[0]  # no gradient of the observations
    return 2 * (4 * (actor + critic) - first_layers)


def updates(device: str = "cpu") -> list[BenchResult]:
    """Measure the share of the matmul rate that an update of 32,768 rows reaches, plain and compiled."""
    left, right = torch.randn(2048, 2048, device=device), torch.randn(2048, 2048, device=device)
    out, batch = torch.empty_like(left), random_trajectory(device)
    functions: dict[str, Callable[[], object]] = {"matmul": lambda: torch.mm(left, right, out=out)}
    plain = learner(device, False)
    functions[""] = lambda: plain.update(batch)
    if cpp_compiler()[1]:
        compiled = learner(device, True)
        functions[", compiled"] = lambda: compiled.update(batch)
    seconds = time_alternately(functions, rounds=9, min_seconds=0.5)
    matmul_rate = 2 * 2048**3 / seconds.pop("matmul") / 1e9
    results = []
    for suffix, value in seconds.items():
        rate = update_flop() * ROWS / value / 1e9
        results.append(
            BenchResult(
                f"PPO update, {ROWS:,} rows{suffix}",
                f"{ROWS / value:,.0f} rows/s, {rate:.0f} GFLOP/s",
                f"matmul {matmul_rate:.0f} GFLOP/s",
                rate / matmul_rate,
                ">= 0.75" if suffix else ">= 0.6",
            )
        )
    return results


def loop(env: str, recipe: str) -> BenchResult:
    """Compare env steps per second of the complete loop with those of simulator and learner added."""
    experiment = api.make_experiment(recipe, env)
    system: Any = dataclasses.replace(cast(Any, experiment.system), recreate_every=0)
    program = system.program(experiment.algorithm, experiment.env, experiment.settings())
    trainer: Any = construct(program.nodes["trainer"].build, program.nodes.__getitem__)
    length = cast(TrajectorySpec, experiment.algorithm.experience).length
    trajectory = _last_trajectory(trainer, 2 * length)
    simulator = experiment.env.make(0)
    simulator.reset(0)
    action = trainer.collector.act()
    functions: dict[str, Callable[[], object]] = {
        "env": lambda: simulator.step(action),
        "update": lambda: trainer.algorithm.update(trajectory),
    }
    seconds = time_alternately(functions, rounds=5, min_seconds=0.5)
    parts = seconds["env"] * length + seconds["update"]
    rates = []
    for _ in range(LOOP_ROUNDS):
        rounds, start = 0, time.perf_counter()
        while time.perf_counter() - start < LOOP_SECONDS / LOOP_ROUNDS:
            for _ in range(length):
                trainer.step()
            rounds += 1
        rates.append(rounds / (time.perf_counter() - start))
    rate, rows = statistics.median(rates), length * experiment.env.envs
    return BenchResult(
        f"{recipe} on {env}",
        f"{rate * rows:,.0f} env steps/s",
        f"simulator alone + learner alone {rows / parts:,.0f} env steps/s",
        rate * parts,
        ">= 0.9",
    )


def _last_trajectory(trainer: Any, steps: int) -> Trajectory:  # noqa: ANN401 - a Trainer of trajectories
    kept: list[Trajectory] = []
    update = trainer.algorithm.update

    def keep(batch: Trajectory) -> object:
        kept.append(batch)
        return update(batch)

    trainer.algorithm.update = keep
    for _ in range(steps):
        trainer.step()
    trainer.algorithm.update = update
    return kept[-1]


def run(threads: int = 0, env: str | None = None, report: Report = ignore) -> list[BenchResult]:
    """Measure advantages, updates and complete loops."""
    prepare(threads or cores())
    report("advantages and updates of PPO")
    results = advantages() + updates()
    loops = [(env, "ppo")] if env else LOOPS
    for name, recipe in loops:
        report(f"{recipe} on {name}")
        results.append(loop(name, recipe))
    return results
