"""Run directories of every released format can be evaluated, resumed and loaded, for ever."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import troop
from troop.cli.main import run

ROOT = Path(__file__).parent
RUNS = sorted(path.parent for path in ROOT.glob("*/*/config.json"))


def test_every_release_has_golden_runs():
    assert {path.parent.name for path in RUNS} >= {"0.1.0"} and len(RUNS) >= 3
    size = sum(path.stat().st_size for path in ROOT.rglob("*") if path.is_file())
    assert size < 500_000 * len({path.parent for path in RUNS})


@pytest.mark.reliability("R6")
@pytest.mark.parametrize("golden", RUNS, ids=lambda path: str(path.relative_to(ROOT)))
def test_golden_run_is_loaded_evaluated_and_resumed(golden, tmp_path):
    path = Path(shutil.copytree(golden, tmp_path / "run"))
    expected = json.loads((path / "expected.json").read_text())
    action = troop.load_policy(path)(torch.tensor(expected["obs"]))
    assert torch.allclose(action.float(), torch.tensor(expected["action"]).float(), atol=1e-4)
    before = json.loads((path / "summary.json").read_text())
    assert run(["eval", str(path), "--episodes", "2"]) == 0
    summary = troop.resume(path, env_steps=before["env_steps"] + 20, quiet=True)
    assert summary.status == "done" and summary.env_steps >= before["env_steps"] + 20
    assert summary.updates >= before["updates"]
    old = (golden / "metrics.jsonl").read_text().splitlines()
    assert (path / "metrics.jsonl").read_text().splitlines()[: len(old)] == old
