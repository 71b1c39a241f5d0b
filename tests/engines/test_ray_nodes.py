"""Two machines, one of which is lost: the run goes on with what is left."""

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from clustered import FIRST
from ray_nodes import PORT, Machines, why_not

pytest.importorskip("ray", reason="Ray is not installed: pip install 'trooprl[ray]'")
TELLERS = ("teller0", "teller1")
DRIVER = Path(__file__).with_name("clustered.py")


def until(there, machines, seconds):
    deadline = time.monotonic() + 4 * seconds  # of a quiet machine
    while not there():
        assert machines.running[1].poll() is None or there(), machines.said(1)
        assert time.monotonic() < deadline, machines.said(1)
        time.sleep(0.1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("loss", ["kill", "unplug"])
def test_a_lost_machine_is_noticed_and_its_roles_go_on_elsewhere(loss):
    if reason := why_not():
        pytest.skip(reason)
    with Machines(2) as machines:
        folder = machines.folder
        machines.head(f"{DRIVER} {folder} {machines.address(1)}:{PORT} 6")
        machines.join(2)
        (folder / "go").touch()
        until((folder / "where").exists, machines, 60)
        assert "2" in (folder / "where").read_text().split()
        getattr(machines, loss)(2)
        until((folder / "result").exists, machines, 90)
        told = json.loads((folder / "result").read_text())
    assert told["status"] == "stopped" and told["restarts"] >= 1, told
    assert any("died" in note for note in told["notes"])
    # By us, not by Ray, which takes 65 s to see that a cable is cut.
    assert loss == "kill" or any("did not answer" in note for note in told["notes"]), told["notes"]
    check_order(told)


@pytest.mark.timeout(600)
@pytest.mark.skipif(not os.environ.get("TROOP_LONG_TESTS"), reason="takes minutes; set TROOP_LONG_TESTS=1")
def test_apex_learns_across_machines_and_survives_the_loss_of_one():
    if reason := why_not():
        pytest.skip(reason)
    with Machines(2) as machines:
        folder = machines.folder
        machines.head(f"{DRIVER.with_name('clustered_apex.py')} {folder} {machines.address(1)}:{PORT} 8")
        machines.join(2)
        (folder / "go").touch()
        metrics, summary = folder / "run" / "metrics.jsonl", folder / "run" / "summary.json"
        until(lambda: metrics.exists() and steps(metrics) > 1_500, machines, 200)
        machines.kill(2)
        until(lambda: machines.running[1].poll() is not None, machines, 360)
        told = json.loads(summary.read_text())
    print(told)
    assert told["status"] == "done" and told["restarts"] >= 1
    assert told["target_reached_s"] is not None


def steps(metrics):
    """Env steps in the newest whole line."""
    lines = [
        json.loads(connection)
        for connection in metrics.read_text().splitlines(keepends=True)
        if connection[-1] == "\n"
    ]
    return max([connection.get("env_steps", 0) for connection in lines], default=0)


@pytest.mark.timeout(120)
def test_a_lost_node_of_a_pretended_cluster(tmp_path):
    """Where namespaces are not permitted: Ray's own make-believe, all nodes at one address."""
    if why_not() is None:
        pytest.skip("covered by machines of their own")
    code = f"import clustered_fake; clustered_fake.main({str(tmp_path)!r})"
    environ = {"PYTHONPATH": str(DRIVER.parent), "RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=110, env=os.environ | environ)
    told = json.loads((tmp_path / "result").read_text())
    assert told["status"] == "stopped" and told["restarts"] >= 1, told
    check_order(told)


def check_order(told):
    """Each teller's numbers come one by one; only a death may cut them, or begin them anew."""
    deaths = {name: sum(f"{name} died (" in note for note in told["notes"]) for name in ("keeper", *TELLERS)}
    assert sum(deaths.values()) >= 1
    for name, first in zip(TELLERS, FIRST, strict=True):
        mine = [number for number in told["kept"] if first <= number < first + 1_000_000]
        cuts = [(a, b) for a, b in pairwise(mine) if b != a + 1]
        again = [b for a, b in cuts if b == first]
        assert len(again) <= deaths[name]
        assert len(cuts) - len(again) <= deaths["keeper"] and all(b > a for a, b in cuts if b != first)
