import textwrap

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from troop.core.config_json import decode
from troop.core.env import Continuous, Discrete, Field
from troop.core.errors import BadInput
from troop.envs import Gymnasium


@pytest.fixture
def user_modules(tmp_path, monkeypatch):
    """Modules of a user in the working directory."""
    (tmp_path / "user_module.py").write_text(
        textwrap.dedent(
            """
            import gymnasium, numpy as np
            from gymnasium import spaces

            class Mixed(gymnasium.Env):
                observation_space = spaces.Dict({
                    "speed": spaces.Box(-1, 1, (2, 2), np.float64), "gear": spaces.Discrete(3, start=1),
                    "privileged": spaces.Box(0, 9, (2,), np.float32)})
                action_space = spaces.Box(np.array([[0.0, -2.0]]), np.array([[10.0, 2.0]]), dtype=np.float64)
                def __init__(self, length=2):
                    self.length = length
                def _obs(self):
                    return {"speed": np.full((2, 2), self.t / 10), "gear": 1 + self.t % 3,
                            "privileged": np.full(2, self.t, np.float32)}
                def reset(self, seed=None, options=None):
                    super().reset(seed=seed)
                    self.t = 0
                    return self._obs(), {}
                def step(self, action):
                    self.t += 1
                    return self._obs(), float(action.sum()), self.t == self.length, self.t == self.length, {}

            def build(length=4):
                return Mixed(length)

            class Camera(Mixed):
                observation_space = spaces.Box(0, 255, (6, 6, 3), np.uint8)
                action_space = spaces.Discrete(3, start=5)
                def _obs(self):
                    return np.full((6, 6, 3), self.t, np.uint8) + np.array([0, 10, 20], np.uint8)
                def step(self, action):
                    assert 5 <= action <= 7
                    obs, _, end, _, info = super().step(np.zeros(1))
                    return obs, float(action), end, False, info

            def not_an_env():
                return 3

            gymnasium.register("UserMixed-v0", Mixed, max_episode_steps=50)
            """
        )
    )
    (tmp_path / "user_broken.py").write_text("x = 1\nraise RuntimeError('the sensor is missing')\n")
    (tmp_path / "user_typo.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    gymnasium.registry.pop("UserMixed-v0", None)
    __import__("sys").modules.pop("user_module", None)


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
@pytest.mark.parametrize("workers", [0, 2])
def test_nested_observations_of_a_user_class(user_modules, mode, workers):
    cfg = Gymnasium("user_module:Mixed", 2, mode, workers)
    assert cfg.spec.obs == {"obs": Field((7,)), "privileged": Field((2,))}
    assert cfg.spec.action == Continuous(2)
    env = cfg.make(0)
    first = env.reset(0)
    order = list(spaces.Dict({"speed": spaces.Discrete(2), "gear": spaces.Discrete(2)}))
    gear, speed = [1.0, 0.0, 0.0], [0.0] * 4
    expected = speed + gear if order == ["speed", "gear"] else gear + speed
    assert first.obs["obs"][0].tolist() == expected
    env.step(torch.zeros(2, 2))
    last = env.step(torch.tensor([[1.0, 1.0], [-1.0, -9.0]]))
    assert last.reward.tolist() == [12.0, -2.0]
    assert last.next_obs["privileged"].tolist() == [[2, 2], [2, 2]]
    assert last.terminated.all() and not last.truncated.any()
    assert last.obs["privileged"][0, 0] == (2 if mode == "next_step" else 0)
    env.close()


def test_images_and_discrete_actions_that_do_not_start_at_zero(user_modules):
    cfg = Gymnasium("user_module:Camera", 2)
    assert cfg.spec.obs == {"obs": Field((3, 6, 6), torch.uint8)} and cfg.spec.action == Discrete(3)
    env = cfg.make(0)
    env.reset(0)
    step = env.step(torch.tensor([0, 2]))
    assert step.reward.tolist() == [5, 7] and (step.obs["obs"][0, :, 2, 4]).tolist() == [1, 11, 21]
    last = env.step(torch.tensor([0, 2])).next_obs["obs"]
    assert last.amax(dim=(2, 3)).tolist() == [[2, 12, 22]] * 2
    env.close()


def test_registered_ids_functions_and_settings_of_a_user_module(user_modules):
    assert Gymnasium("user_module:UserMixed-v0").spec.episode_limit == 50
    env = Gymnasium("user_module:build", 1, settings=(("length", 1),)).make(0)
    env.reset(0)
    assert env.step(torch.zeros(1, 2)).terminated.all()


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("user_module:Mixd", "did you mean 'Mixed'"),
        ("user_module:not_an_env", "must return a gymnasium.Env"),
        ("user_missing:Env", "no module 'user_missing'"),
        ("user_broken:Env", r"the sensor is missing.*user_broken.py, line 2"),
        ("user_typo:Env", r"SyntaxError.*user_typo.py, line 1"),
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
    ],
)
@pytest.mark.reliability("C5")
def test_user_errors_are_explained(user_modules, id, message):
    with pytest.raises(BadInput, match=message):
        _ = Gymnasium(id).spec


def test_unknown_constructor_arguments_are_named(user_modules):
    with pytest.raises(BadInput, match="weight"):
        Gymnasium("user_module:Mixed", settings=(("weight", 3),)).make(0)


def test_a_config_of_an_older_version_is_read():
    """`vectorize` was replaced by `workers`."""
    data = {"kind": "Gymnasium", "id": "CartPole-v1", "envs": 2, "vectorize": "async"}
    assert decode(data, {"Gymnasium": Gymnasium}.__getitem__) == Gymnasium("CartPole-v1", 2)


def test_neighbouring_seeds_share_no_env():
    one = Gymnasium("Pendulum-v1", 6).make(0).reset(0).obs["obs"].numpy()
    two = Gymnasium("Pendulum-v1", 6).make(1).reset(1).obs["obs"].numpy()
    assert not (np.abs(one[:, None] - two[None]).max(axis=2) == 0).any()
