"""A damaged newest checkpoint: commands and load_policy refuse it unless an older one is allowed."""

import pytest

from troop import load_policy
from troop.cli.main import run as troop
from troop.core.errors import SetupProblem

TRAIN = [
    "train",
    "td3",
    "--env",
    "toy:PointMass",
    "--envs",
    "2",
    "--no-compile",
    "--evaluation.episodes",
    "2",
]


@pytest.fixture
def damaged(tmp_path):
    """A run with two checkpoints, of 0 and 200 env steps, of which the newer is damaged."""
    run = tmp_path / "run"
    assert troop([*TRAIN, "--env-steps", "200", "--engine.threads", "1", "--run", str(run)]) == 0
    (file,) = (run / "checkpoints" / "ckpt-000000000200").glob("policy*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    return run


@pytest.mark.reliability("F1")
def test_an_older_checkpoint_is_used_only_if_it_is_allowed(damaged, capsys):
    capsys.readouterr()
    assert troop(["eval", str(damaged)]) == 5
    error = capsys.readouterr().err
    assert "ckpt-000000000200: " in error and "--allow-older" in error
    assert "ckpt-000000000000 (0 env steps, written " in error and "not evaluated)" in error
    assert troop(["play", str(damaged)]) == 5
    assert troop(["export", str(damaged)]) == 5
    with pytest.raises(SetupProblem, match="allow_older=True"):
        load_policy(damaged)
    assert load_policy(damaged, allow_older=True).checkpoint.startswith("ckpt-000000000000 (0 env steps")
    capsys.readouterr()
    assert troop(["eval", str(damaged), "--allow-older", "--episodes", "2"]) == 0
    assert capsys.readouterr().out.startswith("checkpoint ckpt-000000000000 (0 env steps, written ")


def test_resume_and_eval_say_which_checkpoint_they_use(damaged, capsys):
    capsys.readouterr()
    assert troop(["resume", str(damaged), "--env-steps", "300"]) == 0
    output = capsys.readouterr().out
    assert "skipped ckpt-000000000200: " in output and "continues from ckpt-000000000000 (0 env" in output
    assert troop(["eval", str(damaged), "--json", "--episodes", "2"]) == 0
    shown = capsys.readouterr().err
    assert shown.startswith("checkpoint ckpt-000000000300 (300 env steps, written ") and "return" in shown
