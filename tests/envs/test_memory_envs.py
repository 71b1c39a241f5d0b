"""Cue-v0: the cue is shown once, asked for `delay` steps later, and decides the reward."""

import pytest
import torch

from troop import envs
from troop.core.env import Discrete
from troop.envs import Toy


def play(answer, cues, delay=20, rows=4, episodes=3):
    """Return (observations, rewards, ends) of whole episodes; `answer` maps a cue to an action."""
    env = Toy("Cue-v0", rows, cues=cues, delay=delay).make(0)
    step = env.reset(0)
    observations, rewards, ends = [], [], []
    for _ in range(episodes):
        cue = step.obs["obs"][:, :cues].argmax(1)
        for _ in range(delay + 1):
            observations.append(step.obs["obs"])
            step = env.step(answer(cue))
            rewards.append(step.reward)
            ends.append(step.terminated)
    return torch.stack(observations), torch.stack(rewards), torch.stack(ends)


@pytest.mark.parametrize("cues", [2, 5])
def test_the_cue_is_in_the_first_observation_only_and_the_question_in_the_last(cues):
    obs, _, ends = play(lambda cue: cue, cues)
    obs, ends = obs.view(3, 21, 4, cues + 1), ends.view(3, 21, 4)
    assert (obs[:, 0, :, :cues].sum(-1) == 1).all() and not obs[:, 0, :, cues].any()
    assert not obs[:, 1:20].any()
    assert not obs[:, 20, :, :cues].any() and (obs[:, 20, :, cues] == 1).all()
    assert ends[:, 20].all() and not ends[:, :20].any()


@pytest.mark.parametrize("cues", [2, 5])
def test_only_the_answer_is_rewarded(cues):
    _, right, _ = play(lambda cue: cue, cues)
    _, wrong, _ = play(lambda cue: (cue + 1) % cues, cues)
    right, wrong = right.view(3, 21, 4), wrong.view(3, 21, 4)
    assert (right[:, 20] == 1).all() and torch.allclose(wrong[:, 20], torch.tensor(-1 / (cues - 1)))
    assert not right[:, :20].any() and not wrong[:, :20].any()


@pytest.mark.parametrize("cues", [2, 5])
def test_an_answer_without_the_cue_has_the_mean_return_zero(cues):
    _, rewards, _ = play(lambda cue: torch.zeros_like(cue), cues, delay=2, rows=500, episodes=4)
    assert abs(rewards.sum(0).mean().item() / 4) < 0.1


def test_the_id_is_found_without_a_prefix():
    assert envs.resolve("Cue-v0", 3) == Toy("Cue-v0", 3)
    assert envs.family("Cue-v0") == "toy"
    spec = Toy("Cue-v0", 3, cues=4).spec
    assert spec.action == Discrete(4) and spec.obs["obs"].shape == (5,) and spec.episode_limit is None
