"""The run directory: files, errors, lock, config.json, summary.json and curve.png."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from troop.core.errors import BadInput, SetupProblem
from troop.runs import curve
from troop.runs.directory import RunDirectory, default_path
from troop.runs.summary import Summary


def test_create_open_and_read_config(tmp_path):
    path = tmp_path / "deep" / "run"
    with RunDirectory.create(path) as run:
        run.write_config({"env": {"id": "x"}, "seed": 1})
        assert run.checkpoints.is_dir() and run.videos.is_dir()
        assert RunDirectory.open(path).read_config() == {
            "env": {"id": "x"},
            "seed": 1,
        }  # reading needs no lock
        (run.checkpoints / "ckpt-000000000000").mkdir()
    with pytest.raises(
        BadInput, match=r"already holds a run; resume it with `troop resume .*run` or choose another"
    ):
        RunDirectory.create(path)
    RunDirectory.open(path, lock=True).close()


def test_directory_of_a_failed_start_can_be_used_again(tmp_path):
    """Whatever a start writes before its first checkpoint, also one that was killed."""
    RunDirectory.create(tmp_path / "run").close()
    with RunDirectory.create(tmp_path / "run") as run:
        run.write_config({"seed": 1})
        Summary("failed").write(run.path)
        run.metrics.touch()
        (run.checkpoints / "ckpt-000000000000.tmp").mkdir()
        for name in ("error.txt", "events.out.tfevents.1.host.2.0", ".config.json.77.tmp"):
            (run.path / name).write_text("old")
    with RunDirectory.create(tmp_path / "run") as run:
        assert {path.name for path in run.path.iterdir()} == {"checkpoints", "videos", "run.lock"}


@pytest.mark.parametrize("sign", ["metrics", "checkpoint", "other"])
def test_directory_of_a_run_that_has_begun_is_not_used_again(tmp_path, sign):
    with RunDirectory.create(tmp_path / "run") as run:
        run.write_config({"seed": 1})
        if sign == "metrics":
            run.metrics.write_text("{}\n")
        elif sign == "checkpoint":
            (run.checkpoints / "ckpt-000000000000").mkdir()
        else:
            (run.path / "my_notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match="already holds a run"):
        RunDirectory.create(tmp_path / "run")
    assert sorted(tmp_path.rglob("*")) == before


def test_directory_with_other_files_is_rejected_and_not_changed(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BadInput, match="not empty and holds no run"):
        RunDirectory.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(BadInput, match="is a file"):
        RunDirectory.create(tmp_path / "thesis.tex")
    with pytest.raises(SetupProblem, match="choose another --run"):
        RunDirectory.create(tmp_path / "thesis.tex" / "run")
    for invalid in ("a\0b", ""):
        with pytest.raises(BadInput, match="--run"):
            RunDirectory.create(invalid)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
@pytest.mark.reliability("F5")
def test_read_only_disk_is_a_setup_problem(tmp_path, monkeypatch, code):
    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    run = RunDirectory.create(tmp_path / "run")
    monkeypatch.setattr(os, "mkdir", fail)
    with pytest.raises(SetupProblem, match="not writable"):
        RunDirectory.create(tmp_path / "other")
    monkeypatch.setattr("builtins.open", fail)
    with pytest.raises(SetupProblem, match="not writable"):
        run.write_config({})


@pytest.mark.reliability("F5")
def test_removed_directory_is_reported(tmp_path):
    run = RunDirectory.create(tmp_path / "run")
    os.rename(tmp_path / "run", tmp_path / "moved")
    with pytest.raises(SetupProblem, match="does not exist"):
        run.write_config({})
    with pytest.raises(BadInput, match="not a run directory: it does not exist"):
        RunDirectory.open(tmp_path / "run")
    with pytest.raises(BadInput, match=r"has no config\.json"):
        RunDirectory.open(tmp_path / "moved")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_damaged_config_is_bad_input(tmp_path, content):
    with RunDirectory.create(tmp_path / "run") as run:
        (run.path / "config.json").write_bytes(content)
        with pytest.raises(BadInput, match=r"config\.json is damaged"):
            RunDirectory.open(run.path).read_config()


def test_failed_write_keeps_the_old_config(tmp_path, monkeypatch):
    with RunDirectory.create(tmp_path / "run") as run:
        run.write_config({"a": 1})
        monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(SetupProblem, match="disk is full"):
            run.write_config({"a": 2})
        assert run.read_config() == {"a": 1}
        assert not list(run.path.glob(".*"))


LOCK_HOLDER = """
import sys, time
from troop.runs.directory import RunDirectory
run = RunDirectory.open(sys.argv[1], lock=True)
print("locked", flush=True)
time.sleep(60)
"""


@pytest.mark.reliability("F6")
def test_second_process_is_rejected_until_the_first_is_killed(tmp_path):
    with RunDirectory.create(tmp_path / "run") as run:
        run.write_config({})
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK_HOLDER, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(BadInput, match=f"in use by process {holder.pid} on "):
            RunDirectory.open(run.path, lock=True)
        RunDirectory.open(run.path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    RunDirectory.open(run.path, lock=True).close()


def test_default_path_is_safe_and_unused(tmp_path):
    path = default_path("fast-td3", "ALE/Pong-v5", 3, tmp_path)
    assert path.parent == tmp_path and path.name.startswith("fast-td3-ALE_Pong-v5-3-2")
    assert default_path("a", "b", 0).parts[0] == "runs"
    path.mkdir()
    assert not default_path("fast-td3", "ALE/Pong-v5", 3, tmp_path).exists()


def test_summary_round_trip(tmp_path):
    summary = Summary("done", 812.0, 20.0, 16, 1000, 50, 12.5, 80.0, 4.0, None, 1, recipe="fast-td3")
    summary.write(tmp_path)
    assert Summary.read(tmp_path) == summary
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"field_of_a_later_version": 1}))
    assert Summary.read(tmp_path) == summary
    Summary("failed", float("nan")).write(tmp_path)
    assert Summary.read(tmp_path).return_mean is None
    for content in ("", "[]", '{"status": "x"}'):
        path.write_text(content)
        with pytest.raises(BadInput, match="damaged"):
            Summary.read(tmp_path)
    path.unlink()
    with pytest.raises(BadInput, match="cannot be read"):
        Summary.read(tmp_path)


def test_curve_is_drawn_from_metrics(tmp_path, monkeypatch):
    rows = [
        {
            "wall_s": i,
            "env_steps": i * 10,
            "updates": i,
            "eval/return_mean": i,
            "eval/return_std": 1.0,
            "train/return": None,
        }
        for i in range(9)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"wall_s": 9, "en')
    (tmp_path / "config.json").write_text('{"recipe": "$x_", "env": {"id": "y"}, "until": {"target": 5}}')
    assert len(curve.read_rows(tmp_path)) == 9
    out = curve.plot(tmp_path, tmp_path / "curve.png")
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 10_000
    assert curve._title_and_target(tmp_path) == (r"y  ·  \$x_", 5.0)
    with pytest.raises(SetupProblem, match="Could not write"):
        curve.plot(tmp_path, tmp_path / "absent" / "curve.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SetupProblem, match=r"pip install 'trooprl\[plots\]'"):
        curve.plot(tmp_path, out)
    (tmp_path / "metrics.jsonl").write_text('{"wall_s": 9}\n')
    with pytest.raises(BadInput, match="no return yet"):
        curve.plot(tmp_path, out)
    with pytest.raises(BadInput, match="cannot be read"):
        curve.plot(Path(tmp_path / "absent"), out)


def test_a_renamed_directory_is_found_again_and_a_removed_one_is_created_again(tmp_path):
    with RunDirectory.create(tmp_path / "run") as run:
        run.write_config({"seed": 1})
        assert run.follow({"seed": 1}) == ""
        (tmp_path / "run").rename(tmp_path / "renamed")
        assert "was renamed" in run.follow({"seed": 1})
        assert run.path == tmp_path / "renamed" and run.checkpoints == tmp_path / "renamed" / "checkpoints"
        with pytest.raises(BadInput, match="is in use"):
            RunDirectory.open(run.path, lock=True)
        shutil.rmtree(run.path)
        assert "was removed" in run.follow({"seed": 1}) and run.follow({"seed": 1}) == ""
        assert RunDirectory.open(run.path).read_config() == {"seed": 1} and run.checkpoints.is_dir()
        with pytest.raises(BadInput, match="is in use"):
            RunDirectory.open(run.path, lock=True)
