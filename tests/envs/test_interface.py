"""A loaded policy takes what its env returns and returns what its env takes."""

import gymnasium
import numpy as np
import pytest
import torch

from troop.algorithms import DQNConfig, SACConfig, TD3Config
from troop.api import TrainedPolicy
from troop.core.errors import BadInput
from troop.envs import EnvPool, FrameConfig, Gymnasium, Toy
from troop.envs.interface import find_interface

SMALL = {"actor_hidden": (8,), "critic_hidden": (8,)}


def policy(config, algorithm):
    torch.manual_seed(0)
    return TrainedPolicy(algorithm.policy(config.spec), config)


@pytest.fixture
def robot(monkeypatch):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    return Gymnasium("robot_env:Robot", 3)


def test_dict_observations_and_several_discrete_actions(robot):
    from robot_env import Robot

    act, env = policy(robot, DQNConfig(hidden=(8,))), Robot()
    obs, _ = env.reset(seed=0)
    chosen = set()
    for _ in range(10):
        action = act(obs)
        assert isinstance(action, np.ndarray) and env.action_space.contains(action)
        chosen.add(tuple(action))
        obs = env.step(action)[0]
    batch = [Robot().reset(seed=seed)[0] for seed in range(4)]
    stacked = {key: np.stack([row[key] for row in batch]) for key in obs}
    actions = act(stacked)
    assert actions.shape == (4, 2)
    assert all(np.array_equal(act(row), action) for row, action in zip(batch, actions, strict=True))


def test_the_policy_of_a_vector_env_equals_the_policy_of_its_raw_observations(robot):
    act = policy(robot, DQNConfig(hidden=(8,)))
    converted = robot.make(0).reset(0).obs
    named = act({name: x for name, x in converted.items() if name != "privileged"})
    assert isinstance(named, torch.Tensor) and named.shape == (3, 2)
    raw = {"camera": converted["obs"].permute(0, 2, 3, 1).numpy(), "joints": converted["joints"].numpy()}
    assert np.array_equal(act(raw), named.numpy())


def test_errors_name_the_key_and_both_shapes(robot):
    act = policy(robot, DQNConfig(hidden=(8,)))
    joints = np.zeros(2, np.float32)
    with pytest.raises(BadInput, match=r"env 'robot_env:Robot' has no\['camera'\]"):
        act({"joints": joints})
    with pytest.raises(BadInput, match=r"\['camera'\].*is uint8 \(9, 9, 3\); expected \(20, 24, 3\)"):
        act({"camera": np.zeros((9, 9, 3), np.uint8), "joints": joints})
    with pytest.raises(BadInput, match=r"\['joints'\].*has shape \(2,\); expected \(5, 2\)"):
        act({"camera": np.zeros((5, 20, 24, 3), np.uint8), "joints": joints})
    toy = policy(Toy("PointMass"), TD3Config(atoms=0, **SMALL))
    with pytest.raises(BadInput, match=r"takes observations 'obs' \(2,\), not \(3,\)"):
        toy(np.zeros(3))


def test_channels_last_images_and_asymmetric_bounds_of_car_racing():
    pytest.importorskip("envpool")
    config = EnvPool("CarRacing-v3", 1, 1)
    act = policy(config, SACConfig(torso="small", **SMALL))
    image = np.random.default_rng(0).integers(0, 255, (96, 96, 3), dtype=np.uint8)
    action = act(image)
    assert action.shape == (3,) and action.dtype == np.float32
    assert (action >= [-1, 0, 0]).all() and (action <= 1).all()
    assert np.allclose(act(image[None])[0], action, atol=1e-5)
    chw = torch.from_numpy(image).permute(2, 0, 1)
    assert isinstance(act(chw), torch.Tensor) and np.allclose(act(chw).numpy(), action, atol=1e-5)
    raw = act(image, scaled=False)
    assert np.allclose(action, [raw[0], (raw[1] + 1) / 2, (raw[2] + 1) / 2], atol=1e-6)


def test_single_frames_are_stacked_as_the_env_does():
    pytest.importorskip("envpool")
    frames = FrameConfig(gray=True, shrink=4, stack=3)
    config = EnvPool("CarRacing-v3", 1, 1, frames=frames)
    act = policy(config, SACConfig(torso="small", **SMALL))
    images = np.random.default_rng(0).integers(0, 255, (5, 96, 96, 3), dtype=np.uint8)
    small = frames.convert(images.transpose(0, 3, 1, 2))[:, 0]
    for first, last in ((0, 4), (1, 5)):
        act.reset()
        for step in range(first, last):
            stack = small[[max(first, step - k) for k in (2, 1, 0)]]
            assert np.allclose(act(images[step]), act(stack), atol=1e-6)


def test_discrete_actions_have_the_numbers_of_the_env():
    config = Gymnasium("CartPole-v1", 1)
    act = policy(config, DQNConfig(hidden=(8,)))
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    assert env.action_space.contains(act(obs)) and act(obs).dtype == np.int64
    assert find_interface(Toy("Clock", discrete=True)).write(torch.tensor([1])).tolist() == [1]


def test_discrete_and_tuple_observations_are_taken_as_the_env_returns_them():
    lake = policy(Gymnasium("FrozenLake-v1", 1), DQNConfig(hidden=(8,)))
    states = np.arange(16)
    actions = lake(states)
    assert actions.shape == (16,) and all(lake(int(state)) == actions[state] for state in states)
    one_hot = lake(np.eye(16, dtype=np.float32))
    assert np.array_equal(one_hot, actions)
    jack = policy(Gymnasium("Blackjack-v1", 1), DQNConfig(hidden=(8,)))
    env = gymnasium.make("Blackjack-v1")
    obs, _ = env.reset(seed=0)
    assert isinstance(obs, tuple) and env.action_space.contains(jack(obs))
