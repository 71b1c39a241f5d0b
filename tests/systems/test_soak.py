"""A long run: memory, open files and threads of every process stay constant (`make test-long`)."""

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from host_killer import host_processes

MINUTES = float(os.environ.get("TROOP_SOAK_MINUTES", "20"))
RUN = ["train", "apex-dqn", "--env", "CartPole-v1", "--system.actors", "2", "--replay-capacity", "20000"]
RUN += ["--evaluation.seconds", "20", "--evaluation.episodes", "4", "--engine.checkpoint-s", "30"]


def usage(pid):
    """Resident bytes without pages of files, open files and threads of a process."""
    process = Path(f"/proc/{pid}")
    fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    memory = sum(1024 * int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem"))
    return memory, len(list((process / "fd").iterdir())), int(fields["Threads"])


@pytest.mark.long
@pytest.mark.timeout(60 * (MINUTES + 20))
@pytest.mark.reliability("S7")
def test_memory_files_and_threads_stay_constant(tmp_path):
    pytest.importorskip("envpool")
    command = [sys.executable, "-m", "troop", *RUN, "--minutes", str(2 * MINUTES), "--run", "run"]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environ, start_new_session=True, stdout=subprocess.DEVNULL
    )
    samples = {}  # name: (memory, files, threads) every ten seconds
    try:
        metrics = tmp_path / "run/metrics.jsonl"
        while not (metrics.exists() and "eval/return_mean" in metrics.read_text()):
            assert process.poll() is None
            time.sleep(1)
        end = time.monotonic() + 60 * MINUTES
        while time.monotonic() < end:
            for name, pid in {"launcher": process.pid, **host_processes(process.pid)}.items():
                samples.setdefault(name, []).append(usage(pid))
            assert process.poll() is None
            time.sleep(10)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 3
    finally:
        process.kill()
        process.wait()
    assert len(samples) == 7
    for name, rows in samples.items():
        quarter = len(rows) // 4
        for what, before, after in zip(
            ("memory", "files", "threads"),
            map(statistics.median, zip(*rows[quarter : 2 * quarter], strict=True)),
            map(statistics.median, zip(*rows[-quarter:], strict=True)),
            strict=True,
        ):
            limit = before + 20e6 if what == "memory" else before
            assert after <= limit, f"{what} of {name} grew from {before:,.0f} to {after:,.0f}"
