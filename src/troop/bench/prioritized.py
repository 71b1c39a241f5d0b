"""Prioritized replay against uniform replay of the same rows, and against TorchRL and cpprb if installed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from troop.bench.table import BenchResult
from troop.bench.timing import Report, ignore, time_alternately
from troop.core.batch import NStep, Rollout
from troop.core.env import Continuous, EnvSpec, Field
from troop.engines.runtime import prepare
from troop.replay.prioritized import PrioritizedReplay, PriorityConfig
from troop.replay.uniform import ReplaySize, UniformReplay

ROWS, ENVS, BATCH_SIZE, OBS, ACTIONS = 1_000_000, 128, 512, 64, 6


def _rollout(time: int) -> Rollout:
    data = torch.randn(time, ENVS, OBS)
    false = torch.zeros(time, ENVS, dtype=torch.bool)
    priority = torch.rand(time, ENVS)
    return Rollout(
        torch.arange(ENVS),
        {"obs": data},
        data[..., :ACTIONS],
        data[..., 0].clone(),
        false,
        false,
        false,
        {"priority": priority},
    )


def _full_replay(replay_class: Callable[..., UniformReplay], **config: PriorityConfig) -> Any:  # noqa: ANN401
    spec = EnvSpec("bench", {"obs": Field((OBS,))}, Continuous(ACTIONS), ENVS)
    replay = replay_class(spec, NStep(1, 0.99), ReplaySize(ROWS // ENVS, 10), seed=0, **config)
    for _ in range(0, ROWS // ENVS + 100, 100):
        replay.add(_rollout(100))
    return replay


def run(threads: int = 0, report: Report = ignore) -> list[BenchResult]:
    """Measure sample, priority update and add with a million rows, and compare with other libraries."""
    prepare(threads)
    report("filling two replays with a million rows")
    uniform = _full_replay(UniformReplay)
    prioritized = _full_replay(PrioritizedReplay, priority=PriorityConfig(alpha=0.6))
    indices = itertools.cycle([prioritized.sample(BATCH_SIZE).index for _ in range(64)])
    error, rollout = torch.rand(BATCH_SIZE), _rollout(1024 // ENVS)

    def update() -> None:
        prioritized.reprioritize(next(indices), error)

    def sample_and_update() -> None:
        batch = prioritized.sample(BATCH_SIZE)
        prioritized.reprioritize(batch.index, error)

    functions: dict[str, Callable[[], object]] = {
        "uniform": lambda: uniform.sample(BATCH_SIZE),
        "sample": lambda: prioritized.sample(BATCH_SIZE),
        "update": update,
        "add": lambda: prioritized.add(rollout),
        "sample and update": sample_and_update,
    }
    others = {name: function for name, make in LIBRARIES.items() if (function := make()) is not None}
    seconds = time_alternately(functions | others, report=lambda text: report(f"prioritized replay: {text}"))
    us = {name: f"{value * 1e6:.0f} us" for name, value in seconds.items()}
    results = [
        BenchResult(
            f"prioritized sample of {BATCH_SIZE} of 1M",
            us["sample"],
            f"uniform {us['uniform']}",
            seconds["sample"] / seconds["uniform"],
            "<= 2",
        ),
        BenchResult(
            f"update of {BATCH_SIZE} priorities",
            us["update"],
            f"uniform sample {us['uniform']}",
            seconds["update"] / seconds["uniform"],
            "<= 0.5",
        ),
        BenchResult(
            "add 1024 rows with priorities",
            f"{us['add']}, {1024 / seconds['add'] / 1e6:.2f}M rows/s",
            "1M rows/s",
            1024 / seconds["add"] / 1e6,
            ">= 1",
        ),
    ]
    return results + [
        BenchResult(
            f"prioritized sample and update against {name}",
            us["sample and update"],
            f"{name} {us[name]}",
            seconds["sample and update"] / seconds[name],
            "< 1",
        )
        for name in others
    ]


def torchrl() -> Callable[[], object] | None:
    """Return sample-and-update of TorchRL's TensorDictPrioritizedReplayBuffer; None if not installed."""
    try:
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
    except ImportError:
        return None
    try:
        buffer = TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=LazyTensorStorage(ROWS), batch_size=BATCH_SIZE
        )
    except RuntimeError:  # its C++ extension was built for another torch
        return None
    for _ in range(ROWS // 10_000):
        obs = torch.randn(10_000, OBS)
        fields = {
            "obs": obs,
            "action": obs[:, :ACTIONS],
            "reward": obs[:, 0],
            "next_obs": obs,
            "done": obs[:, 1] > 9,
        }
        buffer.extend(TensorDict(fields, batch_size=[10_000]))

    def sample_and_update() -> None:
        batch = buffer.sample()
        batch["td_error"] = torch.rand(BATCH_SIZE)
        buffer.update_tensordict_priority(batch)

    return sample_and_update


def cpprb() -> Callable[[], object] | None:
    """Return sample-and-update of cpprb's PrioritizedReplayBuffer; None if not installed."""
    try:
        import numpy as np
        from cpprb import PrioritizedReplayBuffer
    except ImportError:
        return None
    fields = {
        "obs": {"shape": OBS},
        "act": {"shape": ACTIONS},
        "rew": {},
        "next_obs": {"shape": OBS},
        "done": {},
    }
    buffer = PrioritizedReplayBuffer(ROWS, fields, alpha=0.6)
    random = np.random.default_rng(0)
    for _ in range(ROWS // 10_000):
        obs = random.standard_normal((10_000, OBS), dtype=np.float32)
        zeros = np.zeros(10_000)
        buffer.add(
            obs=obs, act=obs[:, :ACTIONS], rew=zeros, next_obs=obs, done=zeros, priorities=obs[:, 0] ** 2
        )

    def sample_and_update() -> None:
        batch = buffer.sample(BATCH_SIZE, beta=0.4)
        buffer.update_priorities(batch["indexes"], random.random(BATCH_SIZE))

    return sample_and_update


LIBRARIES = {"TorchRL": torchrl, "cpprb": cpprb}
