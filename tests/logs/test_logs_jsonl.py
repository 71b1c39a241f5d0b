"""metrics.jsonl stays complete and in order, and a failing disk never stops training."""

import errno
import json
import math
import os
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.logs.jsonl import MetricsWriter
from troop.logs.tensorboard import TensorBoard


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_is_one_object_with_the_counters_first(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsWriter(path)
    metrics.write(
        1.5,
        10,
        2,
        {
            "loss": torch.tensor(0.5),
            "bad": math.nan,
            "worse": -math.inf,
            "ok": True,
            "n": 3,
            "many": torch.ones(2),
        },
    )
    assert rows(path) == [
        {
            "wall_s": 1.5,
            "env_steps": 10,
            "updates": 2,
            "loss": 0.5,
            "bad": None,
            "worse": None,
            "ok": True,
            "n": 3,
            "many": None,
        }
    ]
    assert list(rows(path)[0])[:3] == ["wall_s", "env_steps", "updates"]
    metrics.close()
    metrics.close()


@pytest.mark.reliability("R7")
def test_resume_cuts_later_rows_and_the_incomplete_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = MetricsWriter(path)
    for i in range(10):
        first.write(i, i * 100, i, {})
    first.close()
    with path.open("a") as file:
        file.write('{"wall_s": 11, "env_st')
    resumed = MetricsWriter(path, resume=(400, 4))
    resumed.write(5, 500, 5, {})
    resumed.close()
    assert [row["env_steps"] for row in rows(path)] == [0, 100, 200, 300, 400, 500]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 200))
def test_file_truncated_anywhere_is_continued(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("truncated") / "metrics.jsonl"
    first = MetricsWriter(path)
    for i in range(5):
        first.write(i, i, i, {"x": i})
    first.close()
    os.truncate(path, min(cut, path.stat().st_size))
    again = MetricsWriter(path)
    again.write(9, 9, 9, {})
    again.close()
    assert [row["env_steps"] for row in rows(path)][-1] == 9


def test_damaged_line_in_the_middle_keeps_the_other_rows(tmp_path):
    path = tmp_path / "metrics.jsonl"
    good = b'{"env_steps": 1, "updates": 1}\n\xff\xfe\n[1]\n{"env_steps": 2, "updates": 2}\n'
    path.write_bytes(good + b'{"env_steps": 3, "updates": 3}\n{"env')
    MetricsWriter(path, resume=(2, 2)).close()
    assert path.read_bytes() == good


@pytest.mark.reliability("F4", "S4")
def test_full_disk_is_reported_once_and_rows_are_written_later(tmp_path, monkeypatch):
    path, warnings = tmp_path / "metrics.jsonl", []
    metrics = MetricsWriter(path, warn=warnings.append)
    metrics.write(0, 0, 0, {})
    real, calls = os.write, []

    def nothing_fits(handle, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    def half_a_line_fits(handle, content):
        calls.append(content)
        return real(handle, content[: len(content) // 2]) if len(calls) % 2 else nothing_fits(handle, content)

    for broken, complete in ((nothing_fits, 1), (half_a_line_fits, 5)):
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", broken)
            for i in range(1, 4):
                metrics.write(i, i, i, {})
            assert len(rows(path)) == complete
        metrics.write(4, 4, 4, {})
    metrics.close()
    assert [row["env_steps"] for row in rows(path)] == [0, 1, 2, 3, 4, 1, 2, 3, 4]
    assert len(warnings) == 4 and "No space left" in warnings[0] and "written again" in warnings[1]


def test_folder_created_later_receives_all_rows(tmp_path):
    warnings = []
    metrics = MetricsWriter(tmp_path / "later" / "metrics.jsonl", warn=warnings.append)
    metrics.write(0, 0, 0, {})
    (tmp_path / "later").mkdir()
    metrics.write(1, 1, 1, {})
    assert [row["env_steps"] for row in rows(tmp_path / "later" / "metrics.jsonl")] == [0, 1]
    assert len(warnings) == 2


@pytest.mark.reliability("S4")
def test_slow_disk_delays_neither_training_nor_the_order_of_rows(tmp_path, monkeypatch):
    path, gate = tmp_path / "metrics.jsonl", threading.Event()
    metrics = MetricsWriter(path)
    write = os.write

    def stuck(handle, data):
        gate.wait(30)
        return write(handle, data)

    monkeypatch.setattr(os, "write", stuck)
    for i in range(5):
        metrics.write(i, i, i, {})  # returns although no byte has been written
    assert rows(path) == []
    gate.set()
    metrics.write(5, 5, 5, {})
    metrics.close()
    assert [row["env_steps"] for row in rows(path)] == list(range(6))


@pytest.mark.reliability("S4")
def test_slow_tensorboard_delays_no_training(tmp_path):
    pytest.importorskip("tensorboard")
    board, gate = TensorBoard(tmp_path), threading.Event()
    writer = board._writer.file_writer.event_writer._async_writer
    write = writer._writer.write

    def stuck(data):
        gate.wait(30)
        write(data)

    writer._writer.write = stuck
    for i in range(100):
        board.write(1.0, i, 1, {"loss": 1.0, "return": 2.0})  # returns although no event has been written
    gate.set()
    board.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("events.*")) > 300 * 40


LIMITED = """
import resource, sys
from pathlib import Path
from troop.logs.jsonl import MetricsWriter
warnings = []
metrics = MetricsWriter(Path(sys.argv[1]), warn=warnings.append)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))
for i in range(50):
    metrics.write(i, i, i, {})
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
metrics.close()
print(len(warnings))
"""


def test_file_size_limit_delays_rows(tmp_path):
    path = tmp_path / "metrics.jsonl"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True)
    assert done.stdout == "2\n", done.stderr
    assert [row["env_steps"] for row in rows(path)] == list(range(50))


@pytest.mark.reliability("S4")
def test_tensorboard_writes_events_and_never_raises(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    board = TensorBoard(tmp_path)
    assert board.active
    board.write(1.0, 10, 1, {"loss": torch.tensor(0.5), "none": None, "word": "x", "nan": math.nan})
    board._writer.add_scalar = lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
    board.write(1.0, 10, 1, {"loss": 1.0})
    assert not board.active
    board.close()
    assert list(tmp_path.glob("events.*"))
    (tmp_path / "file").touch()
    assert not TensorBoard(tmp_path / "file" / "below").active
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    absent = TensorBoard(tmp_path)
    absent.write(1.0, 1, 1, {"loss": 1.0})
    absent.close()
    assert not absent.active


def test_tensorboard_on_a_full_disk_is_reported_in_one_line(tmp_path, capfd):
    pytest.importorskip("tensorboard")
    warnings = []
    board = TensorBoard(tmp_path, warn=warnings.append)
    writer = board._writer.file_writer.event_writer._async_writer

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer._writer.write = fail
    board._writer.add_scalar("loss", 1.0, 1)
    writer._worker.join()  # its thread ends with the error
    board.write(1.0, 10, 1, {"loss": 1.0})
    board.write(1.0, 11, 1, {"loss": 1.0})
    board.close()
    assert len(warnings) == 1 and "No space left on device" in warnings[0]
    assert capfd.readouterr().err == ""
