"""Sampling against one gather of the same bytes, and memory against the bytes of a transition."""

from __future__ import annotations

import torch

from troop.bench.clock import in_turn
from troop.bench.table import Line
from troop.core.batch import NStep, Rollout
from troop.core.env import Continuous, EnvSpec, Field
from troop.engines.runtime import prepare
from troop.replay.uniform import ReplaySize, UniformReplay

ROWS, BATCH = 1_000_000, 4096


def filled(envs: int, episode: int, obs: int = 64, actions: int = 6, n: int = 3) -> UniformReplay:
    """A full replay of a million rows with episodes of the given length."""
    spec = EnvSpec("bench", {"obs": Field((obs,))}, Continuous(actions), envs)
    length = ROWS // envs
    replay = UniformReplay(spec, NStep(n, 0.99), ReplaySize(length, 10), seed=0)
    streams, chunk = torch.arange(envs), 250
    for start in range(0, length, chunk):
        steps = min(chunk, length - start)
        time = torch.arange(start, start + steps).unsqueeze(1).expand(steps, envs)
        closing = time % (episode + 1) == episode
        truncated = time % (episode + 1) == episode - 1
        never = torch.zeros_like(closing)
        data = torch.randn(steps, envs, obs)
        replay.add(
            Rollout(streams, {"obs": data}, data[..., :actions], data[..., 0], never, truncated, closing)
        )
    return replay


def run(threads: int = 0) -> list[Line]:
    """3-step batches of 4096 from a million rows; bytes per transition."""
    prepare(threads)
    replay = filled(envs=128, episode=1000)
    streams = replay.streams
    width = streams.rows.shape[1]
    # The same bytes: obs, action and reward of the start, obs of the successor.
    same = torch.randn(ROWS, width)
    moved = BATCH * (64 + 6 + 1 + 1 + 64) * 4
    count = moved // (width * 4)

    def gather() -> None:
        torch.index_select(same, 0, torch.randint(ROWS, (count,)))

    took = in_turn({"ours": lambda: replay.sample(BATCH), "gather": gather})
    speed = Line(
        f"3-step sample of {BATCH} from 1M rows",
        f"{took['ours'] * 1e6:.0f} us",
        f"index_select of the same {moved / 1e6:.1f} MB {took['gather'] * 1e6:.0f} us",
        took["ours"] / took["gather"],
        "<= 1.5",
    )
    transitions = ROWS * 1000 / 1001
    bare = (64 + 6) * 4 + 4 + 1
    memory = Line(
        "replay bytes per transition",
        f"{streams.bytes / transitions:.1f} B",
        f"obs + action + reward + flags {bare} B",
        streams.bytes / transitions / bare,
        "<= 1.1",
    )
    return [speed, memory]
