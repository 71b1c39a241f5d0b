"""Hidden columns of `obs`: the others are unchanged on every backend, also for a loaded policy."""

import dataclasses

import gymnasium
import pytest
import torch

from troop.algorithms import TD3Config
from troop.api import TrainedPolicy
from troop.cli.train import parse_command
from troop.core.env import Continuous
from troop.core.errors import BadInput
from troop.envs import EnvPool, FrameConfig, Gymnasium, Toy
from troop.envs.interface import find_interface
from troop.export.interface_graph import InterfaceGraph

CASES = {
    "toy": (Toy("PointMass", 3, limit=4, privileged=True), (1,)),
    "toy, next step": (Toy("PointMass", 3, limit=4, autoreset="next_step"), (0,)),
    "gymnasium": (Gymnasium("Pendulum-v1", 3, settings=(("max_episode_steps", 9),)), (2,)),
    "gymnasium, workers": (Gymnasium("CartPole-v1", 3, workers=2), (1, 3)),
    "envpool": (EnvPool("CartPole-v1", 3, 1), (3, 1)),
    "envpool, action repeat": (EnvPool("Pendulum-v1", 3, 1, frames=FrameConfig(repeat=2)), (2,)),
    "envpool, DMC": (EnvPool("CartpoleSwingup-v1", 3, 1), (3, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_observations_lack_the_hidden_columns_and_nothing_else(case):
    config, hide = CASES[case]
    hidden = dataclasses.replace(config, hide=hide)
    width = config.spec.obs["obs"].shape[0]
    visible = [column for column in range(width) if column not in hide]
    assert hidden.spec.obs["obs"].shape == (width - len(hide),)
    assert hidden.spec.action == config.spec.action
    full_env, env, generator = config.make(1), hidden.make(1), torch.Generator().manual_seed(0)
    pairs = [(full_env.reset(1), env.reset(1))]
    for _ in range(30):
        if isinstance(config.spec.action, Continuous):
            action = torch.randn(3, config.spec.action.size, generator=generator)
        else:
            action = torch.randint(2, (3,), generator=generator)
        pairs.append((full_env.step(action), env.step(action)))
    for full, step in pairs:
        assert torch.equal(step.obs["obs"], full.obs["obs"][:, visible])
        assert torch.equal(step.next_obs["obs"], full.next_obs["obs"][:, visible])
        assert all(torch.equal(step.obs[k], x) for k, x in full.obs.items() if k != "obs")
        for name in ("reward", "terminated", "truncated", "valid", "started"):
            assert torch.equal(getattr(step, name), getattr(full, name))
    rows = torch.tensor([2])
    assert torch.equal(env.restart(rows)["obs"], full_env.restart(rows)["obs"][:, visible])
    env.close(), full_env.close()


def test_bad_columns_are_refused_with_the_columns_that_exist():
    with pytest.raises(BadInput, match="names column 4; 'obs' of env 'CartPole-v1' has columns 0 to 3"):
        _ = EnvPool("CartPole-v1", 3, hide=(1, 4)).spec
    with pytest.raises(BadInput, match="names column -1"):
        _ = Gymnasium("CartPole-v1", 3, hide=(-1,)).spec
    with pytest.raises(BadInput, match="hides all 2 columns"):
        _ = Toy("PointMass", hide=(0, 1)).spec
    with pytest.raises(BadInput, match="is an image"):
        _ = Toy("Reach", hide=(0,)).spec


def test_a_loaded_policy_takes_full_and_hidden_observations():
    config = Gymnasium("Pendulum-v1", 2, hide=(2,))
    torch.manual_seed(0)
    policy = TrainedPolicy(TD3Config(actor_hidden=(8,), critic_hidden=(8,)).policy(config.spec), config)
    obs, _ = gymnasium.make("Pendulum-v1").reset(seed=0)
    action = policy(obs)
    obs[2] = 5.0
    assert action == policy(obs) == policy(obs[:2])


def test_an_exported_policy_takes_full_observations():
    interface = find_interface(Gymnasium("CartPole-v1", 2, hide=(1, 3)))
    obs = torch.arange(8.0).view(2, 4)
    rows, _, _ = interface.read(obs)
    assert torch.equal(InterfaceGraph(interface).read({"obs": obs})["obs"], rows["obs"])
    assert rows["obs"].tolist() == [[0, 2], [4, 6]]


def test_last_step_is_added_to_hidden_observations():
    spec = EnvPool("CartPole-v1", 3, hide=(1, 3), last_step=True).spec
    assert spec.shapes() == {"obs": (2,), "last_action": (2,), "last_reward": (1,)}


def test_the_flag_takes_several_columns():
    command = parse_command(["ppo-lstm", "--env", "CartPole-v1", "--env.hide", "1", "3"])
    assert command.experiment.env.hide == (1, 3)
