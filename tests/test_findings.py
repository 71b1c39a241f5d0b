"""Regression tests of defects found in reviews, which other tests would not notice."""

import copy
import dataclasses
import json
import textwrap

import pytest
import torch

from troop import api
from troop.cli.main import run
from troop.core.batch import NStep, Rollout
from troop.core.engine import Until
from troop.core.env import Continuous, EnvSpec, Field
from troop.core.errors import BadInput
from troop.envs import Toy
from troop.replay.uniform import ReplaySize, UniformReplay
from troop.roles.evaluator import first_episodes

SPEC = EnvSpec("test", {"obs": Field((2,))}, Continuous(1), 2)


def filled_replay(n, steps=60, length=40):
    """Return a replay of two streams with a termination every five steps."""
    replay = UniformReplay(SPEC, NStep(n, 0.9), ReplaySize(length, 2), seed=0)
    for step in range(steps):
        terminated = torch.full((1, 2), step % 5 == 4)
        replay.add(
            Rollout(
                torch.arange(2),
                {"obs": torch.full((1, 2, 2), float(step))},
                torch.zeros(1, 2, 1),
                torch.ones(1, 2),
                terminated,
                torch.zeros(1, 2, dtype=torch.bool),
                torch.zeros(1, 2, dtype=torch.bool),
            )
        )
    return replay


def test_windows_of_a_loaded_replay_stop_at_terminations_if_it_was_saved_with_another_n():
    state = copy.deepcopy(filled_replay(1).state_dict())
    replay = filled_replay(3)
    replay.load_state_dict(state)
    batch = replay.sample(40_000)
    assert sorted(batch.discount.unique().tolist()) == [0.0, pytest.approx(0.9**3)]
    terminal = (batch.discount == 0).float().mean().item()
    assert terminal == pytest.approx(21 / 37, abs=0.02)  # three of five windows in rows 20 to 56


def test_unnormalized_policy_acts_with_the_network_that_is_trained():
    experiment = api.make_experiment("td3-paper", "Pendulum-v1")
    learner = experiment.algorithm.algorithm(experiment.env.spec)
    obs = torch.randn(4, 3)
    action = learner.policy.act({"obs": obs}, None, torch.zeros(4)).action
    assert torch.equal(action, learner.policy(obs))


@pytest.mark.reliability("F4")
def test_run_fails_if_the_last_checkpoint_cannot_be_written(tmp_path, monkeypatch, capsys):
    from troop.core.errors import SetupProblem
    from troop.runs import checkpoint

    original, calls = checkpoint.save, []

    def save(*args, **kwargs):
        calls.append(1)
        if len(calls) > 1:
            raise SetupProblem("The disk is full.")
        return original(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", save)
    argv = ["train", "fasttd3", "--env", "toy:PointMass", "--env-steps", "200", "--run", str(tmp_path / "r")]
    assert run(argv) == 5
    assert "disk is full" in capsys.readouterr().err
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.reliability("C5")
def test_env_that_raises_ends_the_run_with_one_sentence_and_a_checkpoint(tmp_path, monkeypatch, capsys):
    (tmp_path / "raising.py").write_text(
        textwrap.dedent("""
            import gymnasium as gym
            import numpy as np

            class Raising(gym.Env):
                observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
                action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
                steps = 0
                def reset(self, *, seed=None, options=None):
                    return np.zeros(2, np.float32), {}
                def step(self, action):
                    self.steps += 1
                    if self.steps > 20:
                        raise ValueError("the gripper is gone")
                    return np.zeros(2, np.float32), 0.0, False, False, {}
        """)
    )
    monkeypatch.chdir(tmp_path)
    assert run(["train", "fasttd3", "--env", "raising:Raising", "--env-steps", "9999", "--run", "r"]) == 4
    message = capsys.readouterr().err
    assert "the gripper is gone" in message and "raising.py" in message and "Traceback" not in message
    assert "the gripper is gone" in (tmp_path / "r" / "error.txt").read_text()
    assert list((tmp_path / "r" / "checkpoints").glob("ckpt-*")), "the run can be resumed"


def test_reward_scaling_with_an_asymmetric_value_range_is_rejected():
    experiment = api.make_experiment("fasttd3-cpu", "Pendulum-v1")
    algorithm = dataclasses.replace(experiment.algorithm, v_min=0.0)
    with pytest.raises(BadInput, match="normalize_rewards"):
        dataclasses.replace(experiment, algorithm=algorithm).check()


def test_resumed_run_keeps_its_target_unless_another_is_given():
    old = Until(minutes=10, target=900)
    assert api.extend_until(old, 15, None, None) == Until(minutes=15, target=900)
    assert api.extend_until(old, None, None, 950) == Until(minutes=10, target=950)
    assert api.extend_until(old, None, 1000, None) == Until(env_steps=1000, target=900)


def test_env_fault_ends_the_evaluated_episode():
    config = Toy("Faulty", 2, limit=10, faults=((4, 0, "nan_obs"),))
    policy = api.make_experiment("fasttd3-cpu", "toy:Clock").algorithm.policy(config.spec)
    env = config.make(0)
    _, lengths, finished = first_episodes(env, policy, 0, 50)
    assert lengths.tolist()[1] == 10 and lengths.tolist()[0] < 5
    assert finished.tolist() == [False, True]


def test_integer_gamma_gives_float_discounts():
    replay = UniformReplay(SPEC, NStep(2, 1), ReplaySize(40, 2), seed=0)
    replay.load_state_dict(filled_replay(2).state_dict())
    assert replay.sample(8).discount.dtype == torch.float32


def test_empty_env_id_is_rejected(capsys):
    assert run(["train", "fasttd3", "--env", ""]) == 2


def test_cpu_with_an_index_is_a_cpu():
    assert api.make_experiment("fasttd3", "Pendulum-v1", device="cpu:0").system.schedule.batch_size == 256


@pytest.mark.parametrize(
    "change",
    [
        {"seed": "abc"},
        {"until": None},
        {"env": 5},
        {"algorithm": {"kind": "Until"}},
        {"nonsense": 1},
        {"algorithm": {"kind": "TD3Config", "actor_hidden": ["a"]}},
        {"algorithm": {"kind": "os.system"}},
    ],
)
@pytest.mark.reliability("C4")
def test_invalid_config_file_is_reported_in_one_sentence(tmp_path, change, capsys):
    config = api.make_experiment("fasttd3", "toy:Clock").to_dict() | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(["eval", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_loaded_atari_policy_is_evaluated_on_full_games_with_a_human_normalized_score(tmp_path, monkeypatch):
    flags = ["--envs", "2", "--env-steps", "64", "--evaluation.max-episode-steps", "20"]
    flags += ["--system.learning-starts", "8", "--run", str(tmp_path / "run")]
    assert run(["train", "dqn-cpu", "--env", "Pong-v5", *flags]) == 0
    training_env = api.make_experiment("dqn-cpu", "Pong-v5").env
    evaluation_env = api.load_policy(tmp_path / "run").env
    assert evaluation_env.settings != training_env.settings
    assert evaluation_env == training_env.for_evaluation().with_envs(2)
    episode = torch.tensor([14.6]), torch.tensor([900.0]), torch.tensor([True])
    monkeypatch.setattr(api, "first_episodes", lambda *_: episode)
    assert api.evaluate(tmp_path / "run", episodes=1)["human_normalized"] == pytest.approx(100, abs=0.1)
