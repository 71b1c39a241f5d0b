"""What the Ray engine owes when things go wrong (docs/engines/ray.md); its ordinary days: conformance."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from fault_roles import Broken, CheckpointSource, Teller, Threads
from fault_watch import TOLD, Log, Told, alive, troop

from troop import __version__ as troop_version
from troop.core.engine import Until
from troop.core.errors import BadInput, SetupProblem, TrainingFault
from troop.core.program import Program
from troop.engines import Ray
from troop.engines.ray import cluster as on_ray_cluster
from troop.engines.ray import pool as on_ray_crew
from troop.engines.ray.cluster import connected

pytest.importorskip("ray", reason="Ray is not installed: pip install 'trooprl[ray]'")
ENGINE = {"threads": 1, "log_s": 0.01, "checkpoint_s": 1e9}
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def local_ray():
    """One Ray for all tests that need one."""
    with connected("local", insecure=False, seconds=60):
        yield


@pytest.fixture
def pids(local_ray):
    """Of all hosts of a run; none stays behind."""
    found = []
    yield found
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in found) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in found if alive(pid)]


@pytest.mark.parametrize("victim", ["keeper", "learner", "teller"])
def test_a_killed_host_comes_back_and_nothing_is_lost_or_twice(victim, pids):
    log = Log(pids, victim, extend_until=50)
    result = Ray(**ENGINE).run(troop(), Until(env_steps=100_000), 0, log)
    assert result.status == "stopped" and result.counters.restarts == 1
    assert any(f"{victim} died" in note and "Ray worker died" in note for note in log.notes)
    kept, again = log.saves[-1]["keeper.kept"], 0
    if victim == "teller":  # it counts from one again
        again = kept.index(1, 1)
        assert kept[:again] == list(range(1, again + 1))
    assert all(b - a == 1 for a, b in pairwise(kept[again:]))
    assert log.saves[-1]["keeper.cuts"] == (victim == "keeper")


def test_a_learner_goes_on_from_the_newest_checkpoint(pids):
    log = Log(pids, "learner", after=150, extend_until=50)
    result = Ray(**ENGINE | {"checkpoint_s": 0.3}).run(troop(), Until(env_steps=100_000), 0, log)
    assert len(log.saves) > 2 and result.counters.restarts == 1
    assert 0 <= result.counters.updates - log.saves[-1]["learner.updates"] < result.counters.updates


@pytest.mark.parametrize("fault, said", [("abort", "Ray worker died"), ("raise", "simulator is gone")])
def test_a_host_that_crashes_once_is_replaced_and_named(fault, said, tmp_path, pids):
    log = Log(pids)
    program = troop(fault=fault, marker=str(tmp_path / "once"))
    result = Ray(**ENGINE).run(program, Until(env_steps=100), 0, log)
    assert result.status == "done" and result.counters.restarts == 1
    assert any("teller" in note and said in note for note in log.notes)


def test_a_host_that_hangs_is_reported_with_its_stack_and_replaced(tmp_path, pids):
    log = Log(pids)
    program = troop(fault="hang", marker=str(tmp_path / "once"))
    result = Ray(**ENGINE, step_limit_s=4).run(program, Until(env_steps=100), 0, log)
    assert result.counters.restarts == 1
    assert any("no sign of life" in note and "hang_for_ever" in note for note in log.notes)


def test_a_crash_loop_ends_the_run_with_a_checkpoint_and_the_first_reason(pids):
    log = Log(pids)
    with pytest.raises(TrainingFault, match=r"teller died 2 times.*OSError: the simulator is gone") as caught:
        Ray(**ENGINE, restarts=1).run(troop(fault="raise", fault_at=5), Until(env_steps=10**6), 0, log)
    assert caught.value.exit_code == 4 and log.saves[-1]["keeper.kept"] == [1, 2, 3, 4] * 2
    assert any("Traceback" in note and "_fail" in note for note in log.notes)


def test_a_role_that_cannot_be_built_ends_the_run_at_once(pids):
    program = Program("broken")
    program.add("fine", CheckpointSource)
    program.add("broken", Broken)
    with pytest.raises(TrainingFault, match="broken could not be started: ValueError: no such device"):
        Ray(**ENGINE).run(program, Until(env_steps=10), 0, Log(pids))


def test_a_full_mailbox_makes_the_teller_wait_and_nothing_is_lost(tmp_path, pids):
    gate = tmp_path / "gate"
    program = Program("paused")
    program.add(
        "teller", Teller, program.add("keeper", CheckpointSource, str(gate)), blob=1 << 20, name="teller"
    )

    class Opens(Log):
        """Looks for a while at how much was told, then opens the gate."""

        begun = None

        def log(self, counters, metrics):
            super().log(counters, metrics)
            self.begun = self.begun or time.monotonic()
            if time.monotonic() - self.begun > 3 and not gate.exists():
                self.told_while_paused = counters.env_steps
                gate.write_text("x")

    log = Opens(pids)
    result = Ray(**ENGINE, mailbox_mb=4).run(program, Until(env_steps=60), 0, log)
    assert 1 <= log.told_while_paused <= 5  # 4 MB, and the one being kept
    assert log.saves[-1]["keeper.kept"] == list(range(1, result.counters.env_steps + 1))


def test_each_role_tells_how_it_spends_its_time(pids):
    log = Told(pids, TOLD)
    result = Ray(**ENGINE).run(troop(), Until(minutes=1), 0, log)
    assert result.status == "stopped", TOLD - set(log.last)
    for name in ("keeper", "learner", "teller", "judge"):
        shares = [log.last[f"role/{name}/{key}"] for key in ("busy", "waiting", "blocked", "idle")]
        assert all(0 <= share <= 1 for share in shares) and sum(shares) == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_role_has_the_threads_it_was_given_though_torch_was_there_before(threads, pids):
    program = Program("threads")
    program.add("one", Threads)
    log = Told(pids, {"threads/openmp", "threads/torch"})
    Ray(**ENGINE | {"threads": threads}).run(program, Until(minutes=1), 0, log)
    assert log.last["threads/openmp"] == log.last["threads/torch"] == threads


def test_more_than_the_cluster_has_is_a_sentence_and_leaves_nothing(pids):
    import ray

    engine = Ray(**ENGINE, cpus=("teller=5e5",), connect_limit_s=1)
    with pytest.raises(SetupProblem, match=r"no room for 4 hosts.*5e\+05 CPU of 1e\+05") as caught:
        engine.run(troop(), Until(env_steps=10), 0, Log(pids))
    assert caught.value.exit_code == 5
    time.sleep(0.5)
    assert ray.available_resources()["CPU"] == on_ray_cluster.CPUS


@pytest.mark.parametrize(
    "flags, said",
    [
        ({"cpus": ("lerner=2",)}, "no role 'lerner' to place; did you mean 'learner'"),
        ({"cpus": ("learner=many",)}, r"--engine.cpus is 'learner=many'; it must look like"),
        ({"gpus": ("learner=-1",)}, r"--engine.gpus is 'learner=-1'"),
        (
            {"resources": ("learner=1",)},
            r"--engine.resources is 'learner=1'; it must look like role:resource",
        ),
        ({"address": "nowhere"}, r"--engine.address is 'nowhere'; it must be local, auto"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(flags, said):
    with pytest.raises(BadInput, match=said):
        Ray(**ENGINE, **flags).run(troop(), Until(env_steps=10), 0, Log([]))


def test_a_node_with_another_version_is_refused_with_both(pids, monkeypatch):
    monkeypatch.setattr(on_ray_crew, "VERSION", "9.9.9")
    with pytest.raises(SetupProblem, match=r"127\.0\.0\.1 has troop [\d.]+ and this one 9\.9\.9"):
        Ray(**ENGINE).run(troop(), Until(env_steps=10), 0, Log(pids))


def test_a_node_without_token_authentication_is_refused(local_ray):
    import ray

    pool = on_ray_crew.RayPool(troop(), 0, 1, 1.0)
    pool.configure(None, 1.0, secure=True)
    with pytest.raises(SetupProblem, match=r"runs Ray without token authentication.*--engine.insecure"):
        pool._admit(pool.hosts["keeper"], None, troop_version, ray.nodes()[0]["NodeID"], 1, "disabled")


REFUSED = """
from fault_watch import Log, troop
from troop.core.engine import Until
from troop.core.errors import TroopError
from troop.engines import Ray
try:
    engine = Ray(address="{address}", insecure={insecure}, connect_limit_s=3)
    engine.run(troop(), Until(env_steps=1), 0, Log([]))
except TroopError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    "address, insecure, environ, said",
    [
        ("127.0.0.1:9", True, {}, "SetupProblem Nobody answers at --engine.address 127.0.0.1:9"),
        ("ray://127.0.0.1:9", True, {}, "SetupProblem Nobody answers at --engine.address ray://127.0.0.1:9"),
        ("127.0.0.1:9", False, {}, "SetupProblem No Ray token is here: run `ray get-auth-token --generate`"),
        ("local", False, {"RAY_AUTH_MODE": "disabled"}, "BadInput RAY_AUTH_MODE is 'disabled'; unset it"),
    ],
)
def test_strangers_and_silence_are_told_in_one_sentence(address, insecure, environ, said, tmp_path):
    ran = refused(address, insecure, environ, tmp_path)
    assert ran.stdout.startswith(said) and ran.stdout.count("\n") == 1, ran.stderr


def refused(address, insecure, environ, home):
    hidden = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", REFUSED.format(address=address, insecure=insecure)],
        capture_output=True,
        text=True,
        timeout=120,
        env=hidden | environ | {"HOME": str(home), "PYTHONPATH": str(HERE)},
    )


def test_an_address_at_which_nobody_answers_is_given_up_after_its_time(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes calls and says nothing
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        ran = refused(address, True, {}, tmp_path)
    said = f"SetupProblem No Ray cluster could be reached at {address}: no answer for 3 s"
    assert ran.stdout.startswith(said) and ran.stdout.count("\n") == 1 and ran.returncode == 0, ran.stderr


def launched(path):
    """A run on a Ray of its own; returns it and the pids of its hosts."""
    command = [sys.executable, str(HERE / "launched.py"), str(path), "ray"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 200
    while not path.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    if not path.exists():
        process.kill()
        process.wait()
    return process, [int(pid) for pid in path.read_text().split()]


def test_a_killed_launcher_leaves_no_process_behind(tmp_path):
    process, hosts = launched(tmp_path / "pids")
    assert len(hosts) == 3 and all(alive(pid) for pid in hosts)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in hosts) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in hosts if alive(pid)]


def test_a_ctrl_c_at_the_terminal_stops_the_run_in_order(tmp_path):
    process, hosts = launched(tmp_path / "pids")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    said, _ = process.communicate(timeout=30)
    assert said.split()[:2] == ["stopped", "2"] and process.returncode == 0
    assert not [pid for pid in hosts if alive(pid)]


def test_a_wrong_command_says_so_and_leaves_nothing_of_the_ray_that_was_starting(tmp_path):
    mark = f"troop-test-{os.getpid()}-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "troop", "train", "apex-dqn", "--engine", "ray", "--env", "CartPole-v9"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"MARK": mark}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and "did you mean 'CartPole-v1'" in done.stderr
    assert done.stderr.count("\n") == 1
    deadline = time.monotonic() + 10
    while (left := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def _marked(mark):
    """Processes that were started with this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found
