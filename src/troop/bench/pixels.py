"""Learning and acting on Atari frames, against the bare network and the bare simulator."""

from __future__ import annotations

from collections.abc import Callable

import torch

from troop.algorithms import DQNConfig
from troop.algorithms.optim.target import frozen
from troop.bench.clock import in_turn
from troop.bench.table import Line
from troop.core.batch import NStep, Transition
from troop.core.env import Discrete, EnvSpec, Field
from troop.core.exploration import LinearSchedule
from troop.engines.runtime import prepare
from troop.envs import EnvPool
from troop.replay.recorders.steps import StepRecorder
from troop.replay.uniform import ReplaySize, UniformReplay
from troop.roles.collector import Collector, EnvFactory
from troop.roles.sampler import DoubleBufferedSampler

ATARI = EnvSpec("bench", {"obs": Field((4, 84, 84), torch.uint8, 4)}, Discrete(6), 32)


def _frames(rows: int) -> torch.Tensor:
    return torch.randint(0, 256, (rows, 4, 84, 84), dtype=torch.uint8)


def _bare(rows: int) -> Callable[[], None]:
    """Target forward, online forward and backward, optimiser step, on floats in hand."""
    net = DQNConfig().policy(ATARI).q
    target = frozen(net)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2.5e-4, alpha=0.95, centered=True, foreach=True)
    obs, next_obs = _frames(rows).float().div_(255), _frames(rows).float().div_(255)
    action, reward = torch.randint(6, (rows, 1)), torch.randn(rows)

    def update() -> None:
        with torch.no_grad():
            goal = reward + 0.99 * target(next_obs).amax(1)
        loss = torch.nn.functional.huber_loss(net(obs).gather(1, action).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return update


def learner(threads: int = 0) -> list[Line]:
    """DQN's updates per second on bytes of a batch, against the bare network's."""
    prepare(threads)
    lines = []
    for rows in (32, 512):
        ours = DQNConfig().algorithm(ATARI)
        batch = Transition(
            {"obs": _frames(rows)},
            torch.randint(6, (rows,)),
            torch.randn(rows),
            torch.full((rows,), 0.99),
            {"obs": _frames(rows)},
        )
        took = in_turn(
            {"ours": lambda ours=ours, batch=batch: ours.update(batch), "bare": _bare(rows)},  # type: ignore[misc]
            rounds=5,
            least=1.0,
        )
        lines.append(
            Line(
                f"DQN learner, Atari frames, batch {rows}",
                f"{1 / took['ours']:.1f} updates/s",
                f"bare network {1 / took['bare']:.1f} updates/s",
                took["bare"] / took["ours"],
                ">= 0.75",
            )
        )
    return lines


def actor(env: str = "Pong-v5", envs: int = 32) -> list[Line]:
    """One Atari actor, Nature CNN on one thread, its rows stored; against the slower of env and network."""
    prepare(1)
    config, half = EnvPool(env, envs, threads=1), EnvPool(env, envs // 2, threads=1)
    policy = DQNConfig().policy(config.spec)
    still = torch.zeros(envs)
    replay = UniformReplay(config.spec, NStep(), ReplaySize(500, 10), seed=0)
    noise = LinearSchedule(0.1, 0.1, 1)
    duet = DoubleBufferedSampler(
        *(
            Collector(EnvFactory(half.make, first), policy, StepRecorder(envs // 2, first), noise)
            for first in (0, envs // 2)
        )
    )
    alone = config.make(1)
    now = alone.reset(1)
    action = torch.zeros(envs, dtype=torch.int64)

    def act() -> None:
        for piece in duet.step()[0] + duet.step()[0]:
            replay.add(piece)

    took = in_turn(
        {
            "ours": act,
            "env": lambda: alone.step(action),
            "net": lambda: policy.act(now.obs, None, still),
        },
        rounds=5,
        least=1.0,
    )
    slower = max(took["env"], took["net"])
    return [
        Line(
            f"Atari actor, {envs} envs, one thread each",
            f"{envs / took['ours']:.0f} env steps/s",
            f"EnvPool alone {envs / took['env']:.0f}, network alone {envs / took['net']:.0f} env steps/s",
            slower / took["ours"],
            ">= 0.85",
        )
    ]
