"""The Ray engine on two machines, one of which is lost: the run continues on the other."""

import json
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from node_loss_run import FIRST_NUMBERS
from virtual_machines import PORT, VirtualMachines, unsupported_reason

pytest.importorskip("ray", reason="Ray is not installed: pip install 'trooprl[ray]'")
SENDERS = ("sender0", "sender1")
DRIVER = Path(__file__).with_name("node_loss_run.py")


def wait_until(condition, machines, seconds):
    """Wait until `condition()`; fail if the driver exits first, or after four times `seconds`."""
    deadline = time.monotonic() + 4 * seconds
    while not condition():
        assert machines.running[1].poll() is None or condition(), machines.output(1)
        assert time.monotonic() < deadline, machines.output(1)
        time.sleep(0.1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("loss", ["kill", "disconnect"])
@pytest.mark.reliability("P2", "P6")
def test_roles_of_a_lost_machine_restart_on_another(loss):
    if reason := unsupported_reason():
        pytest.skip(reason)
    with VirtualMachines(2) as machines:
        directory = machines.directory
        machines.start_head(f"{DRIVER} {directory} {machines.address(1)}:{PORT} 6")
        machines.join(2)
        (directory / "go").touch()
        wait_until((directory / "machines").exists, machines, 60)
        assert "2" in (directory / "machines").read_text().split()
        getattr(machines, loss)(2)
        wait_until((directory / "result").exists, machines, 90)
        outcome = json.loads((directory / "result").read_text())
    assert outcome["status"] == "stopped" and outcome["restarts"] >= 1, outcome
    assert any("died" in note for note in outcome["notes"])
    # Detected by the driver: Ray itself takes 65 s to notice a lost connection.
    assert loss == "kill" or any("did not respond" in note for note in outcome["notes"]), outcome["notes"]
    check_order(outcome)


@pytest.mark.timeout(600)
@pytest.mark.reliability("P3")
def test_run_continues_over_a_slow_link_that_drops_packets():
    """A kernel without netem still has a token bucket: packets queue, and those that do not fit are lost."""
    if reason := unsupported_reason() or (shutil.which("tc") is None and "throttling requires tc"):
        pytest.skip(reason)
    with VirtualMachines(2) as machines:
        directory = machines.directory
        machines.start_head(f"{DRIVER} {directory} {machines.address(1)}:{PORT} 30")
        machines.join(2)
        (directory / "go").touch()
        wait_until((directory / "machines").exists, machines, 60)
        machines.throttle(2, "2mbit", 20)
        machines.throttle(1, "2mbit", 20)
        before = int((directory / "steps").read_text())
        wait_until(lambda: int((directory / "steps").read_text()) > before + 500, machines, 60)
        wait_until(lambda: machines.dropped_packets(1) + machines.dropped_packets(2) > 0, machines, 60)
        (directory / "stop").touch()
        wait_until((directory / "result").exists, machines, 60)
        outcome = json.loads((directory / "result").read_text())
    assert outcome["status"] == "stopped" and outcome["restarts"] == 0, outcome
    for first in FIRST_NUMBERS:
        numbers = [number for number in outcome["numbers"] if first <= number < first + 1_000_000]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.reliability("P6")
def test_apex_learns_on_two_machines_and_survives_the_loss_of_one():
    if reason := unsupported_reason():
        pytest.skip(reason)
    with VirtualMachines(2) as machines:
        directory = machines.directory
        driver = DRIVER.with_name("node_loss_apex.py")
        machines.start_head(f"{driver} {directory} {machines.address(1)}:{PORT} 8")
        machines.join(2)
        (directory / "go").touch()
        metrics, summary = directory / "run" / "metrics.jsonl", directory / "run" / "summary.json"
        wait_until(lambda: both_step(metrics) and env_steps(metrics) > 1_500, machines, 200)
        machines.kill(2)
        wait_until(lambda: machines.running[1].poll() is not None, machines, 360)
        outcome = json.loads(summary.read_text())
    print(outcome)
    assert outcome["status"] == "done" and outcome["restarts"] >= 1
    assert outcome["target_reached_s"] is not None


@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.reliability("K7", "P6")
def test_workers_on_two_machines_average_gradients_and_restart_as_one_when_one_is_lost():
    if reason := unsupported_reason():
        pytest.skip(reason)
    with VirtualMachines(2) as machines:
        directory = machines.directory
        driver = DRIVER.with_name("node_loss_data_parallel.py")
        machines.start_head(f"{driver} {directory} {machines.address(1)}:{PORT} 8")
        machines.join(2)
        (directory / "go").touch()
        metrics, summary = directory / "run" / "metrics.jsonl", directory / "run" / "summary.json"
        wait_until(lambda: env_steps(metrics) > 10_000, machines, 200)
        before = env_steps(metrics)
        machines.kill(2)
        wait_until(lambda: machines.running[1].poll() is not None, machines, 360)
        outcome = json.loads(summary.read_text())
    print(outcome)
    assert outcome["status"] == "done" and outcome["restarts"] >= 1 and outcome["env_steps"] > before
    assert outcome["target_reached_s"] is not None


@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.reliability("P2", "P6")
def test_polybeast_learns_catch_with_a_runner_on_a_second_machine_that_is_paused():
    """A paused machine keeps its connections open: only the time-out of the driver can tell."""
    pytest.importorskip("envpool")
    if reason := unsupported_reason():
        pytest.skip(reason)
    with VirtualMachines(2) as machines:
        directory = machines.directory
        driver = DRIVER.with_name("node_loss_seed.py")
        machines.start_head(f"{driver} {directory} {machines.address(1)}:{PORT} 8", cpus=8)
        machines.join(2, cpus=8)
        (directory / "go").touch()
        metrics, summary = directory / "run" / "metrics.jsonl", directory / "run" / "summary.json"
        wait_until(lambda: both_step(metrics, "runner") and env_steps(metrics) > 1_500, machines, 200)
        machines.pause(2)
        wait_until(lambda: machines.running[1].poll() is not None, machines, 500)
        outcome = json.loads(summary.read_text())
    print(outcome)
    assert outcome["status"] == "done" and outcome["restarts"] >= 1
    assert outcome["target_reached_s"] is not None


def metric_lines(metrics):
    """Return the complete lines of a metrics file that may not exist yet."""
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    return [json.loads(line) for line in lines if line[-1] == "\n"]


def env_steps(metrics):
    return max([line.get("env_steps", 0) for line in metric_lines(metrics)], default=0)


def both_step(metrics, role="actor"):
    """Return whether both actors have reported steps; the second one starts after training has begun."""
    lines = metric_lines(metrics)
    return all(any(line.get(f"role/{role}{i}/steps_per_s", 0) > 0 for line in lines) for i in range(2))


@pytest.mark.timeout(120)
@pytest.mark.reliability("P6")
def test_roles_of_a_lost_node_restart_in_an_emulated_cluster(tmp_path):
    """Used where namespaces are not permitted: Ray emulates a cluster, all nodes at one address."""
    if unsupported_reason() is None:
        pytest.skip("covered by the test with virtual machines")
    code = f"import node_loss_single_machine; node_loss_single_machine.main({str(tmp_path)!r})"
    environ = {"PYTHONPATH": str(DRIVER.parent), "RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=110, env=os.environ | environ)
    outcome = json.loads((tmp_path / "result").read_text())
    assert outcome["status"] == "stopped" and outcome["restarts"] >= 1, outcome
    check_order(outcome)


def check_order(outcome):
    """Assert that the numbers of each sender are consecutive, except for a gap or a restart at each death."""
    deaths = {
        name: sum(f"{name} died (" in note for note in outcome["notes"]) for name in ("store", *SENDERS)
    }
    assert sum(deaths.values()) >= 1
    for name, first in zip(SENDERS, FIRST_NUMBERS, strict=True):
        numbers = [number for number in outcome["numbers"] if first <= number < first + 1_000_000]
        gaps = [(a, b) for a, b in pairwise(numbers) if b != a + 1]
        restarts = [b for a, b in gaps if b == first]
        assert len(restarts) <= deaths[name]
        assert len(gaps) - len(restarts) <= deaths["store"] and all(b > a for a, b in gaps if b != first)
