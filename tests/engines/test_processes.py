"""The processes engine under faults; tests/conformance covers normal operation."""

import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from fault_observer import ROLE_METRICS, RecordingObserver, StopWhenLogged, fault_program, process_alive
from fault_roles import FailsToBuild, NumberSender, NumberStore

from troop.core.engine import Until
from troop.core.errors import TrainingFault
from troop.core.program import Program
from troop.engines import Processes

ENGINE = {"threads": 1, "log_s": 0.01, "checkpoint_s": 1e9}
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def pids():
    """Yield a list for the pids of all hosts; assert at the end that no process and no segment is left."""
    segments = set(os.listdir("/dev/shm"))
    process_ids = []
    yield process_ids
    assert set(os.listdir("/dev/shm")) <= segments
    assert not [pid for pid in process_ids if process_alive(pid)]


@pytest.mark.parametrize("victim", ["store", "learner", "sender", "evaluator"])
@pytest.mark.reliability("K1", "T6")
def test_killed_host_is_restarted_and_messages_are_neither_lost_nor_repeated(victim, pids):
    observer = RecordingObserver(pids, victim)
    result = Processes(**ENGINE).run(fault_program(), Until(env_steps=100_000), 0, observer)
    assert result.status == "stopped" and result.counters.restarts == 1
    assert any(victim in note and "SIGKILL" in note for note in observer.notes)
    state = observer.saves[-1]
    numbers = state["store.numbers"]
    steps = [b - a for a, b in pairwise(numbers)]
    if victim == "sender":  # counts from one again after the restart
        restart = numbers.index(1, 1)
        assert numbers[:restart] == list(range(1, restart + 1))
        assert numbers[restart:] == list(range(1, len(numbers) - restart + 1))
    else:
        assert steps == [1] * len(steps)
    assert state["store.restarts"] == (victim == "store")
    # A killed host has not reported its last tenth of a second.
    unreported = len(numbers) - result.counters.env_steps
    assert victim == "store" or 0 <= unreported <= (2000 if victim == "sender" else 0)


@pytest.mark.reliability("K6")
def test_restarted_host_continues_from_the_newest_checkpoint(pids):
    observer = RecordingObserver(pids, "learner", after=300)
    engine = Processes(**ENGINE | {"checkpoint_s": 0.1})
    result = engine.run(fault_program(), Until(env_steps=100_000), 0, observer)
    assert len(observer.saves) > 3 and result.counters.restarts == 1
    lost = result.counters.updates - observer.saves[-1]["learner.updates"]
    assert 0 <= lost < result.counters.updates / 2


@pytest.mark.parametrize(
    "fault, reason", [("abort", "SIGABRT"), ("exit", "exit code 3"), ("raise", "simulator")]
)
@pytest.mark.reliability("K10")
def test_crashed_host_is_restarted_and_named_in_a_note(fault, reason, tmp_path, pids):
    observer = RecordingObserver(pids)
    program = fault_program(fault=fault, marker=str(tmp_path / "once"))
    result = Processes(**ENGINE).run(program, Until(env_steps=150), 0, observer)
    assert result.status == "done" and result.counters.restarts == 1
    assert any("sender" in note and reason in note for note in observer.notes)


@pytest.mark.reliability("S1")
def test_hanging_host_is_reported_with_its_stack_and_restarted(tmp_path, pids):
    observer = RecordingObserver(pids)
    program = fault_program(fault="hang", marker=str(tmp_path / "once"))
    result = Processes(**ENGINE, step_limit_s=1.5).run(program, Until(env_steps=150), 0, observer)
    assert result.counters.restarts == 1
    assert any(
        "sender" in note and "no heartbeat" in note and "hang_for_ever" in note for note in observer.notes
    )


@pytest.mark.reliability("K9")
def test_crash_loop_ends_the_run_with_a_checkpoint_and_the_first_reason(pids):
    observer = RecordingObserver(pids)
    program = fault_program(fault="raise", fault_at=5)
    with pytest.raises(TrainingFault, match=r"sender died 3 times.*OSError: the simulator is gone") as caught:
        Processes(**ENGINE, restarts=2).run(program, Until(env_steps=10**6), 0, observer)
    assert caught.value.exit_code == 4
    assert observer.saves[-1]["store.numbers"] == [1, 2, 3, 4] * 3
    assert observer.saves[-1]["learner.updates"] > 0
    assert any("Traceback" in note and "_fail" in note for note in observer.notes)


def test_role_that_cannot_be_built_ends_the_run_at_once(pids):
    program = Program("broken")
    program.add("fine", NumberStore)
    program.add("broken", FailsToBuild)
    with pytest.raises(TrainingFault, match="broken could not be started: ValueError: no such device"):
        Processes(**ENGINE).run(program, Until(env_steps=10), 0, RecordingObserver(pids))


@pytest.mark.reliability("S3")
def test_full_mailbox_blocks_the_sender_and_loses_nothing(tmp_path, pids):
    gate = tmp_path / "gate"
    program = Program("paused")
    store = program.add("store", NumberStore, str(gate))
    program.add("sender", NumberSender, store, blob=1 << 20, name="sender")

    class OpensGate(RecordingObserver):
        """Records after two seconds how much was sent, then creates the file that unblocks the store."""

        first_log = None

        def log(self, counters, metrics):
            super().log(counters, metrics)
            self.first_log = self.first_log or time.monotonic()
            if time.monotonic() - self.first_log > 2 and not gate.exists():
                self.sent_while_paused = counters.env_steps
                gate.write_text("x")

    observer = OpensGate(pids)
    result = Processes(**ENGINE, mailbox_mb=4).run(program, Until(env_steps=100), 0, observer)
    assert 1 <= observer.sent_while_paused <= 5  # 4 MB and the message that is being handled
    assert observer.saves[-1]["store.numbers"] == list(range(1, result.counters.env_steps + 1))


def test_time_shares_of_each_role_are_logged_and_add_up_to_one(pids):
    observer = StopWhenLogged(pids, ROLE_METRICS)
    result = Processes(**ENGINE).run(fault_program(), Until(minutes=1), 0, observer)
    assert result.status == "stopped", ROLE_METRICS - set(observer.last)
    for name in ("store", "learner", "sender", "evaluator"):
        shares = [observer.last[f"role/{name}/{key}"] for key in ("busy", "waiting", "blocked", "idle")]
        assert all(0 <= share <= 1 for share in shares) and sum(shares) == pytest.approx(1, abs=0.001)


@pytest.mark.reliability("K8")
def test_spawned_hosts_exit_when_the_driver_is_killed(tmp_path, pids):
    """tests/systems/test_lifecycle.py covers hosts of a fork server."""
    command = [sys.executable, str(HERE / "signalled_run.py"), str(tmp_path / "pids"), "spawn"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + 200
        while not (tmp_path / "pids").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        hosts, group = [int(pid) for pid in (tmp_path / "pids").read_text().split()], os.getpgid(process.pid)
        assert len(hosts) == 4 and all(process_alive(pid) for pid in hosts)
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    while any(process_alive(pid) for pid in hosts) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in hosts if process_alive(pid)]
    deadline = time.monotonic() + 30
    while group_exists(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not group_exists(group)  # the helper processes of multiprocessing have exited too


def group_exists(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
