"""A save that is interrupted at any point leaves the earlier checkpoints intact."""

import builtins
import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple

import pytest
import torch

from troop.core.errors import SetupProblem
from troop.runs import checkpoint, files

CALLS = [
    (os, "mkdir"),
    (os, "fsync"),
    (os, "rename"),
    (os, "open"),
    (builtins, "open"),
    (shutil, "disk_usage"),
]


def state(step):
    return {
        "policy": {"w": torch.full((50,), float(step))},
        "replay": {"r": torch.arange(100)},
        "count": step,
    }


def fail_at(monkeypatch, number, error):
    """Let the `number`-th file-system call raise `error`; return the list that counts the calls."""
    calls = []

    def counted(real):
        def call(*args, **kwargs):
            calls.append(real)
            if len(calls) == number:
                raise error
            return real(*args, **kwargs)

        return call

    for owner, name in CALLS:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    return calls


def calls_of_a_save(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        calls = fail_at(patched, 0, None)
        checkpoint.save(tmp_path / "counted", state(1), {"env_steps": 1})
        return len(calls)


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("cleanup", [True, False], ids=["exception", "kill"])
@pytest.mark.reliability("F3")
def test_save_interrupted_at_every_call(tmp_path, monkeypatch, cleanup):
    total = calls_of_a_save(tmp_path, monkeypatch)
    assert total > 10
    folder = tmp_path / "checkpoints"
    checkpoint.save(folder, state(1), {"env_steps": 1})
    newest = 1
    for number in range(1, total + 1):
        with monkeypatch.context() as patched:
            if not cleanup:  # a killed process removes nothing
                patched.setattr(shutil, "rmtree", lambda *_, **__: None)
            fail_at(patched, number, OSError(errno.ENOSPC, "No space left") if cleanup else KilledError())
            with contextlib.suppress(SetupProblem, KilledError):  # after the rename the save has succeeded
                checkpoint.save(folder, state(number + 1), {"env_steps": number + 1}, keep=1)
        loaded = checkpoint.load_newest(folder)
        assert loaded.skipped == [] and loaded.state["policy"]["w"][0] == loaded.state["count"]
        assert loaded.state["count"] >= newest
        newest = loaded.state["count"]
    checkpoint.save(folder, state(99), {"env_steps": 99})
    assert checkpoint.load_newest(folder).state["count"] == 99
    assert not list(folder.glob("*.tmp"))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EROFS, "not writable"),
        (errno.EACCES, "not writable"),
        (errno.EIO, "EIO"),
    ],
)
@pytest.mark.reliability("F4")
def test_disk_error_is_one_sentence(tmp_path, monkeypatch, code, text):
    checkpoint.save(tmp_path, state(1), {"env_steps": 1})
    with monkeypatch.context() as patched:
        fail_at(patched, 4, OSError(code, errno.errorcode[code]))
        with pytest.raises(SetupProblem, match=text):
            checkpoint.save(tmp_path, state(2), {"env_steps": 2})
    assert checkpoint.load_newest(tmp_path).state["count"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-000000000001"]


@pytest.mark.reliability("F4")
def test_missing_space_is_reported_before_writing(tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2_000_000))
    checkpoint.save(tmp_path, {"a": torch.zeros(1000)}, {"env_steps": 1})
    with pytest.raises(SetupProblem, match=r"needs \d{7} bytes and 2000000 are free"):
        checkpoint.save(tmp_path, {"a": torch.zeros(1_000_000)}, {"env_steps": 2})


def test_damaged_write_is_detected_before_old_checkpoints_are_removed(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, state(1), {"env_steps": 1}, keep=1)
    real = files.sync_folder

    def damage(folder):
        for path in folder.glob("policy.safetensors"):
            path.write_bytes(path.read_bytes()[:-1] + b"!")
        real(folder)

    monkeypatch.setattr(files, "sync_folder", damage)
    with pytest.raises(SetupProblem, match="reads back damaged"):
        checkpoint.save(tmp_path, state(2), {"env_steps": 2}, keep=1)
    assert checkpoint.load_newest(tmp_path).state["count"] == 1


@pytest.mark.reliability("F5")
def test_path_below_a_file_is_a_setup_problem(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SetupProblem, match="choose another --run"):
        checkpoint.save(tmp_path / "file" / "checkpoints", state(1), {"env_steps": 1})
    assert checkpoint.load_newest(tmp_path / "file" / "checkpoints") is None


SAVER = """
import sys, torch
from pathlib import Path
from troop.runs import checkpoint
for step in range(1, 100000):
    state = {"policy": {"w": torch.full((50,), float(step))}, "replay": {"r": torch.full((300_000,), step)}}
    checkpoint.save(Path(sys.argv[1]), state, {"env_steps": step}, keep=2)
    print(step, flush=True)
"""


@pytest.mark.reliability("F3")
def test_sigkill_during_a_save_keeps_the_last_checkpoint(tmp_path):
    saver = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    saved = 0
    for _ in range(3):
        saved = int(saver.stdout.readline())
    saw_temporary = False
    deadline = time.monotonic() + 10
    while not saw_temporary and time.monotonic() < deadline:
        saw_temporary = any(
            (tmp_path / name).exists() for name in os.listdir(tmp_path) if name.endswith(".tmp")
        )
    saver.send_signal(signal.SIGKILL)
    saved = max([saved, *(int(line) for line in saver.communicate()[0].split())])
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded.skipped == [] and loaded.info["env_steps"] >= saved
    assert (loaded.state["replay"]["r"] == loaded.info["env_steps"]).all()
    checkpoint.save(tmp_path, {"a": 1}, {"env_steps": 10**9})
    assert not list(tmp_path.glob("*.tmp"))


LIMITED = """
import sys, torch
from pathlib import Path
from troop.core.errors import SetupProblem
from troop.runs import checkpoint
try:
    checkpoint.save(Path(sys.argv[1]), {"a": {"x": torch.ones(1_000_000)}}, {"env_steps": 2})
except SetupProblem as problem:
    print(problem)
"""


@pytest.mark.reliability("F4")
def test_file_size_limit_is_reported_as_a_full_disk(tmp_path):
    checkpoint.save(tmp_path, state(1), {"env_steps": 1})
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        capture_output=True,
        text=True,
    )
    assert "disk is full" in done.stdout, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-000000000001"]
    assert checkpoint.load_newest(tmp_path).state["count"] == 1
