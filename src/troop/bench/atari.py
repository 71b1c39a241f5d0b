"""Learning and acting on Atari frames against the bare network and the bare simulator."""

from __future__ import annotations

from collections.abc import Callable

import torch

from troop.algorithms import DQNConfig
from troop.algorithms.optim import frozen_copy
from troop.bench.table import BenchResult
from troop.bench.timing import Report, ignore, time_alternately
from troop.core.batch import NStep, Transition
from troop.core.env import Discrete, EnvSpec, Field
from troop.core.exploration import LinearSchedule
from troop.engines.runtime import prepare
from troop.envs import EnvPool
from troop.replay.recorders.steps import StepRecorder
from troop.replay.uniform import ReplaySize, UniformReplay
from troop.roles.collector import Collector, EnvFactory
from troop.roles.sampler import DoubleBufferedSampler

SPEC = EnvSpec("bench", {"obs": Field((4, 84, 84), torch.uint8, 4)}, Discrete(6), 32)


def _frames(rows: int) -> torch.Tensor:
    return torch.randint(0, 256, (rows, 4, 84, 84), dtype=torch.uint8)


def _bare_update(rows: int) -> Callable[[], None]:
    """Return target forward, online forward and backward, and optimizer step on a fixed float batch."""
    net = DQNConfig().policy(SPEC).q
    target_net = frozen_copy(net)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2.5e-4, alpha=0.95, centered=True, foreach=True)
    obs, next_obs = _frames(rows).float().div_(255), _frames(rows).float().div_(255)
    action, reward = torch.randint(6, (rows, 1)), torch.randn(rows)

    def update() -> None:
        with torch.no_grad():
            target = reward + 0.99 * target_net(next_obs).amax(1)
        loss = torch.nn.functional.huber_loss(net(obs).gather(1, action).squeeze(1), target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return update


def learner(threads: int = 0, report: Report = ignore) -> list[BenchResult]:
    """Compare DQN's updates per second on uint8 batches with those of the bare network."""
    prepare(threads)
    results = []
    for rows in (32, 512):
        dqn = DQNConfig().algorithm(SPEC)
        batch = Transition(
            {"obs": _frames(rows)},
            torch.randint(6, (rows,)),
            torch.randn(rows),
            torch.full((rows,), 0.99),
            {"obs": _frames(rows)},
        )
        seconds = time_alternately(
            {"dqn": lambda dqn=dqn, batch=batch: dqn.update(batch), "bare": _bare_update(rows)},  # type: ignore[misc]
            rounds=5,
            min_seconds=1.0,
            report=lambda text, rows=rows: report(f"DQN learner, batch size {rows}: {text}"),  # type: ignore[misc]
        )
        results.append(
            BenchResult(
                f"DQN learner, Atari frames, batch size {rows}",
                f"{1 / seconds['dqn']:.1f} updates/s",
                f"bare network {1 / seconds['bare']:.1f} updates/s",
                seconds["bare"] / seconds["dqn"],
                ">= 0.75",
            )
        )
    return results


def actor(env: str = "Pong-v5", envs: int = 32, report: Report = ignore) -> list[BenchResult]:
    """Compare one Atari actor (Nature CNN on one thread, rows stored) with the slower of env and network."""
    prepare(1)
    config, half_config = EnvPool(env, envs, threads=1), EnvPool(env, envs // 2, threads=1)
    policy = DQNConfig().policy(config.spec)
    explore = torch.zeros(envs)
    replay = UniformReplay(config.spec, NStep(), ReplaySize(500, 10), seed=0)
    exploration = LinearSchedule(0.1, 0.1, 1)
    sampler = DoubleBufferedSampler(
        *(
            Collector(
                EnvFactory(half_config.make, first), policy, StepRecorder(envs // 2, first), exploration
            )
            for first in (0, envs // 2)
        )
    )
    bare_env = config.make(1)
    first_step = bare_env.reset(1)
    action = torch.zeros(envs, dtype=torch.int64)

    def sample() -> None:
        for rollout in (*sampler.step()[0], *sampler.step()[0]):
            replay.add(rollout)

    seconds = time_alternately(
        {
            "actor": sample,
            "env": lambda: bare_env.step(action),
            "network": lambda: policy.act(first_step.obs, None, explore),
        },
        rounds=5,
        min_seconds=1.0,
        report=lambda text: report(f"Atari actor: {text}"),
    )
    rates = {name: f"{envs / value:.0f}" for name, value in seconds.items()}
    return [
        BenchResult(
            f"Atari actor, {envs} envs, one thread each",
            f"{rates['actor']} env steps/s",
            f"EnvPool alone {rates['env']}, network alone {rates['network']} env steps/s",
            max(seconds["env"], seconds["network"]) / seconds["actor"],
            ">= 0.85",
        )
    ]
