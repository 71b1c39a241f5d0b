"""Uniform replay: sampling against one gather of the same bytes, memory against the bytes of a transition."""

from __future__ import annotations

import torch

from troop.bench.table import BenchResult
from troop.bench.timing import Report, ignore, time_alternately
from troop.core.batch import NStep, Rollout
from troop.core.env import Continuous, EnvSpec, Field
from troop.engines.runtime import prepare
from troop.replay.uniform import ReplaySize, UniformReplay

ROWS, BATCH_SIZE = 1_000_000, 4096


def full_replay(envs: int, episode: int, obs: int = 64, actions: int = 6, n: int = 3) -> UniformReplay:
    """Return a full replay of a million rows with episodes of `episode` steps."""
    spec = EnvSpec("bench", {"obs": Field((obs,))}, Continuous(actions), envs)
    length = ROWS // envs
    replay = UniformReplay(spec, NStep(n, 0.99), ReplaySize(length, 10), seed=0)
    streams, chunk = torch.arange(envs), 250
    for start in range(0, length, chunk):
        steps = min(chunk, length - start)
        time = torch.arange(start, start + steps).unsqueeze(1).expand(steps, envs)
        closing = time % (episode + 1) == episode
        truncated = time % (episode + 1) == episode - 1
        false = torch.zeros_like(closing)
        data = torch.randn(steps, envs, obs)
        replay.add(
            Rollout(streams, {"obs": data}, data[..., :actions], data[..., 0], false, truncated, closing)
        )
    return replay


def run(threads: int = 0, report: Report = ignore) -> list[BenchResult]:
    """Measure 3-step batches of 4096 rows from a million rows, and bytes per transition."""
    prepare(threads)
    report("filling a replay with a million rows")
    replay = full_replay(envs=128, episode=1000)
    storage = replay.storage
    width = storage.rows.shape[1]
    # The bytes of a batch: obs, action, reward and discount of the first row, obs of the successor.
    table = torch.randn(ROWS, width)
    batch_bytes = BATCH_SIZE * (64 + 6 + 1 + 1 + 64) * 4
    count = batch_bytes // (width * 4)

    def gather() -> None:
        torch.index_select(table, 0, torch.randint(ROWS, (count,)))

    seconds = time_alternately(
        {"sample": lambda: replay.sample(BATCH_SIZE), "gather": gather},
        report=lambda text: report(f"uniform replay: {text}"),
    )
    speed = BenchResult(
        f"3-step sample of {BATCH_SIZE} from 1M rows",
        f"{seconds['sample'] * 1e6:.0f} us",
        f"index_select of the same {batch_bytes / 1e6:.1f} MB {seconds['gather'] * 1e6:.0f} us",
        seconds["sample"] / seconds["gather"],
        "<= 1.5",
    )
    transitions = ROWS * 1000 / 1001
    minimum = (64 + 6) * 4 + 4 + 1
    memory = BenchResult(
        "replay bytes per transition",
        f"{storage.bytes / transitions:.1f} B",
        f"obs + action + reward + flags {minimum} B",
        storage.bytes / transitions / minimum,
        "<= 1.1",
    )
    return [speed, memory]
