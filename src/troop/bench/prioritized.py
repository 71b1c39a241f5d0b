"""Prioritized against uniform sampling of the same rows, and TorchRL's and cpprb's where installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from troop.bench.clock import in_turn
from troop.bench.table import Line
from troop.core.batch import NStep, Rollout
from troop.core.env import Continuous, EnvSpec, Field
from troop.engines.runtime import prepare
from troop.replay.prioritized import PrioritizedReplay, PriorityConfig
from troop.replay.uniform import ReplaySize, UniformReplay

ROWS, ENVS, BATCH, OBS, ACTIONS = 1_000_000, 128, 512, 64, 6


def _piece(time: int) -> Rollout:
    data = torch.randn(time, ENVS, OBS)
    never = torch.zeros(time, ENVS, dtype=torch.bool)
    priority = torch.rand(time, ENVS)
    return Rollout(
        torch.arange(ENVS),
        {"obs": data},
        data[..., :ACTIONS],
        data[..., 0].clone(),
        never,
        never,
        never,
        priority,
    )


def _full(make: Callable[..., UniformReplay], **more: PriorityConfig) -> Any:  # noqa: ANN401 - either replay
    spec = EnvSpec("bench", {"obs": Field((OBS,))}, Continuous(ACTIONS), ENVS)
    replay = make(spec, NStep(1, 0.99), ReplaySize(ROWS // ENVS, 10), seed=0, **more)
    for _ in range(0, ROWS // ENVS + 100, 100):
        replay.add(_piece(100))
    return replay


def run(threads: int = 0) -> list[Line]:
    """512 rows of a million: sample and update, add with priorities, and the peers."""
    prepare(threads)
    uniform, ours = _full(UniformReplay), _full(PrioritizedReplay, priority=PriorityConfig(alpha=0.6))
    batches = [ours.sample(BATCH) for _ in range(64)]
    turn = iter(range(10**12))
    error, piece = torch.rand(BATCH), _piece(1024 // ENVS)

    def update() -> None:
        ours.reprioritize(batches[next(turn) % 64].index, error)

    def both() -> None:
        batch = ours.sample(BATCH)
        ours.reprioritize(batch.index, error)

    works: dict[str, Callable[[], object]] = {
        "uniform": lambda: uniform.sample(BATCH),
        "sample": lambda: ours.sample(BATCH),
        "update": update,
        "add": lambda: ours.add(piece),
        "both": both,
    }
    peers = {name: made for name, make in PEERS.items() if (made := make()) is not None}
    took = in_turn(works | peers)
    us = {name: f"{seconds * 1e6:.0f} us" for name, seconds in took.items()}
    lines = [
        Line(
            f"prioritized sample of {BATCH} of 1M",
            us["sample"],
            f"uniform {us['uniform']}",
            took["sample"] / took["uniform"],
            "<= 2",
        ),
        Line(
            f"update of {BATCH} priorities",
            us["update"],
            f"uniform sample {us['uniform']}",
            took["update"] / took["uniform"],
            "<= 0.5",
        ),
        Line(
            "add 1024 rows with priorities",
            us["add"],
            f"{1024 / took['add'] / 1e6:.2f}M rows/s against 1M",
            1024 / took["add"] / 1e6,
            ">= 1",
        ),
    ]
    return lines + [
        Line(f"sample and update, {name}", us["both"], f"{name} {us[name]}", took["both"] / took[name], "< 1")
        for name in peers
    ]


def torchrl() -> Callable[[], object] | None:
    """Sample and update of TorchRL's TensorDictPrioritizedReplayBuffer; None if it is not installed."""
    try:
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
    except ImportError:
        return None
    try:
        buffer = TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=LazyTensorStorage(ROWS), batch_size=BATCH
        )
    except RuntimeError:  # its compiled trees were built for another torch
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

    def both() -> None:
        batch = buffer.sample()
        batch["td_error"] = torch.rand(BATCH)
        buffer.update_tensordict_priority(batch)

    return both


def cpprb() -> Callable[[], object] | None:
    """Sample and update of cpprb's PrioritizedReplayBuffer, filled; None if it is not installed."""
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

    def both() -> None:
        batch = buffer.sample(BATCH, beta=0.4)
        buffer.update_priorities(batch["indexes"], random.random(BATCH))

    return both


PEERS = {"TorchRL": torchrl, "cpprb": cpprb}
