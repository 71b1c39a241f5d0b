"""Recipes for images: frames and networks follow from the env, and the toy task is learned."""

import dataclasses
import os

import pytest
import torch

from troop import api
from troop.algorithms import SACConfig, TD3Config
from troop.core.env import Field
from troop.envs import FrameConfig, Toy

LONG = pytest.mark.skipif(not os.environ.get("TROOP_LONG_TESTS"), reason="minutes; set TROOP_LONG_TESTS=1")


def test_frames_networks_and_shifts_follow_from_the_images_of_the_env():
    pytest.importorskip("envpool")
    car = api.make_experiment("sac-pixels", "CarRacing-v3")
    assert car.env.frames == FrameConfig(repeat=4, shrink=2, gray=True, stack=3)
    assert car.env.spec.obs == {"obs": Field((3, 48, 48), torch.uint8, 3)}
    assert car.env.spec.episode_limit == 250
    assert (car.algorithm.torso, car.algorithm.random_shift) == ("nips", 2)
    reach = api.make_experiment("td3-pixels")
    assert isinstance(reach.env, Toy) and reach.algorithm.random_shift == 1
    assert isinstance(car.algorithm, SACConfig) and isinstance(reach.algorithm, TD3Config)


def controller_return(envs=64, seed=0):
    """Mean returns of moving straight to the goal, which is the best there is, and of random actions."""
    env, returns = Toy("Reach", envs).make(seed), []
    torch.manual_seed(seed)
    for straight in (True, False):
        env.reset(seed)
        total = torch.zeros(envs)
        for _ in range(10):
            state = torch.from_numpy(env.env.env.state)
            best = (state[:, 2:] - state[:, :2]) / env.env.env.SPEED
            total += env.step(best if straight else torch.rand(envs, 2) * 2 - 1).reward
        returns.append(float(total.mean()))
    return returns


@LONG
@pytest.mark.parametrize("recipe", ["sac-pixels", "td3-pixels"])
def test_the_toy_pixel_task_is_solved(recipe, tmp_path):
    best, random = controller_return()
    assert best > 8 and random < 3
    summary = api.train(recipe, minutes=10, target=0.9 * best, run=tmp_path / "run", quiet=True)
    assert summary.target_reached_s is not None


@pytest.mark.parametrize("recipe", ["sac-pixels", "td3-pixels"])
def test_a_short_run_updates_saves_and_loads(recipe, tmp_path):
    config = dataclasses.replace(api.make_experiment(recipe, envs=4), deterministic=True)
    config = dataclasses.replace(
        config,
        until=dataclasses.replace(config.until, minutes=None, env_steps=200),
        system=dataclasses.replace(config.system, learning_starts=10, replay_capacity=1000),
        evaluation=dataclasses.replace(config.evaluation, episodes=2, env_steps=100),
    )
    config.run(tmp_path / "run", quiet=True)
    policy = api.load_policy(tmp_path / "run")
    image = torch.randint(0, 256, (1, 24, 24), dtype=torch.uint8)
    action = policy(image.numpy())
    assert action.shape == (2,) and abs(action).max() <= 1
    assert policy(torch.stack([image] * 3)).shape == (3, 2)
