"""UNREAL in run directories: a resumed run is bit-equal, replay included; a note on pixel control."""

import pytest

from troop.cli.main import run as troop
from troop.runs.checkpoint import load_newest

pytest.importorskip("envpool")
SMALL = ["--envs", "4", "--core-size", "8", "--torso-features", "16", "--replay-length", "200"]
FLAGS = [
    *SMALL,
    "--evaluation.episodes",
    "1",
    "--seconds",
    "1000",
    "--engine.threads",
    "1",
    "--deterministic",
]


def newest(path):
    """Return the newest checkpoint's state of the trainer's algorithm."""
    return load_newest(path / "checkpoints").state["trainer.algorithm"]


@pytest.mark.reliability("R1")
def test_resumed_run_is_bit_equal_to_an_uninterrupted_one(tmp_path):
    from small_systems import differing_paths

    train = ["train", "unreal", "--env", "Catch-v0", *FLAGS]
    assert troop([*train, "--env-steps", "2000", "--run", str(tmp_path / "whole")]) == 0
    assert troop([*train, "--env-steps", "1000", "--run", str(tmp_path / "parts")]) == 0
    first = newest(tmp_path / "parts")["replay"]["trajectories"]
    assert len(first) == 10 and first[0]["obs"]["obs"].shape == (21, 4, 1, 10, 5)
    assert troop(["resume", str(tmp_path / "parts"), "--env-steps", "2000"]) == 0
    assert differing_paths(newest(tmp_path / "parts"), newest(tmp_path / "whole")) == []


def test_start_says_that_pixel_control_needs_images(tmp_path, capsys):
    train = ["train", "unreal", "--env", "CartPole-v1", "--envs", "4", "--env-steps", "200"]
    assert troop([*train, "--run", str(tmp_path / "run")]) == 0
    text = "pixel control does not apply to CartPole-v1: it has no images; reward prediction and value replay"
    assert text in capsys.readouterr().out
