"""Repeated actions and preprocessed frames around envs whose steps are known."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from troop.core.env import EnvSpec, Field
from troop.core.errors import BadInput
from troop.envs import FrameConfig, Gymnasium, Toy
from troop.envs.tensor_env import to_tensors

MODES = ["same_step", "next_step"]


def make(frames, name="Reach", envs=3, limit=7, background=False, **changes):
    toy = Toy(name, envs, limit=limit, **changes)
    env = to_tensors(frames.wrap(toy.make_numpy(5), background), "cpu")
    return env, env.reset(5)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("autoreset", MODES)
def test_rewards_of_repeats_are_summed_until_the_episode_ends(autoreset, background):
    # Clock rewards every step with 1 and truncates after 7: repeats of 3 are 3 + 3 + 1 steps.
    env, first = make(FrameConfig(repeat=3), "Clock", autoreset=autoreset, background=background)
    steps = [env.step(torch.zeros(3, 1)) for _ in range(6)]
    assert [s.reward[0].item() for s in steps] == [3, 3, 1] * 2
    assert [s.truncated[0].item() for s in steps] == [False, False, True] * 2
    assert all(s.valid.all() for s in steps) and not first.valid.any()
    assert [round(7 * s.next_obs["obs"][0].item()) for s in steps] == [3, 6, 7] * 2
    assert [round(7 * s.obs["obs"][0].item()) for s in steps] == [3, 6, 0] * 2
    assert env.spec.episode_limit == 3
    env.close()
    env.close()


@pytest.mark.parametrize("autoreset", MODES)
def test_an_episode_that_terminates_within_repeats_ends_in_its_own_row_only(autoreset):
    env, step = make(FrameConfig(repeat=2), "Countdown", envs=8, limit=5, autoreset=autoreset)
    for _ in range(20):
        counter = (step.obs["obs"][:, 0] * 5).round()
        step = env.step(torch.zeros(8, 1))
        assert torch.equal(step.terminated, counter <= 2)
        assert torch.equal(step.reward, counter.clamp(max=2))
        assert torch.equal((step.next_obs["obs"][:, 0] * 5).round(), (counter - 2).clamp(min=0))
        assert (step.obs["obs"][:, 0] > 0).all() and step.valid.all()


@pytest.mark.parametrize("autoreset", MODES)
def test_stacks_hold_the_last_frames_and_start_with_the_first_one(autoreset):
    stacked, step = make(FrameConfig(stack=3), autoreset="same_step")
    single, plain = make(FrameConfig(), autoreset="same_step")
    history = [plain.obs["obs"]] * 3
    assert torch.equal(step.obs["obs"], torch.cat(history, 1))
    torch.manual_seed(0)
    for _ in range(6):
        action = torch.rand(3, 2) * 2 - 1
        step, plain = stacked.step(action), single.step(action)
        history.append(plain.next_obs["obs"])
        assert torch.equal(step.next_obs["obs"], torch.cat(history[-3:], 1)) and step.obs is step.next_obs
    step = stacked.step(action)
    assert step.truncated.all() and step.obs is not step.next_obs
    frames = step.obs["obs"].view(3, 3, 1, 24, 24)
    assert all(torch.equal(frames[:, 0], frames[:, k]) for k in (1, 2))
    again = stacked.restart(torch.tensor([1]))["obs"]
    after = stacked.step(action)
    assert torch.equal(after.obs["obs"][1, :2], again[0, 1:]) and after.valid.all()


def test_frames_are_shrunk_by_the_mean_and_grey_by_brightness():
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 6, 8), dtype=np.uint8)
    grey = FrameConfig(gray=True, shrink=2).convert(images)
    red, green, blue = images.astype(np.float64).transpose(1, 0, 2, 3)
    brightness = 0.299 * red + 0.587 * green + 0.114 * blue
    expected = brightness.reshape(2, 3, 2, 4, 2).mean((2, 4))
    assert grey.shape == (2, 1, 3, 4) and grey.dtype == np.uint8
    assert np.abs(grey[:, 0] - expected).max() <= 0.501
    assert FrameConfig(repeat=2).convert(images) is images
    assert FrameConfig(shrink=2).convert(images).shape == (2, 3, 3, 4)


def test_the_spec_describes_the_frames_and_leaves_vectors():
    fields = {"obs": Field((3, 96, 96), torch.uint8), "speed": Field((2,))}
    spec = EnvSpec("car", fields, Toy().spec.action, 2, 1000)
    frames = FrameConfig(repeat=4, shrink=2, gray=True, stack=3).spec(spec)
    assert frames.obs == {"obs": Field((3, 48, 48), torch.uint8, 3), "speed": Field((2,))}
    assert frames.episode_limit == 250 and FrameConfig().spec(spec) is spec
    with pytest.raises(BadInput, match=r"--env.frames.shrink is 8; env 'toy:Reach' has images of 4x4"):
        FrameConfig(shrink=8).spec(
            EnvSpec("toy:Reach", {"obs": Field((1, 4, 4), torch.uint8)}, spec.action, 1)
        )
    with pytest.raises(BadInput, match="stacks 4 frames itself"):
        stacked = {"obs": Field((4, 84, 84), torch.uint8, 4)}
        FrameConfig(stack=2).spec(EnvSpec("Pong", stacked, spec.action, 1))


def test_a_gymnasium_env_takes_the_settings():
    config = Gymnasium("CartPole-v1", 2, frames=FrameConfig(repeat=3))
    assert config.spec.episode_limit == 167
    env = config.make(1)
    results = [env.reset(1), *(env.step(torch.zeros(2, dtype=torch.int64)) for _ in range(8))]
    # Always pushing left, the pole falls after 8 to 10 steps: within the third or fourth repeat.
    assert any(s.terminated.any() for s in results)
    for before, step in pairwise(results):
        assert (step.reward <= 3).all() and (step.reward[~step.terminated] == 3).all()
        assert before.obs.keys() == step.obs.keys()
    env.close()
