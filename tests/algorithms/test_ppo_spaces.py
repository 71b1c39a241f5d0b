"""PPO on images, dicts, several discrete actions and action masks, and as a loaded policy."""

import inspect
import subprocess
import sys
import textwrap

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import troop
from troop.algorithms import PPOConfig
from troop.core.env import Continuous, Discrete, EnvSpec, Field
from troop.core.errors import EnvFault
from troop.envs import Gymnasium
from troop.envs.gymnasium.spaces import observation_arrays
from troop.envs.observations import ObsConverter, assign_names

SMALL = {"rollout_length": 4, "minibatches": 2, "hidden": (8,), "epochs": 1}


def spec(obs, action, envs=4):
    return EnvSpec("test", obs, action, envs)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_images_and_vectors_are_read_together(core):
    obs_spec = {"obs": Field((3, 12, 12), torch.uint8), "joints": Field((5,)), "privileged": Field((2,))}
    policy = PPOConfig(core=core, core_size=8, **SMALL).policy(spec(obs_spec, Continuous(2)))
    obs = {
        "obs": torch.randint(255, (4, 3, 12, 12), dtype=torch.uint8),
        "joints": torch.randn(4, 5),
        "privileged": torch.randn(4, 2),
    }
    state, started = policy.initial_state(4), torch.zeros(1, 4, dtype=torch.bool)
    outputs, value, _ = policy(obs, state, started)
    assert outputs.shape == (4, 4) and value.shape == (4,)
    for name in obs:
        changed = obs | {name: torch.zeros_like(obs[name])}
        other_outputs, other_value, _ = policy(changed, state, started)
        assert torch.equal(outputs, other_outputs) == (name == "privileged")
        assert not torch.equal(value, other_value)


def test_several_discrete_actions_have_a_distribution_each():
    policy = PPOConfig(**SMALL).policy(spec({"obs": Field((3,))}, Discrete(12, (3, 4))))
    assert policy.distribution.choices == (3, 4) and policy.net.actor.layers[-1].shape == (7,)
    actions = torch.cat(
        [policy.act({"obs": torch.randn(50, 3)}, None, torch.ones(50)).action for _ in range(9)]
    )
    assert set(actions.tolist()) == set(range(12))


class MaskedEnv(gymnasium.Env):
    """Three actions; the mask forbids the one taken last, and all of them after `stuck_after` steps."""

    observation_space = spaces.Dict(
        {"observation": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(3)}
    )
    action_space = spaces.Discrete(3)

    def __init__(self, stuck_after=1000):
        self.stuck_after = stuck_after

    def observe(self):
        mask = np.ones(3, np.int8)
        if self.last is not None:
            mask[self.last] = 0
        if self.steps >= self.stuck_after:
            mask[:] = 0
        return {"observation": np.zeros(2, np.float32), "action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.last, self.steps = None, 0
        return self.observe(), {}

    def step(self, action):
        assert action != self.last, "a forbidden action was taken"
        self.last, self.steps = int(action), self.steps + 1
        return self.observe(), 1.0, False, self.steps >= 9, {}


@pytest.fixture
def masked_env():
    gymnasium.register("Masked-v0", MaskedEnv)
    yield "gym:Masked-v0"
    gymnasium.registry.pop("Masked-v0")


class MixedEnv(gymnasium.Env):
    """An image, joints and a privileged observation; two discrete actions."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (3, 12, 12), np.uint8),
            "joints": spaces.Box(-np.inf, np.inf, (4,), np.float32),
            "privileged": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        }
    )
    action_space = spaces.MultiDiscrete([3, 4])

    def observe(self):
        return {
            "camera": self.np_random.integers(0, 255, (3, 12, 12), dtype=np.uint8),
            "joints": self.np_random.normal(size=4).astype(np.float32),
            "privileged": self.np_random.normal(size=2).astype(np.float32),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        assert action.shape == (2,) and action[0] in range(3) and action[1] in range(4)
        self.steps += 1
        return self.observe(), float(action[0] == 1), False, self.steps >= 7, {}


@pytest.fixture
def mixed_env():
    gymnasium.register("Mixed-v0", MixedEnv)
    yield "gym:Mixed-v0"
    gymnasium.registry.pop("Mixed-v0")


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_images_dicts_privileged_and_several_actions_are_trained_on_together(mixed_env, tmp_path, core):
    settings = {
        "rollout_length": 8,
        "minibatches": 2,
        "epochs": 2,
        "hidden": (8, 8),
        "core": core,
        "core_size": 8,
    }
    summary = troop.train(
        "ppo",
        mixed_env,
        envs=4,
        env_steps=200,
        run=tmp_path / "run",
        quiet=True,
        **{f"algorithm__{name}": value for name, value in settings.items()},
    )
    assert summary.status == "done" and summary.updates >= 5


@pytest.mark.parametrize("recipe", ["ppo", "ppo-lstm"])
def test_forbidden_actions_are_never_taken_while_training(masked_env, tmp_path, recipe):
    summary = troop.train(
        recipe,
        masked_env,
        envs=4,
        env_steps=1200,
        run=tmp_path / "run",
        quiet=True,
        algorithm__rollout_length=32,
    )
    assert summary.status == "done"


def test_a_mask_that_forbids_everything_names_env_row_and_step(masked_env):
    env = Gymnasium("Masked-v0", 2, settings=(("stuck_after", 3),)).make(1)
    step = env.reset(1)
    with pytest.raises(EnvFault, match=r"'Masked-v0' forbids every action in row 0 at vector step 3"):
        for _ in range(4):
            step = env.step(step.obs["action_mask"].argmax(1))
    ended = Gymnasium("Masked-v0", 2, "next_step", settings=(("stuck_after", 9),)).make(1)
    step = ended.reset(1)
    for _ in range(20):  # the mask of a final observation may forbid everything
        step = ended.step(step.obs["action_mask"].argmax(1))


@pytest.mark.parametrize("recipe", ["ppo", "a3c"])
def test_a_mask_that_forbids_everything_ends_the_command_with_one_sentence(recipe, tmp_path):
    (tmp_path / "stuck_envs.py").write_text(
        "import gymnasium\nimport numpy as np\nfrom gymnasium import spaces\n\n"
        + textwrap.dedent(inspect.getsource(MaskedEnv)).replace("stuck_after=1000", "stuck_after=5")
        + "\ngymnasium.register('Stuck-v0', MaskedEnv)\n"
    )
    command = ["train", recipe, "--env", "gym:stuck_envs:Stuck-v0", "--envs", "2", "--minutes", "2"]
    command += ["--run", str(tmp_path / "run"), "--evaluation.episodes", "1", "--engine.threads", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "troop", *command], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 4, done.stderr
    sentences = [line for line in done.stderr.splitlines() if line.startswith("troop: ")]
    assert len(sentences) == 1 and "Traceback" not in done.stderr
    assert "Stuck-v0' forbids every action in row 0 at vector step 5" in sentences[0]


def test_masks_keep_their_name_and_forbid_actions():
    converter = ObsConverter(
        assign_names(observation_arrays(MaskedEnv.observation_space, "masked")), "masked"
    )
    assert converter.fields["action_mask"].shape == (3,) and converter.fields["obs"].shape == (2,)
    config = PPOConfig(**SMALL)
    masked = spec(dict(converter.fields), Discrete(3))
    assert config.unsupported_reason(masked) is None
    policy = config.policy(masked)
    mask = torch.tensor([[1.0, 0.0, 1.0]]).expand(500, 3)
    output = policy.act({"obs": torch.randn(500, 2), "action_mask": mask}, None, torch.ones(500))
    assert set(output.action.tolist()) == {0, 2}
    assert config.unsupported_reason(spec(dict(converter.fields), Discrete(4))) is not None
    assert config.unsupported_reason(spec(dict(converter.fields), Continuous(1))) is not None


def test_a_loaded_recurrent_policy_continues_its_episode_until_it_is_reset(tmp_path):
    run = tmp_path / "run"
    troop.train("ppo-lstm", "toy:Recall", envs=8, env_steps=1100, run=run, quiet=True)
    policy, first, later = troop.load_policy(run), np.array([1.0, 0.0], "f4"), np.array([0.0, 0.5], "f4")
    actions = [policy(first, scaled=False), policy(later, scaled=False), policy(later, scaled=False)]
    policy.reset()
    again = [policy(first, scaled=False), policy(later, scaled=False)]
    assert np.array_equal(actions[0], again[0]) and np.array_equal(actions[1], again[1])
    assert not np.array_equal(actions[1], actions[2])  # the same observation, another memory
