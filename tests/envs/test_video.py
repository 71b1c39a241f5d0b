import numpy as np
import pytest
import torch

from troop.core.errors import BadInput, SetupProblem
from troop.envs import EnvPool, FrameConfig, Toy, record_video, write_video


def test_record_and_write_a_video_of_cartpole(tmp_path):
    pytest.importorskip("envpool")
    observations = []

    def act(obs):
        observations.append(obs["obs"].clone())
        return torch.ones(1, dtype=torch.int64)

    video = record_video(EnvPool("CartPole-v1"), act, steps=50, frames=25, size=(240, 160))
    assert video.stride == 2 and video.steps == len(observations) == video.episode_return < 50
    assert len(video.frames) == (video.steps + 1) // 2
    assert video.frames[0].shape == (160, 240, 3) and video.frames[0].dtype == np.uint8
    assert observations[0].shape == (1, 4) and not np.array_equal(video.frames[0], video.frames[-1])
    pytest.importorskip("imageio_ffmpeg")
    for name in ("video.mp4", "video.gif"):
        assert write_video(tmp_path / "new" / name, video.frames).stat().st_size > 500


def test_a_video_repeats_actions_and_prepares_frames_as_training_does():
    pytest.importorskip("envpool")
    shapes = []

    def act(obs):
        shapes.append(tuple(obs["obs"].shape))
        return torch.zeros(1, 3)

    frames = FrameConfig(repeat=3, shrink=4, gray=True, stack=2)
    video = record_video(EnvPool("CarRacing-v3", frames=frames), act, steps=2, frames=2, size=(64, 48))
    assert shapes == [(1, 2, 24, 24)] * 2 and video.steps == 2 and len(video.frames) == 2


def test_mujoco_is_rendered_or_the_error_names_the_missing_package():
    pytest.importorskip("envpool")
    pytest.importorskip("mujoco")
    try:
        video = record_video(
            EnvPool("WalkerWalk-v1"), lambda obs: torch.zeros(1, 6), steps=4, frames=2, size=(64, 48)
        )
    except SetupProblem as problem:
        assert "libegl1" in str(problem)
    else:
        assert len(video.frames) == 2 and video.frames[0].std() > 0


def test_missing_opengl_raises_in_the_parent_instead_of_aborting_it(monkeypatch):
    pytest.importorskip("envpool")
    pytest.importorskip("mujoco")  # import it before the variables are set, which only the child shall read
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setenv("PYOPENGL_PLATFORM", "osmesa")
    with pytest.raises(SetupProblem, match="libegl1"):
        record_video(EnvPool("WalkerWalk-v1"), lambda obs: torch.zeros(1, 6), steps=2, frames=1)


def test_unsupported_envs_and_file_types_are_rejected():
    with pytest.raises(SetupProblem, match="'Clock' cannot be rendered; videos are supported for EnvPool"):
        record_video(Toy("Clock"), lambda obs: torch.zeros(1, 1))
    with pytest.raises(BadInput, match=r"\.mp4"):
        write_video("video.avi", [np.zeros((4, 4, 3), np.uint8)])


def test_an_exception_of_the_policy_reaches_the_caller():
    pytest.importorskip("envpool")

    def act(obs):
        raise ZeroDivisionError("from the policy")

    with pytest.raises(ZeroDivisionError, match="from the policy"):
        record_video(EnvPool("CartPole-v1"), act, steps=3, frames=1)
