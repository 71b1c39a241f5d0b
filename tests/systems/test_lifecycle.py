"""Ape-X started and ended by a user: one Ctrl-C, two, a second run in its directory, a killed launcher."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from host_killer import host_processes

from troop.cli.main import run as troop
from troop.runs.checkpoint import load_newest
from troop.runs.directory import RunDirectory

pytestmark = pytest.mark.timeout(500)  # three starts, on a machine that may be busy
# A vector step takes a second, so that a second Ctrl-C arrives before the run has stopped.
TRAIN = ["train", "apex-dqn", "--env", "toy:Sleepy", "--env.discrete", "--env.seconds", "1", "--envs", "2"]
SMALL = [
    "--system.actors",
    "2",
    "--system.learning-starts",
    "10",
    "--evaluation.episodes",
    "2",
    "--minutes",
    "20",
]
ROLES = {"actor0", "actor1", "replay", "learner", "weights", "evaluator"}


class Launcher:
    """A `troop` process in a session of its own, and its hosts once all of them work."""

    def __init__(self, *args, directory):
        command = [sys.executable, "-m", "troop", *args]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, cwd=directory, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.hosts = {}

    def wait_until_all_work(self, metrics):
        """Wait until the run has written two more lines of metrics."""
        lines, deadline = count_lines(metrics), time.monotonic() + 200
        while count_lines(metrics) <= lines + 1 and time.monotonic() < deadline:
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.1)
        self.hosts = host_processes(self.process.pid)

    def interrupt(self):
        """Send SIGINT to the whole process group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def group_remains(self, seconds):
        """Whether a process of its group is left after this time."""
        deadline = time.monotonic() + seconds
        while group_exists(self.process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        return group_exists(self.process.pid)

    def remaining_hosts(self, seconds):
        """Return the hosts that are left after this time; returns at once when none is."""
        deadline = time.monotonic() + seconds
        while (pids := [pid for pid in self.hosts.values() if is_alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return pids


def count_lines(metrics):
    return sum(bool(line) for line in metrics.read_text().splitlines()) if metrics.exists() else 0


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def named_shared_memory(pid):
    """Return the mappings of shared memory with a name, which would outlive the process."""
    return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/" in line]


def group_exists(group):
    """Whether the process group has members: helpers of multiprocessing stay in it, hosts do not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that is interrupted, resumed, interrupted twice, resumed and killed; and what was observed."""
    directory, observed, launchers = tmp_path_factory.mktemp("life"), {}, []
    path = directory / "r"

    def start(*args):
        launchers.append(Launcher(*args, directory=directory))
        launchers[-1].wait_until_all_work(path / "metrics.jsonl")
        return launchers[-1]

    try:
        one = start(*TRAIN, *SMALL, "--run", "r")
        observed["roles"], observed["pid"] = set(one.hosts), one.process.pid
        observed["second_train"] = run_command([*TRAIN, *SMALL, "--run", str(path)])
        observed["second_resume"] = run_command(["resume", str(path)])
        one.interrupt()
        stdout, stderr = one.process.communicate(timeout=150)
        observed["one_interrupt"] = (stdout, stderr, one.process.returncode, one.remaining_hosts(0.0))
        observed["summary"] = json.loads((path / "summary.json").read_text())
        observed["saved_steps"] = load_newest(path / "checkpoints").info["env_steps"]

        two = start("resume", "r")
        two.interrupt()
        time.sleep(0.2)
        two.interrupt()
        two.process.communicate(timeout=30)
        observed["two_interrupts"] = (two.process.returncode, two.remaining_hosts(10.0))
        observed["two_status"] = json.loads((path / "summary.json").read_text())["status"]

        three = start("resume", "r")
        observed["named_memory"] = [line for pid in three.hosts.values() for line in named_shared_memory(pid)]
        three.process.kill()
        three.process.wait()
        observed["killed"] = (set(three.hosts), three.remaining_hosts(10.0), three.group_remains(30.0))
    finally:
        for launcher in launchers:
            launcher.process.kill()
            launcher.process.wait()
    return path, observed


def run_command(args):
    """Return the exit code and the error output of a command."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = troop(args)
    return code, errors.getvalue()


def test_each_role_is_a_process_of_that_name(run):
    assert run[1]["roles"] == ROLES


@pytest.mark.reliability("F6")
def test_second_run_in_the_same_directory_is_rejected(run):
    path, observed = run
    message = (
        f"troop: {path} already holds a run; resume it with `troop resume {path}` or choose another --run.\n"
    )
    assert observed["second_train"] == (2, message)
    code, error = observed["second_resume"]
    assert code == 2 and f"is in use by process {observed['pid']}" in error


@pytest.mark.reliability("T1")
def test_one_ctrl_c_saves_a_resumable_run_and_ends_all_hosts(run):
    _, observed = run
    stdout, stderr, code, remaining = observed["one_interrupt"]
    assert code == 3 and "troop resume r" in stdout and "Traceback" not in stderr and not remaining
    assert observed["summary"]["status"] == "stopped" and observed["saved_steps"] > 0


@pytest.mark.reliability("T2")
def test_two_ctrl_c_end_the_run_at_once_with_all_hosts(run):
    assert run[1]["two_interrupts"] == (130, [])
    assert run[1]["two_status"] == "stopped"


@pytest.mark.reliability("K8", "S8", "T6")
def test_killed_launcher_leaves_no_process_no_shared_memory_and_no_lock(run):
    path, observed = run
    assert observed["killed"] == (ROLES, [], False)
    assert not observed["named_memory"]
    with RunDirectory.open(path, lock=True):
        assert load_newest(path / "checkpoints").info["env_steps"] >= observed["saved_steps"]
