"""The Ray engine under faults and with wrong input; tests/conformance covers normal operation."""

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
from fault_observer import ROLE_METRICS, RecordingObserver, StopWhenLogged, fault_program, process_alive
from fault_roles import FailsToBuild, NumberSender, NumberStore, ThreadCounter

from troop import __version__ as troop_version
from troop.core.engine import Until
from troop.core.errors import BadInput, SetupProblem, TrainingFault
from troop.core.program import Program
from troop.engines import Ray
from troop.engines.ray import pool as ray_pool
from troop.engines.ray.cluster import LOCAL_CPUS, ray_connection

pytest.importorskip("ray", reason="Ray is not installed: pip install 'trooprl[ray]'")
ENGINE = {"threads": 1, "log_s": 0.01, "checkpoint_s": 1e9}
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def local_ray():
    """Start one Ray for all tests that need one."""
    with ray_connection("local", insecure=False, seconds=60):
        yield


@pytest.fixture
def pids(local_ray):
    """Yield a list for the process ids of all hosts; assert at the end that all have exited."""
    process_ids = []
    yield process_ids
    assert not survivors(process_ids, seconds=5)


def survivors(pids, seconds):
    """Wait up to `seconds` for processes to exit; return the ids of those that have not."""
    deadline = time.monotonic() + seconds
    while any(process_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [pid for pid in pids if process_alive(pid)]


@pytest.mark.parametrize("victim", ["store", "learner", "sender"])
@pytest.mark.reliability("K1")
def test_killed_host_is_restarted_and_messages_are_neither_lost_nor_repeated(victim, pids):
    observer = RecordingObserver(pids, victim, steps_after_restart=50)
    result = Ray(**ENGINE).run(fault_program(), Until(env_steps=100_000), 0, observer)
    assert result.status == "stopped" and result.counters.restarts == 1
    assert any(f"{victim} died" in note and "Ray worker died" in note for note in observer.notes)
    numbers, restart = observer.saves[-1]["store.numbers"], 0
    if victim == "sender":  # counts from one again after the restart
        restart = numbers.index(1, 1)
        assert numbers[:restart] == list(range(1, restart + 1))
    assert all(b - a == 1 for a, b in pairwise(numbers[restart:]))
    assert observer.saves[-1]["store.restarts"] == (victim == "store")


@pytest.mark.reliability("K6")
def test_restarted_learner_continues_from_the_newest_checkpoint(pids):
    observer = RecordingObserver(pids, "learner", after=150, steps_after_restart=50)
    result = Ray(**ENGINE | {"checkpoint_s": 0.3}).run(fault_program(), Until(env_steps=100_000), 0, observer)
    assert len(observer.saves) > 2 and result.counters.restarts == 1
    assert 0 <= result.counters.updates - observer.saves[-1]["learner.updates"] < result.counters.updates


@pytest.mark.parametrize("fault, reason", [("abort", "Ray worker died"), ("raise", "simulator is gone")])
@pytest.mark.reliability("K10")
def test_crashed_host_is_restarted_and_named_in_a_note(fault, reason, tmp_path, pids):
    observer = RecordingObserver(pids)
    program = fault_program(fault=fault, marker=str(tmp_path / "once"))
    result = Ray(**ENGINE).run(program, Until(env_steps=100), 0, observer)
    assert result.status == "done" and result.counters.restarts == 1
    assert any("sender" in note and reason in note for note in observer.notes)


@pytest.mark.reliability("S1")
def test_hanging_host_is_reported_with_its_stack_and_restarted(tmp_path, pids):
    observer = RecordingObserver(pids)
    program = fault_program(fault="hang", marker=str(tmp_path / "once"))
    result = Ray(**ENGINE, step_limit_s=4).run(program, Until(env_steps=100), 0, observer)
    assert result.counters.restarts == 1
    assert any("no heartbeat" in note and "hang_for_ever" in note for note in observer.notes)


@pytest.mark.reliability("K9")
def test_crash_loop_ends_the_run_with_a_checkpoint_and_the_first_reason(pids):
    observer = RecordingObserver(pids)
    with pytest.raises(TrainingFault, match=r"sender died 2 times.*OSError: the simulator is gone") as caught:
        Ray(**ENGINE, restarts=1).run(
            fault_program(fault="raise", fault_at=5), Until(env_steps=10**6), 0, observer
        )
    assert caught.value.exit_code == 4 and observer.saves[-1]["store.numbers"] == [1, 2, 3, 4] * 2
    assert any("Traceback" in note and "_fail" in note for note in observer.notes)


def test_role_that_cannot_be_built_ends_the_run_at_once(pids):
    program = Program("broken")
    program.add("fine", NumberStore)
    program.add("broken", FailsToBuild)
    with pytest.raises(TrainingFault, match="broken could not be started: ValueError: no such device"):
        Ray(**ENGINE).run(program, Until(env_steps=10), 0, RecordingObserver(pids))


@pytest.mark.reliability("S3")
def test_full_mailbox_blocks_the_sender_and_loses_nothing(tmp_path, pids):
    gate = tmp_path / "gate"
    program = Program("paused")
    program.add(
        "sender", NumberSender, program.add("store", NumberStore, str(gate)), blob=1 << 20, name="sender"
    )

    class OpensGate(RecordingObserver):
        """Records after three seconds how much was sent, then creates the file that unblocks the store."""

        first_log = None

        def log(self, counters, metrics):
            super().log(counters, metrics)
            self.first_log = self.first_log or time.monotonic()
            if time.monotonic() - self.first_log > 3 and not gate.exists():
                self.sent_while_blocked = counters.env_steps
                gate.write_text("x")

    observer = OpensGate(pids)
    result = Ray(**ENGINE, mailbox_mb=4).run(program, Until(env_steps=60), 0, observer)
    assert 1 <= observer.sent_while_blocked <= 5  # 4 MB in the mailbox, and the message being handled
    assert observer.saves[-1]["store.numbers"] == list(range(1, result.counters.env_steps + 1))


def test_every_role_reports_how_it_spends_its_time(pids):
    observer = StopWhenLogged(pids, ROLE_METRICS)
    result = Ray(**ENGINE).run(fault_program(), Until(minutes=1), 0, observer)
    assert result.status == "stopped", ROLE_METRICS - set(observer.last)
    for name in ("store", "learner", "sender", "evaluator"):
        shares = [observer.last[f"role/{name}/{key}"] for key in ("busy", "waiting", "blocked", "idle")]
        assert all(0 <= share <= 1 for share in shares) and sum(shares) == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize("threads", [1, 2])
def test_role_uses_the_configured_threads_although_workers_preload_torch(threads, pids):
    program = Program("threads")
    program.add("one", ThreadCounter)
    observer = StopWhenLogged(pids, {"threads/openmp", "threads/torch"})
    Ray(**ENGINE | {"threads": threads}).run(program, Until(minutes=1), 0, observer)
    assert observer.last["threads/openmp"] == observer.last["threads/torch"] == threads


def test_request_beyond_the_cluster_is_rejected_and_releases_its_reservation(pids):
    import ray

    engine = Ray(**ENGINE, cpus=("sender=5e5",), connect_limit_s=1)
    with pytest.raises(SetupProblem, match=r"could not place 4 hosts.*5e\+05 CPU of 1e\+05") as caught:
        engine.run(fault_program(), Until(env_steps=10), 0, RecordingObserver(pids))
    assert caught.value.exit_code == 5
    time.sleep(0.5)
    assert ray.available_resources()["CPU"] == LOCAL_CPUS


@pytest.mark.parametrize(
    "flags, text",
    [
        ({"cpus": ("lerner=2",)}, "no role 'lerner' to reserve resources for; did you mean 'learner'"),
        ({"cpus": ("learner=many",)}, r"--engine.cpus is 'learner=many'; it must look like"),
        ({"gpus": ("learner=-1",)}, r"--engine.gpus is 'learner=-1'"),
        (
            {"resources": ("learner=1",)},
            r"--engine.resources is 'learner=1'; it must look like role:resource",
        ),
        ({"address": "nowhere"}, r"--engine.address is 'nowhere'; it must be local, auto"),
    ],
)
def test_bad_input_is_rejected_before_anything_starts(flags, text):
    with pytest.raises(BadInput, match=text):
        Ray(**ENGINE, **flags).run(fault_program(), Until(env_steps=10), 0, RecordingObserver([]))


@pytest.mark.reliability("P7")
def test_node_with_another_version_is_rejected_with_both_versions(pids, monkeypatch):
    monkeypatch.setattr(ray_pool, "VERSION", "9.9.9")
    with pytest.raises(SetupProblem, match=r"127\.0\.0\.1 has troop [\d.]+ and this machine has 9\.9\.9"):
        Ray(**ENGINE).run(fault_program(), Until(env_steps=10), 0, RecordingObserver(pids))


@pytest.mark.reliability("X11", "X13")
def test_node_without_token_authentication_is_rejected(local_ray):
    import ray

    pool = ray_pool.RayPool(fault_program(), 0, 1, 1.0)
    pool.configure(None, 1.0, secure=True)
    with pytest.raises(SetupProblem, match=r"runs Ray without token authentication.*--engine.insecure"):
        pool._admit(pool.hosts["store"], None, troop_version, ray.nodes()[0]["NodeID"], "disabled")


@pytest.mark.reliability("X6")
def test_local_ray_accepts_connections_only_from_this_machine(local_ray):
    import psutil
    import ray

    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    ours = {process.pid for process in psutil.Process().children(recursive=True)}
    open_to_all = [
        connection.laddr
        for connection in psutil.net_connections("inet")
        if connection.pid in ours and connection.status == psutil.CONN_LISTEN
        and not connection.laddr.ip.startswith(("127.", "::1", "::ffff:127."))
    ]  # fmt: skip
    assert not open_to_all


RUN_ONCE = """
from fault_observer import RecordingObserver, fault_program
from troop.core.engine import Until
from troop.core.errors import TroopError
from troop.engines import Ray
try:
    engine = Ray(address="{address}", insecure={insecure}, connect_limit_s=3)
    engine.run(fault_program(), Until(env_steps=1), 0, RecordingObserver([]))
except TroopError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    "address, insecure, environ, text",
    [
        ("127.0.0.1:9", True, {}, "SetupProblem Could not connect to --engine.address 127.0.0.1:9"),
        (
            "ray://127.0.0.1:9",
            True,
            {},
            "SetupProblem Could not connect to --engine.address ray://127.0.0.1:9",
        ),
        (
            "127.0.0.1:9",
            False,
            {},
            "SetupProblem This machine has no Ray token: run `ray get-auth-token --generate`",
        ),
        ("local", False, {"RAY_AUTH_MODE": "disabled"}, "BadInput RAY_AUTH_MODE is 'disabled'; unset it"),
    ],
)
@pytest.mark.reliability("X13")
def test_failed_connection_is_reported_in_one_sentence(address, insecure, environ, text, tmp_path):
    process = run_once(address, insecure, environ, tmp_path)
    assert process.stdout.startswith(text) and process.stdout.count("\n") == 1, process.stderr


def run_once(address, insecure, environ, home):
    """Run a short program in a process without Ray's environment variables; it prints the error."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", RUN_ONCE.format(address=address, insecure=insecure)],
        capture_output=True,
        text=True,
        timeout=120,
        env=inherited | environ | {"HOME": str(home), "PYTHONPATH": str(HERE)},
    )


@pytest.mark.reliability("P2")
def test_silent_address_is_given_up_after_the_connect_limit(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never responds
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        process = run_once(address, True, {}, tmp_path)
    text = f"SetupProblem Could not connect to the Ray cluster at --engine.address {address}: no response"
    assert process.stdout.startswith(f"{text} for 3 s") and process.stdout.count("\n") == 1, process.stderr
    assert process.returncode == 0


def launch(path):
    """Start a run with a local Ray; return its process and the process ids of its hosts."""
    command = [sys.executable, str(HERE / "signalled_run.py"), str(path), "ray"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 200
    while not path.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    if not path.exists():
        process.kill()
        process.wait()
    return process, [int(pid) for pid in path.read_text().split()]


@pytest.mark.reliability("K8")
def test_hosts_exit_when_the_driver_is_killed(tmp_path):
    process, hosts = launch(tmp_path / "pids")
    assert len(hosts) == 3 and all(process_alive(pid) for pid in hosts)
    process.kill()
    process.wait()
    assert not survivors(hosts, seconds=10)


@pytest.mark.reliability("T1")
def test_ctrl_c_stops_the_run_with_a_checkpoint(tmp_path):
    process, hosts = launch(tmp_path / "pids")
    os.killpg(process.pid, signal.SIGINT)  # to the whole process group, as a terminal does
    output, _ = process.communicate(timeout=30)
    assert output.split()[:2] == ["stopped", "2"] and process.returncode == 0
    assert not [pid for pid in hosts if process_alive(pid)]


def test_wrong_command_line_fails_and_kills_the_ray_that_was_starting(tmp_path):
    mark = f"troop-test-{os.getpid()}-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "troop", "train", "apex-dqn", "--engine", "ray", "--env", "CartPole-v9"]
    process = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"MARK": mark}, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 2 and "did you mean 'CartPole-v1'" in process.stderr
    assert process.stderr.count("\n") == 1
    deadline = time.monotonic() + 10
    while (remaining := processes_with_environment(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not remaining


def processes_with_environment(text):
    """Return the ids of the processes whose environment contains `text`."""
    pids = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text.encode() in (directory / "environ").read_bytes():
                pids.append(int(directory.name))
    return pids
