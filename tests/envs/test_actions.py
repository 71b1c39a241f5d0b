"""Actions as backends take them: several discrete values, starts, dtypes and shapes."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from troop.algorithms import C51Config, DQNConfig, RainbowConfig, SACConfig
from troop.core.env import Discrete, EnvSpec, Field
from troop.core.errors import BadInput
from troop.envs import Gymnasium
from troop.envs.actions import convert_action_space


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([3, 2, 4]),
        spaces.MultiDiscrete([3, 2], start=[1, 5]),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])),
        spaces.MultiBinary(3),
        spaces.MultiBinary([2, 2]),
    ],
    ids=str,
)
def test_every_index_is_another_action_of_the_space(space):
    converter = convert_action_space(space, "MyEnv")
    actions = converter.to_env(np.arange(converter.spec.choices))
    assert actions.dtype == (np.int64 if isinstance(space, spaces.Discrete) else space.dtype)
    assert all(space.contains(action) for action in actions)
    assert len(np.unique(actions.reshape(len(actions), -1), axis=0)) == len(actions)
    sizes = getattr(space, "nvec", np.full(space.shape, 2)) if space.shape else [space.n]
    assert len(actions) == np.prod(sizes)


def test_the_last_factor_varies_fastest():
    converter = convert_action_space(spaces.MultiDiscrete([3, 2]), "MyEnv")
    assert converter.spec == Discrete(6, (3, 2))
    assert converter.to_env(np.array([0, 1, 2, 5])).tolist() == [[0, 0], [0, 1], [1, 0], [2, 1]]


def test_a_multi_dimensional_box_keeps_its_shape():
    converter = convert_action_space(spaces.Box(-2, 2, (2, 3), np.float64), "MyEnv")
    actions = converter.to_env(np.ones((4, 6), np.float32))
    assert actions.shape == (4, 2, 3) and actions.dtype == np.float64 and (actions == 2).all()


def test_an_unsupported_space_is_named():
    with pytest.raises(BadInput, match=r"env 'MyEnv' is Box.*MultiDiscrete or MultiBinary"):
        convert_action_space(spaces.Box(0, 9, (2,), np.int64), "MyEnv")
    with pytest.raises(BadInput, match="MultiBinary"):
        convert_action_space(spaces.MultiBinary(80), "MyEnv")


@pytest.mark.parametrize("config", [DQNConfig(), C51Config(), RainbowConfig()])
def test_too_many_combinations_are_refused_with_their_number(config):
    spec = EnvSpec("arms", {"obs": Field((3,))}, Discrete(11**4, (11,) * 4), 1)
    assert "14,641 actions (11 x 11 x 11 x 11)" in config.unsupported_reason(spec)
    assert "discrete" in SACConfig().unsupported_reason(spec)


@pytest.mark.parametrize("binary", [False, True])
def test_a_gymnasium_env_steps_with_combinations(binary, monkeypatch):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    config = Gymnasium("robot_env:Robot", 4, settings=(("binary", binary),))
    assert config.spec.action == Discrete(4, (2, 2)) if binary else Discrete(6, (3, 2))
    assert config.spec.obs == {
        "obs": Field((3, 20, 24), torch.uint8), "joints": Field((2,)), "privileged": Field((1,))
    }  # fmt: skip
    env = config.make(0)
    step = env.reset(0)
    for _ in range(12):
        bright = step.obs["obs"][:, 0, 0].float().argmax(1) // 8
        second = (step.obs["joints"][:, 0] > 0).long()
        step = env.step(bright * 2 + second)
        assert (step.reward == 1).all()
    env.close()
