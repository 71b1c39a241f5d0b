"""Two runs with many processes at the same time on one machine, and the ports that they open."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

RUN = ["train", "apex-dqn", "--env", "toy:Chain", "--env.discrete", "--envs", "2", "--system.actors", "2"]
RUN += ["--evaluation.episodes", "2", "--evaluation.env-steps", "1000", "--learning-starts", "10"]
RUN += ["--env-steps", "3000"]


@pytest.mark.timeout(280)
@pytest.mark.reliability("P5", "X6", "T4")
def test_two_runs_at_once_both_end_and_open_no_port(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "troop", *RUN, "--run", name, "--seed", name[-1]],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("run1", "run2")
    ]
    listening, hosts = set(), 0
    while any(process.poll() is None for process in processes):
        for process in processes:
            found, ports = descendants(process.pid)
            hosts, listening = max(hosts, found), listening | ports
        time.sleep(0.2)
    for name, process in zip(("run1", "run2"), processes, strict=True):
        output, _ = process.communicate()
        assert process.returncode == 0, output
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert summary["status"] == "done" and summary["env_steps"] >= 3000 and summary["restarts"] == 0
    assert hosts >= 6 and not listening


def descendants(pid):
    """The number of processes of a launcher, and the addresses on which they accept connections."""
    try:
        launcher = psutil.Process(pid)
        processes = [launcher, *launcher.children(recursive=True)]
    except psutil.Error:
        return 0, set()
    ports = set()
    for process in processes:
        try:
            connections = process.net_connections("inet")
        except (psutil.Error, OSError):  # it has ended
            continue
        ports |= {c.laddr for c in connections if c.status == psutil.CONN_LISTEN}
    return len(processes), ports
