"""Seconds from the command to the first env step."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from troop.bench.table import Line
from troop.core.errors import SetupProblem

WANTED = {"processes": 3.0, "ray": 10.0}
MAX_CONSECUTIVE_SKIPS = 120.0  # seconds
FLAGS = ["--engine.log-s", "0.02", "--system.learning-starts", "100", "--evaluation.seconds", "1000"]


def first_step(engine: str, env: str, *more: str) -> float:
    """Seconds until a `troop train apex-dqn` has stepped its envs."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = ["train", "apex-dqn", "--env", env, "--engine", engine, "--run", str(run), *FLAGS, *more]
        began = time.monotonic()
        troop = subprocess.Popen([sys.executable, "-m", "troop", *words], stdout=subprocess.DEVNULL)
        try:
            while not _stepped(run / "metrics.jsonl"):
                if troop.poll() is not None or time.monotonic() - began > MAX_CONSECUTIVE_SKIPS:
                    raise SetupProblem(f"`troop {' '.join(words)}` did not come to its first env step.")
                time.sleep(0.01)
            return time.monotonic() - began
        finally:
            troop.terminate()
            troop.wait(60)


def _stepped(metrics: Path) -> bool:
    try:
        lines = metrics.read_text().splitlines()
    except OSError:
        return False
    return any(line.endswith("}") and json.loads(line)["env_steps"] > 0 for line in lines)


def run(engines: tuple[str, ...] = ("processes", "ray"), times: int = 2) -> list[Line]:
    """The better of some starts: the first may have to read everything from the disk."""
    lines = []
    for engine in engines:
        for env, more in (("toy:Chain", ("--env.discrete",)), ("CartPole-v1", ())):
            took = min(first_step(engine, env, *more) for _ in range(times))
            wanted = WANTED[engine]
            lines.append(
                Line(
                    f"first env step, {engine}, {env}",
                    f"{took:.1f} s",
                    f"{wanted:.0f} s",
                    took / wanted,
                    "<= 1",
                )
            )
    return lines
