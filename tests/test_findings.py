"""What a hostile reader once found: each would come back unnoticed without its test."""

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


def replay(n, rows=60, full=40):
    made = UniformReplay(SPEC, NStep(n, 0.9), ReplaySize(full, 2), seed=0)
    for time in range(rows):
        ended = torch.full((1, 2), time % 5 == 4)
        made.add(
            Rollout(
                torch.arange(2),
                {"obs": torch.full((1, 2, 2), float(time))},
                torch.zeros(1, 2, 1),
                torch.ones(1, 2),
                ended,
                torch.zeros(1, 2, dtype=torch.bool),
                torch.zeros(1, 2, dtype=torch.bool),
            )
        )
    return made


def test_windows_of_a_loaded_replay_stop_at_ends_whoever_saved_it():
    state = copy.deepcopy(replay(1).state_dict())
    made = replay(3)
    made.load_state_dict(state)
    batch = made.sample(40_000)
    assert sorted(batch.discount.unique().tolist()) == [0.0, pytest.approx(0.9**3)]
    share = (batch.discount == 0).float().mean().item()
    assert share == pytest.approx(21 / 37, abs=0.02)  # three of five starts reach the end, of rows 20 to 56


def test_a_policy_acts_on_what_it_is_trained_on_when_nothing_is_normalized():
    made = api.experiment("td3", "Pendulum-v1").algorithm.algorithm(
        api.experiment("td3", "Pendulum-v1").env.spec
    )
    obs = torch.randn(4, 3)
    acted = made.policy.act({"obs": obs}, None, torch.zeros(4)).action
    assert torch.equal(acted, made.policy(obs))


def test_a_last_checkpoint_that_cannot_be_written_is_no_success(tmp_path, monkeypatch, capsys):
    from troop.core.errors import SetupProblem
    from troop.runs import checkpoint

    real, calls = checkpoint.save, []

    def save(*args, **kwargs):
        calls.append(1)
        if len(calls) > 1:
            raise SetupProblem("The disk is full.")
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", save)
    argv = ["train", "fasttd3", "--env", "toy:PointMass", "--env-steps", "200", "--run", str(tmp_path / "r")]
    assert run(argv) == 5
    assert "disk is full" in capsys.readouterr().err
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["status"] == "failed"


def test_an_env_that_raises_is_one_sentence_naming_its_line_and_can_be_resumed(tmp_path, monkeypatch, capsys):
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
    said = capsys.readouterr().err
    assert "the gripper is gone" in said and "raising.py" in said and "Traceback" not in said
    assert "the gripper is gone" in (tmp_path / "r" / "error.txt").read_text()
    assert list((tmp_path / "r" / "checkpoints").glob("ckpt-*")), "there is something to resume"


def test_reward_scaling_with_a_range_on_one_side_is_refused():
    made = api.experiment("fasttd3-cpu", "Pendulum-v1")
    with pytest.raises(BadInput, match="normalize_rewards"):
        dataclasses.replace(made, algorithm=dataclasses.replace(made.algorithm, v_min=0.0)).check()


def test_resuming_keeps_the_target_unless_another_is_given():
    old = Until(minutes=10, target=900)
    assert api.extend_until(old, 15, None, None) == Until(minutes=15, target=900)
    assert api.extend_until(old, None, None, 950) == Until(minutes=10, target=950)
    assert api.extend_until(old, None, 1000, None) == Until(env_steps=1000, target=900)


def test_a_fault_ends_the_evaluated_episode():
    config = Toy("Faulty", 2, limit=10, faults=((4, 0, "nan_obs"),))
    policy = api.experiment("fasttd3-cpu", "toy:Clock").algorithm.policy(config.spec)
    env = config.make(0)
    _, lengths, finished = first_episodes(env, policy, 0, 50)
    assert lengths.tolist()[1] == 10 and lengths.tolist()[0] < 5
    assert finished.tolist() == [False, True]


def test_whole_gammas_and_empty_names_and_cpu_zero_do_not_surprise(capsys):
    made = UniformReplay(SPEC, NStep(2, 1), ReplaySize(40, 2), seed=0)
    made.load_state_dict(replay(2).state_dict())
    assert made.sample(8).discount.dtype == torch.float32
    assert run(["train", "fasttd3", "--env", ""]) == 2
    assert api.experiment("fasttd3", "Pendulum-v1", device="cpu:0").system.schedule.batch_size == 256


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
def test_a_config_file_that_is_not_one_is_told_in_a_sentence(tmp_path, change, capsys):
    config = api.experiment("fasttd3", "toy:Clock").to_dict() | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(["eval", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_loaded_policy_is_judged_on_whole_games_and_in_percent_of_a_human(tmp_path, monkeypatch):
    argv = ["--envs", "2", "--env-steps", "64", "--evaluation.longest", "20", "--system.learning-starts", "8"]
    assert run(["train", "dqn-cpu", "--env", "Pong-v5", *argv, "--run", str(tmp_path / "run")]) == 0
    clipped = api.experiment("dqn-cpu", "Pong-v5").env
    judged = api.load_policy(tmp_path / "run").env
    assert judged.settings != clipped.settings and judged == clipped.for_evaluation().with_envs(2)
    played = torch.tensor([14.6]), torch.tensor([900.0]), torch.tensor([True])
    monkeypatch.setattr(api, "first_episodes", lambda *_: played)
    assert api.evaluate(tmp_path / "run", episodes=1)["human_normalized"] == pytest.approx(100, abs=0.1)
