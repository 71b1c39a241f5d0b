import numpy as np
import pytest
import torch

from troop.core.errors import BadInput, SetupProblem
from troop.envs import EnvPool, Toy, record, write_video


def test_a_film_of_cartpole(tmp_path):
    pytest.importorskip("envpool")
    seen = []

    def act(obs):
        seen.append(obs["obs"].clone())
        return torch.ones(1, dtype=torch.int64)

    film = record(EnvPool("CartPole-v1"), act, steps=50, frames=25, size=(240, 160))
    assert film.stride == 2 and film.steps == len(seen) == film.episode_return < 50
    assert len(film.frames) == (film.steps + 1) // 2
    assert film.frames[0].shape == (160, 240, 3) and film.frames[0].dtype == np.uint8
    assert seen[0].shape == (1, 4) and not np.array_equal(film.frames[0], film.frames[-1])
    pytest.importorskip("imageio_ffmpeg")
    for name in ("film.mp4", "film.gif"):
        assert write_video(tmp_path / "new" / name, film.frames).stat().st_size > 500


def test_mujoco_is_drawn_or_told_in_one_sentence():
    pytest.importorskip("envpool")
    pytest.importorskip("mujoco")
    try:
        film = record(
            EnvPool("WalkerWalk-v1"), lambda obs: torch.zeros(1, 6), steps=4, frames=2, size=(64, 48)
        )
    except SetupProblem as problem:
        assert "libegl1" in str(problem)
    else:
        assert len(film.frames) == 2 and film.frames[0].std() > 0


def test_no_gl_does_not_take_the_parent_down(monkeypatch):
    pytest.importorskip("envpool")
    pytest.importorskip("mujoco")  # before the variables: in this process it shall not look for that GL
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setenv("PYOPENGL_PLATFORM", "osmesa")
    with pytest.raises(SetupProblem, match="libegl1"):
        record(EnvPool("WalkerWalk-v1"), lambda obs: torch.zeros(1, 6), steps=2, frames=1)


def test_what_cannot_be_filmed():
    with pytest.raises(SetupProblem, match="no picture"):
        record(Toy("Clock"), lambda obs: torch.zeros(1, 1))
    with pytest.raises(BadInput, match=r"\.mp4"):
        write_video("film.avi", [np.zeros((4, 4, 3), np.uint8)])


def test_an_error_of_the_policy_is_the_callers_own():
    pytest.importorskip("envpool")

    def act(obs):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        record(EnvPool("CartPole-v1"), act, steps=3, frames=1)
