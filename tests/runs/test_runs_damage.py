"""Damaged and hostile checkpoints are detected, reported and skipped."""

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.core.errors import SetupProblem
from troop.runs import checkpoint, manifest

FILES = ["policy.safetensors", "replay.safetensors", "manifest.json"]


def save_two(folder):
    for step in (1, 2):
        state = {
            "policy": {"w": torch.full((3, 4), step)},
            "replay": {"r": torch.arange(step + 5)},
            "count": step,
        }
        newest = checkpoint.save(folder, state, {"env_steps": step})
    return newest


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FILES), st.integers(0), st.integers(1, 255))
@pytest.mark.reliability("F2")
def test_changed_byte_anywhere_is_detected(file, offset, flip):
    with TemporaryDirectory() as folder:
        path = save_two(Path(folder)) / file
        content = bytearray(path.read_bytes())
        content[offset % len(content)] ^= flip
        path.write_bytes(content)
        loaded = checkpoint.load_newest(Path(folder))
        assert loaded.state["count"] == 1
        assert len(loaded.skipped) == 1 and file in loaded.skipped[0]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
@pytest.mark.reliability("F1")
def test_truncated_file_is_detected(tmp_path, file, share):
    path = save_two(tmp_path) / file
    os.truncate(path, int(path.stat().st_size * share))
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded.state["count"] == 1 and file in loaded.skipped[0]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.reliability("F1")
def test_missing_or_replaced_file_is_detected(tmp_path, file):
    path = save_two(tmp_path) / file
    good = tmp_path / "good"
    shutil.copy(path, good)
    for replace in (lambda: None, path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to(good)):
        path.unlink() if not path.is_dir() else path.rmdir()
        replace()
        loaded = checkpoint.load_newest(tmp_path)
        assert loaded.state["count"] == 1 and file in loaded.skipped[0]
        path.exists() or path.is_symlink() or path.touch()


@pytest.mark.reliability("F1")
def test_error_lists_all_checkpoints_if_none_is_valid(tmp_path):
    save_two(tmp_path)
    for path in tmp_path.glob("*/manifest.json"):
        path.write_bytes(b"")
    with pytest.raises(SetupProblem, match=r"ckpt-000000000002: .*ckpt-000000000001: "):
        checkpoint.load_newest(tmp_path)


def reseal(path, change):
    """Change a manifest and give it the right hash, as an attacker would."""
    body = json.loads((path / "manifest.json").read_bytes())["manifest"]
    body = change(body) or body
    text = json.dumps(body).encode()
    digest = hashlib.sha256(text).hexdigest().encode()
    (path / "manifest.json").write_bytes(b'{"sha256": "' + digest + b'",\n"manifest": ' + text + b"}\n")


def set_value(*where, value):
    def change(body):
        for key in where[:-1]:
            body = body[key]
        body[where[-1]] = value

    return change


def drop(*where):
    def change(body):
        for key in where[:-1]:
            body = body[key]
        del body[where[-1]]

    return change


POLICY = ("parts", "policy")
HOSTILE = {
    "parent": set_value(*POLICY, "file", value="../ckpt-000000000001/policy.safetensors"),
    "absolute": set_value(*POLICY, "file", value="/etc/passwd"),
    "windows": set_value(*POLICY, "file", value="..\\x.safetensors"),
    "nul": set_value(*POLICY, "file", value="a\0.safetensors"),
    "dots": set_value(*POLICY, "file", value=".."),
    "number for a file": set_value(*POLICY, "file", value=3),
    "the manifest": set_value(*POLICY, "file", value="manifest.json"),
    "no file": set_value(*POLICY, "file", value=None),
    "other file": set_value(*POLICY, "file", value="replay.safetensors"),
    "negative size": set_value(*POLICY, "bytes", value=-1),
    "size as text": set_value(*POLICY, "bytes", value="10"),
    "size true": set_value(*POLICY, "bytes", value=True),
    "no hash": set_value(*POLICY, "sha256", value=None),
    "missing key": drop(*POLICY, "sha256"),
    "missing tree": drop(*POLICY, "tree"),
    "missing parts": drop("parts"),
    "missing info": drop("info"),
    "part is a list": set_value(*POLICY, value=[]),
    "parts is a list": set_value("parts", value=[]),
    "info is text": set_value("info", value="x"),
    "info has a tensor": set_value("info", value={"a": {"$tensor": ["w", "int64", [3, 4]]}}),
    "other format": set_value("format", value=2),
    "huge shape": set_value(*POLICY, "tree", value={"$tensor": ["w", "int64", [10**18, 10**18]]}),
    "negative shape": set_value(*POLICY, "tree", value={"$tensor": ["w", "int64", [-1]]}),
    "shape as text": set_value(*POLICY, "tree", value={"$tensor": ["w", "int64", "34"]}),
    "other shape": set_value(*POLICY, "tree", value={"$tensor": ["w", "int64", [4, 3]]}),
    "other dtype": set_value(*POLICY, "tree", value={"$tensor": ["w", "float64", [3, 4]]}),
    "no dtype": set_value(*POLICY, "tree", value={"$tensor": ["w", "load", [3, 4]]}),
    "unknown tensor": set_value(*POLICY, "tree", value={"$tensor": ["v", "int64", [3, 4]]}),
    "short entry": set_value(*POLICY, "tree", value={"$tensor": ["w"]}),
    "unknown tag": set_value(*POLICY, "tree", value={"$eval": "1"}),
    "bad float": set_value(*POLICY, "tree", value={"$float": "1e400"}),
    "bad tuple": set_value(*POLICY, "tree", value={"$tuple": 3}),
    "bad dict": set_value(*POLICY, "tree", value={"$dict": [[1]]}),
    "list key": set_value(*POLICY, "tree", value={"$dict": [[[], 1]]}),
    "a list": lambda body: [1],
    "text": lambda body: "x",
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.reliability("X3")
def test_hostile_manifest_is_skipped(tmp_path, change):
    reseal(save_two(tmp_path), change)
    loaded = checkpoint.load_newest(tmp_path)
    assert loaded.state["count"] == 1 and loaded.path.name == "ckpt-000000000001"
    assert "ckpt-000000000002" in loaded.skipped[0]
    checkpoint.save(tmp_path, {"count": 3}, {"env_steps": 3})  # pruning ignores it too
    assert checkpoint.load_newest(tmp_path).state["count"] == 3


@pytest.mark.reliability("X3")
def test_deeply_nested_manifest_is_skipped(tmp_path):
    path = save_two(tmp_path)
    text = b"[" * 100_000 + b"]" * 100_000
    (path / "manifest.json").write_bytes(manifest._seal(text))
    assert checkpoint.load_newest(tmp_path).state["count"] == 1


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
@pytest.mark.reliability("X3")
def test_random_tensor_file_with_the_right_hash_is_skipped(content):
    with TemporaryDirectory() as folder:
        path = save_two(Path(folder))
        payload = len(content).to_bytes(8, "little") + content
        (path / "policy.safetensors").write_bytes(payload)

        def change(body):
            body["parts"]["policy"] |= {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}

        reseal(path, change)
        assert checkpoint.load_newest(Path(folder)).state["count"] == 1


@pytest.mark.reliability("X1")
def test_pickle_is_never_executed(tmp_path):
    class Canary:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "canary"),)

    path = save_two(tmp_path)
    payload = pickle.dumps(Canary())
    (path / "policy.safetensors").write_bytes(payload)
    reseal(
        path,
        lambda body: body["parts"]["policy"].update(
            bytes=len(payload), sha256=hashlib.sha256(payload).hexdigest()
        ),
    )
    assert checkpoint.load_newest(tmp_path).state["count"] == 1
    assert not (tmp_path / "canary").exists()


def test_symlink_to_a_checkpoint_is_skipped(tmp_path):
    other = save_two(tmp_path / "other")
    save_two(tmp_path / "run")
    (tmp_path / "run" / "ckpt-000000000009").symlink_to(other)
    loaded = checkpoint.load_newest(tmp_path / "run")
    assert loaded.path.name == "ckpt-000000000002" and "plain folder" in loaded.skipped[0]
