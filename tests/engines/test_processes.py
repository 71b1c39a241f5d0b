"""What the processes engine owes when things go wrong (docs/architecture.md)."""

import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from fault_roles import Broken, CheckpointSource, Teller
from fault_watch import TOLD, Log, Told, alive, troop

from troop.core.engine import Until
from troop.core.errors import TrainingFault
from troop.core.program import Program
from troop.engines import Processes

ENGINE = {"threads": 1, "log_s": 0.01, "checkpoint_s": 1e9}
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def nothing_left():
    """No segment and no process of ours stays behind."""
    before = set(os.listdir("/dev/shm"))
    pids = []
    yield pids
    assert set(os.listdir("/dev/shm")) <= before
    assert not [pid for pid in pids if alive(pid)]


@pytest.mark.parametrize("victim", ["keeper", "learner", "teller", "judge"])
def test_a_killed_host_comes_back_and_the_run_goes_on(victim, nothing_left):
    log = Log(nothing_left, victim)
    result = Processes(**ENGINE).run(troop(), Until(env_steps=100_000), 0, log)
    assert result.status == "stopped" and result.counters.restarts == 1
    assert any(victim in note and "SIGKILL" in note for note in log.notes)
    state = log.saves[-1]
    kept = state["keeper.kept"]
    steps = [b - a for a, b in pairwise(kept)]
    if victim == "teller":  # it counts from one again, and nothing it told before is lost or twice
        again = kept.index(1, 1)
        assert kept[:again] == list(range(1, again + 1)) and kept[again:] == list(
            range(1, len(kept) - again + 1)
        )
    else:
        assert steps == [1] * len(steps)
    assert state["keeper.cuts"] == (victim == "keeper")
    # What a host did in its last tenth of a second it did not live to report.
    assert victim == "keeper" or 0 <= len(kept) - result.counters.env_steps <= (
        2000 if victim == "teller" else 0
    )


def test_a_host_goes_on_from_the_newest_checkpoint(nothing_left):
    log = Log(nothing_left, "learner", after=300)
    result = Processes(**ENGINE | {"checkpoint_s": 0.1}).run(troop(), Until(env_steps=100_000), 0, log)
    assert len(log.saves) > 3 and result.counters.restarts == 1
    lost = result.counters.updates - log.saves[-1]["learner.updates"]
    assert 0 <= lost < result.counters.updates / 2


@pytest.mark.parametrize(
    "fault, said", [("abort", "SIGABRT"), ("exit", "exit code 3"), ("raise", "simulator")]
)
def test_a_host_that_crashes_once_is_replaced_and_named(fault, said, tmp_path, nothing_left):
    log = Log(nothing_left)
    program = troop(fault=fault, marker=str(tmp_path / "once"))
    result = Processes(**ENGINE).run(program, Until(env_steps=150), 0, log)
    assert result.status == "done" and result.counters.restarts == 1
    assert any("teller" in note and said in note for note in log.notes)


def test_a_host_that_hangs_is_reported_with_its_stack_and_replaced(tmp_path, nothing_left):
    log = Log(nothing_left)
    program = troop(fault="hang", marker=str(tmp_path / "once"))
    result = Processes(**ENGINE, step_limit_s=1.5).run(program, Until(env_steps=150), 0, log)
    assert result.counters.restarts == 1
    assert any(
        "teller" in note and "no sign of life" in note and "hang_for_ever" in note for note in log.notes
    )


def test_a_crash_loop_ends_the_run_with_a_checkpoint_and_the_first_reason(nothing_left):
    log = Log(nothing_left)
    with pytest.raises(TrainingFault, match=r"teller died 3 times.*OSError: the simulator is gone") as caught:
        Processes(**ENGINE, restarts=2).run(troop(fault="raise", fault_at=5), Until(env_steps=10**6), 0, log)
    assert caught.value.exit_code == 4
    assert log.saves[-1]["keeper.kept"] == [1, 2, 3, 4] * 3 and log.saves[-1]["learner.updates"] > 0
    assert any("Traceback" in note and "_fail" in note for note in log.notes)


def test_a_role_that_cannot_be_built_ends_the_run_at_once(nothing_left):
    program = Program("broken")
    program.add("fine", CheckpointSource)
    program.add("broken", Broken)
    with pytest.raises(TrainingFault, match="broken could not be started: ValueError: no such device"):
        Processes(**ENGINE).run(program, Until(env_steps=10), 0, Log(nothing_left))


def test_a_full_mailbox_makes_the_teller_wait_and_nothing_is_lost(tmp_path, nothing_left):
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
            if time.monotonic() - self.begun > 2 and not gate.exists():
                self.told_while_paused = counters.env_steps
                self.blocked = self.last.get("role/teller/blocked", 0)
                gate.write_text("x")

    log = Opens(nothing_left)
    result = Processes(**ENGINE, mailbox_mb=4).run(program, Until(env_steps=100), 0, log)
    assert 1 <= log.told_while_paused <= 5  # 4 MB, and the one being kept
    assert log.saves[-1]["keeper.kept"] == list(range(1, result.counters.env_steps + 1))


def test_each_role_tells_how_it_spends_its_time(nothing_left):
    log = Told(nothing_left, TOLD)
    result = Processes(**ENGINE).run(troop(), Until(minutes=1), 0, log)
    assert result.status == "stopped", TOLD - set(log.last)
    for name in ("keeper", "learner", "teller", "judge"):
        shares = [log.last[f"role/{name}/{key}"] for key in ("busy", "waiting", "blocked", "idle")]
        assert all(0 <= share <= 1 for share in shares) and sum(shares) == pytest.approx(1, abs=0.001)


def test_a_killed_launcher_leaves_no_process_behind(tmp_path, nothing_left):
    """Of spawned hosts; those of a fork server: tests/systems/test_lifecycle.py."""
    command = [sys.executable, str(HERE / "launched.py"), str(tmp_path / "pids"), "spawn"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + 200
        while not (tmp_path / "pids").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        pids, group = [int(pid) for pid in (tmp_path / "pids").read_text().split()], os.getpgid(process.pid)
        assert len(pids) == 4 and all(alive(pid) for pid in pids)
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if alive(pid)]
    deadline = time.monotonic() + 30
    while group_lives(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not group_lives(group)  # nor of multiprocessing's own


def group_lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
