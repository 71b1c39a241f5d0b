"""Seconds from the command `troop train` to the first env step."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from troop.bench.table import BenchResult
from troop.core.errors import SetupProblem

TARGET_S = {"processes": 3.0, "ray": 10.0}
TIMEOUT_S = 120.0
FLAGS = ["--engine.log-s", "0.02", "--system.learning-starts", "100", "--evaluation.seconds", "1000"]


def seconds_to_first_step(engine: str, env: str, *flags: str) -> float:
    """Start `troop train apex-dqn`, wait for its first env step and stop it; SetupProblem after TIMEOUT_S."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        argv = ["train", "apex-dqn", "--env", env, "--engine", engine, "--run", str(run), *FLAGS, *flags]
        start = time.monotonic()
        process = subprocess.Popen([sys.executable, "-m", "troop", *argv], stdout=subprocess.DEVNULL)
        try:
            while not _has_env_steps(run / "metrics.jsonl"):
                if process.poll() is not None or time.monotonic() - start > TIMEOUT_S:
                    raise SetupProblem(f"`troop {' '.join(argv)}` made no env step.")
                time.sleep(0.01)
            return time.monotonic() - start
        finally:
            process.terminate()
            process.wait(60)


def _has_env_steps(metrics: Path) -> bool:
    try:
        lines = metrics.read_text().splitlines()
    except OSError:
        return False
    return any(line.endswith("}") and json.loads(line)["env_steps"] > 0 for line in lines)


def run(engines: tuple[str, ...] = ("processes", "ray"), repeats: int = 2) -> list[BenchResult]:
    """Measure the fastest of some starts: the first may have to read all files from the disk."""
    results = []
    for engine in engines:
        for env, flags in (("toy:Chain", ("--env.discrete",)), ("CartPole-v1", ())):
            seconds = min(seconds_to_first_step(engine, env, *flags) for _ in range(repeats))
            target = TARGET_S[engine]
            results.append(
                BenchResult(
                    f"first env step, {engine}, {env}",
                    f"{seconds:.1f} s",
                    f"{target:.0f} s",
                    seconds / target,
                    "<= 1",
                )
            )
    return results
