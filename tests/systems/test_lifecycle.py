"""Ape-X as a user starts and ends it: one Ctrl-C, two, a second run in its place, a killed launcher."""

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
from besieging import hosts

from troop.cli.main import run as troop
from troop.runs.checkpoint import load_newest
from troop.runs.directory import RunDirectory

pytestmark = pytest.mark.timeout(500)  # three starts, on a machine that may be busy
# A vector step of a second: whoever asks it to stop has time to ask again.
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


class Started:
    """A launcher in a session of its own, and its hosts once all of them work."""

    def __init__(self, *words, folder):
        command = [sys.executable, "-m", "troop", *words]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.hosts = {}

    def wait_until_all_work(self, metrics):
        """Until the run has written two lines of metrics more."""
        lines, deadline = len(written(metrics)), time.monotonic() + 200
        while len(written(metrics)) <= lines + 1 and time.monotonic() < deadline:
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.1)
        self.hosts = hosts(self.process.pid)

    def interrupt(self):
        """As a terminal does: to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def group_left(self, seconds):
        """Whether anything of its group is still there after this time."""
        deadline = time.monotonic() + seconds
        while group_lives(self.process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        return group_lives(self.process.pid)

    def left(self, seconds):
        """Who is still there after this time; returns as soon as nobody is."""
        deadline = time.monotonic() + seconds
        while (found := [pid for pid in self.hosts.values() if lives(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found


def written(metrics):
    return [line for line in metrics.read_text().splitlines() if line] if metrics.exists() else []


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def named(pid):
    """Shared memory with a name that a process holds: it would outlive it."""
    return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/" in line]


def group_lives(group):
    """Whether anything is left of it: hosts have groups of their own, multiprocessing's helpers have not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that is stopped, resumed, stopped at once, resumed and killed; what was seen on the way."""
    folder, seen, started = tmp_path_factory.mktemp("life"), {}, []
    path = folder / "r"

    def start(*words):
        started.append(Started(*words, folder=folder))
        started[-1].wait_until_all_work(path / "metrics.jsonl")
        return started[-1]

    try:
        one = start(*TRAIN, *SMALL, "--run", "r")
        seen["roles"] = set(one.hosts)
        seen["again"] = refused([*TRAIN, *SMALL, "--run", str(path)])
        seen["resumed"], seen["pid"] = refused(["resume", str(path)]), one.process.pid
        one.interrupt()
        seen["once"] = (*one.process.communicate(timeout=150), one.process.returncode, one.left(0.0))
        seen["summary"] = json.loads((path / "summary.json").read_text())
        seen["saved"] = load_newest(path / "checkpoints").info["env_steps"]

        two = start("resume", "r")
        two.interrupt()
        time.sleep(0.2)
        two.interrupt()
        two.process.communicate(timeout=30)
        seen["twice"] = (two.process.returncode, two.left(10.0))

        three = start("resume", "r")
        seen["named"] = [line for pid in three.hosts.values() for line in named(pid)]
        three.process.kill()
        three.process.wait()
        seen["killed"] = (set(three.hosts), three.left(10.0), three.group_left(30.0))
    finally:
        for each in started:
            each.process.kill()
            each.process.wait()
    return path, seen


def refused(words):
    """Exit code and complaint of a command."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = troop(words)
    return code, errors.getvalue()


def test_each_role_is_a_process_of_that_name(run):
    assert run[1]["roles"] == ROLES


def test_a_second_run_in_the_same_directory_is_refused(run):
    path, seen = run
    assert seen["again"] == (2, f"troop: {path} already holds a run; resume it with `troop resume {path}` or "
                                "choose another --run.\n")  # fmt: skip
    code, said = seen["resumed"]
    assert code == 2 and f"is in use by process {seen['pid']}" in said


def test_one_ctrl_c_saves_and_ends_everybody_and_the_run_can_be_resumed(run):
    _, seen = run
    said, errors, code, left = seen["once"]
    assert code == 3 and "troop resume r" in said and "Traceback" not in errors and not left
    assert seen["summary"]["status"] == "stopped" and seen["saved"] > 0


def test_two_of_them_end_it_at_once_and_nobody_stays(run):
    assert run[1]["twice"] == (130, [])


def test_a_killed_launcher_leaves_no_process_no_shared_memory_and_no_lock(run):
    path, seen = run
    assert seen["killed"] == (ROLES, [], False)
    assert not seen["named"]  # all of it goes with the processes that hold it
    with RunDirectory.open(path, lock=True):
        assert load_newest(path / "checkpoints").info["env_steps"] >= seen["saved"]
