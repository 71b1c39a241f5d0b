"""troop export: files, refusals and errors of one sentence."""

import builtins
import importlib.util
import json
import shutil
from pathlib import Path

import pytest

import troop
from troop.cli.main import run
from troop.core.errors import BadInput

GOLDEN = Path(__file__).parents[1] / "golden" / "0.1.0"


@pytest.fixture
def golden(tmp_path):
    return Path(shutil.copytree(GOLDEN / "dqn", tmp_path / "run"))


def one_sentence(capsys):
    error = capsys.readouterr().err
    assert error.startswith("troop: ") and len(error.strip().splitlines()) == 1
    return error


def test_golden_run_is_exported_next_to_its_checkpoints(golden, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    expected = json.loads((golden / "expected.json").read_text())
    assert run(["export", str(golden)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("checkpoint ckpt-") and "any number of rows per call" in shown
    assert "input  obs [rows, 4] float32" in shown and "output action [rows] int64" in shown
    session = onnxruntime.InferenceSession((golden / "policy.onnx").read_bytes())
    import numpy as np

    (actions,) = session.run(None, {"obs": np.array(expected["obs"], np.float32)})
    assert actions.tolist() == expected["action"]
    contract = json.loads((golden / "policy.json").read_text())
    assert contract["action"] == {"kind": "discrete", "choices": 2, "factors": None, "start": 0}


@pytest.mark.parametrize("name", ["policy.onnx", "policy.json"])
@pytest.mark.reliability("X4")
def test_links_are_not_written_through(golden, tmp_path, name, capsys):
    target = tmp_path / "thesis.txt"
    target.write_text("years of work\n")
    (golden / name).symlink_to(target)
    assert run(["export", str(golden)]) == 2
    assert "link" in one_sentence(capsys)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(target)
    assert run(["export", str(golden), "--out", str(tmp_path / "out")]) == 2
    assert "link" in one_sentence(capsys)
    assert target.read_text() == "years of work\n"


@pytest.mark.parametrize("out", ["policy.pt", "policy", "policy.onnx.txt"])
def test_other_suffixes_are_refused(golden, out, capsys):
    assert run(["export", str(golden), "--out", out]) == 2
    assert "must be a directory or a file that ends in .onnx" in one_sentence(capsys)
    with pytest.raises(BadInput, match=r"\.onnx"):
        troop.export_policy(golden, out)


def test_missing_library_is_named_with_the_extra(golden, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "onnxscript" else find(name, *a)
    )
    assert run(["export", str(golden)]) == 5
    error = one_sentence(capsys)
    assert "needs onnxscript" in error and "trooprl[export]" in error


def test_directory_that_is_no_run_is_refused(tmp_path, capsys):
    assert run(["export", str(tmp_path)]) == 2
    assert "not a run directory" in one_sentence(capsys)


@pytest.mark.reliability("X4")
def test_no_onnx_file_is_read(golden, monkeypatch):
    """A file that a stranger put into a run directory is replaced without being opened."""
    pytest.importorskip("onnxruntime")
    (golden / "policy.onnx").write_bytes(b"hostile")
    opened = []
    real = builtins.open

    def recording(file, *args, **kwargs):
        opened.append(str(file))
        return real(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", recording)
    troop.export_policy(golden, golden)
    assert not [file for file in opened if file.endswith(".onnx")]
    assert (golden / "policy.onnx").read_bytes() != b"hostile"
