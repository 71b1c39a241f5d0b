"""Links in a run directory: no command writes, truncates or deletes a file outside of it."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

import troop
from troop.api import make_experiment
from troop.cli.main import run
from troop.core.errors import SetupProblem, TroopError
from troop.logs.jsonl import MetricsWriter
from troop.runs import checkpoint, files
from troop.runs.directory import RunDirectory
from troop.suites.plan import task_path


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("links") / "run"
    troop.train("sac", "toy:PointMass", envs=2, env_steps=40, run=path, quiet=True)
    return path


@pytest.fixture
def outside(tmp_path):
    """Files of the user that must not change."""
    folder = tmp_path / "home"
    (folder / "ckpt-000000000001").mkdir(parents=True)
    (folder / "ckpt-000000000002.tmp").mkdir()
    for name in ("thesis.txt", "ckpt-000000000001/data", "ckpt-000000000002.tmp/data"):
        (folder / name).write_text("years of work\n")
    return folder


def contents(folder):
    return {str(path): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


FILES = ["run.lock", "metrics.jsonl", "curve.png", "summary.json", "config.json", "error.txt"]
FOLDERS = ["checkpoints", "videos", "checkpoints/ckpt-000000000099", "checkpoints/ckpt-000000000098.tmp"]
COMMANDS = [["resume", "--env-steps", "80"], ["eval", "--episodes", "2"], ["play", "--steps", "3"]]


@pytest.mark.parametrize("name", [*FILES, *FOLDERS, "videos/policy.mp4"])
def test_commands_leave_the_targets_of_links_alone(template, outside, tmp_path, name, capsys):
    path = Path(shutil.copytree(template, tmp_path / "run"))
    link = path / name
    shutil.rmtree(link) if link.is_dir() else link.unlink(missing_ok=True)
    link.symlink_to(outside if name in FOLDERS else outside / "thesis.txt")
    before = contents(outside)
    for command in COMMANDS:
        code = run([command[0], str(path), *command[1:]])
        error = capsys.readouterr().err
        assert code in ((2, 5) if command[0] != "eval" else (0, 2, 5)), error
        assert code == 0 or len(error.strip().splitlines()) == 1
        if command[0] == "resume":
            assert "link" in error
        assert contents(outside) == before


def test_new_run_refuses_links(outside, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(outside)
    with pytest.raises(TroopError, match="link"):
        RunDirectory.create(tmp_path / "run")
    assert "thesis.txt" in os.listdir(outside)


def test_suite_does_not_write_into_the_targets_of_links(outside, tmp_path, capsys):
    from troop.compare.plan import ComparisonPlan

    config = make_experiment("sac", "toy:PointMass").to_dict()
    ComparisonPlan("toy:PointMass", None, 40, 1, (), (), {}, {"sac": config}).write(outside)
    before = contents(outside)
    (tmp_path / "suite").mkdir()
    content = {"suite": None, "tasks": ["toy:PointMass"], "left_out": {}, "version": 1}
    (tmp_path / "suite" / "suite.json").write_text(json.dumps(content))
    (tmp_path / "suite" / task_path(Path(), "toy:PointMass")).symlink_to(outside)
    assert run(["suite", "--run", str(tmp_path / "suite"), "--recipes", "sac"]) == 2
    assert "is a link" in capsys.readouterr().err
    assert contents(outside) == before


def test_links_that_appear_during_a_run_are_not_followed(outside, tmp_path):
    target, run_folder = outside / "thesis.txt", tmp_path / "run"
    run_folder.mkdir()
    before = contents(outside)
    for name in ("summary.json", f".summary.json.{os.getpid()}.tmp", "results.md", "metrics.jsonl"):
        (run_folder / name).symlink_to(target)
    files.write_json(run_folder / "summary.json", {})
    files.write_text(run_folder / "results.md", "text")
    assert not (run_folder / "summary.json").is_symlink()
    warnings = []
    MetricsWriter(run_folder / "metrics.jsonl", resume=(0, 0), warn=warnings.append).close()
    assert warnings
    (run_folder / "checkpoints").symlink_to(outside)
    with pytest.raises(SetupProblem, match="link"):
        checkpoint.save(run_folder / "checkpoints", {"w": torch.zeros(1)}, {"env_steps": 5})
    assert contents(outside) == before


def test_pipes_do_not_block(template, tmp_path, capsys):
    for name in ("config.json", "metrics.jsonl", "run.lock", "summary.json"):
        path = Path(shutil.copytree(template, tmp_path / name))
        (path / name).unlink()
        os.mkfifo(path / name)
        assert run(["resume", str(path), "--env-steps", "60"]) in (0, 2, 5)
        assert "Traceback" not in capsys.readouterr().err
