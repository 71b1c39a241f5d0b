"""The last action and reward as observations: of the right step, zero at episode starts, on every backend."""

import gymnasium
import numpy as np
import pytest
import torch

from troop.algorithms import ImpalaConfig
from troop.api import TrainedPolicy
from troop.core.env import Continuous
from troop.envs import EnvPool, Gymnasium, Toy
from troop.envs.last_step import LAST_ACTION, LAST_REWARD

CASES = {
    "toy, same step": Toy("PointMass", 3, limit=4, autoreset="same_step", last_step=True),
    "toy, next step": Toy("PointMass", 3, limit=4, autoreset="next_step", last_step=True),
    "toy, discrete": Toy("Countdown", 3, limit=5, discrete=True, last_step=True),
    "gymnasium": Gymnasium("CartPole-v1", 3, last_step=True),
    "several discrete actions": Gymnasium(f"{__name__}:Levers", 3, last_step=True),
    "envpool": EnvPool("CartPole-v1", 3, 1, last_step=True),
}


class Levers(gymnasium.Env):
    """Three discrete actions at once; episodes of four steps."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.MultiDiscrete([3, 2, 4])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), float(action.sum()), self.steps == 4, False, {}


def expected_action(action, kind):
    if isinstance(kind, Continuous):
        return action.clamp(-1, 1)
    sizes = kind.factors or (kind.choices,)
    parts = zip(np.unravel_index(action.numpy(), sizes), sizes, strict=True)
    return torch.cat([torch.eye(size)[torch.from_numpy(part)] for part, size in parts], -1)


@pytest.mark.parametrize("case", CASES)
def test_observations_contain_the_action_and_reward_that_led_to_them(case):
    config = CASES[case]
    env, kind = config.make(1), config.spec.action
    step = env.reset(1)
    for name in (LAST_ACTION, LAST_REWARD):
        assert step.obs[name].shape == (3, *config.spec.obs[name].shape) and not step.obs[name].any()
    generator, ends = torch.Generator().manual_seed(0), 0
    for _ in range(60):
        if isinstance(kind, Continuous):
            action = 3 * torch.randn(3, kind.size, generator=generator)
        else:
            action = torch.randint(kind.choices, (3,), generator=generator)
        step = env.step(action)
        for row in range(3):
            led = expected_action(action, kind)[row]
            if step.valid[row]:
                assert torch.equal(step.next_obs[LAST_ACTION][row], led)
                assert float(step.next_obs[LAST_REWARD][row]) == float(step.reward[row].clamp(-1, 1))
            if step.started[row]:
                assert not step.obs[LAST_ACTION][row].any() and not step.obs[LAST_REWARD][row].any()
                ends += 1
            else:
                assert torch.equal(step.obs[LAST_ACTION][row], led)
    assert ends
    env.close()


def test_several_discrete_actions_have_a_one_hot_each():
    config = CASES["several discrete actions"]
    assert config.spec.obs[LAST_ACTION].shape == (9,)  # not one column for each of 24 combinations
    env = config.make(1)
    env.reset(1)
    last = env.step(torch.tensor([0, 23, 9])).obs[LAST_ACTION]  # (0, 0, 0), (2, 1, 3), (1, 0, 1)
    assert last.tolist() == [
        [1, 0, 0, 1, 0, 1, 0, 0, 0],
        [0, 0, 1, 0, 1, 0, 0, 0, 1],
        [0, 1, 0, 1, 0, 0, 1, 0, 0],
    ]
    env.close()


def test_loaded_policy_remembers_its_action_and_takes_the_reward():
    config = Gymnasium("CartPole-v1", 2, last_step=True)
    torch.manual_seed(0)
    policy = TrainedPolicy(ImpalaConfig(hidden=(8, 8), core="lstm", core_size=4).policy(config.spec), config)
    inputs, act = [], policy.module.act
    policy.module.act = lambda obs, state, explore: inputs.append(obs) or act(obs, state, explore)
    env, reward = gymnasium.make("CartPole-v1"), 0.0
    obs, _ = env.reset(seed=0)
    actions = []
    for _ in range(5):
        action = policy(obs, reward=reward)
        actions.append(int(action))
        obs, reward, *_ = env.step(action)
    assert not inputs[0][LAST_ACTION].any() and not inputs[0][LAST_REWARD].any()
    for number in range(1, 5):
        assert inputs[number][LAST_ACTION].tolist() == [np.eye(2)[actions[number - 1]].tolist()]
        assert inputs[number][LAST_REWARD].tolist() == [[1.0]]
    policy.reset()
    policy(obs)
    assert not inputs[-1][LAST_ACTION].any()
