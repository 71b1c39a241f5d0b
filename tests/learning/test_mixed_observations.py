"""Camera, joints and several discrete actions at once: rewards only if every observation is read."""

import dataclasses
from pathlib import Path

import pytest

from troop import api
from troop.algorithms import DQNConfig
from troop.core.engine import Until
from troop.core.system import Evaluation
from troop.engines import Inline
from troop.envs import Gymnasium
from troop.experiment import Experiment
from troop.roles.update_schedule import UpdateSchedule
from troop.runs.summary import Summary
from troop.start_notes import unread_observations
from troop.systems import Sync


def experiment(monkeypatch, **changes):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "envs"))
    algorithm = DQNConfig(
        gamma=0.0,
        optimizer="adam",
        lr=2e-3,
        eps=1e-5,
        hidden=(32,),
        epsilon_steps=1500,
        epsilon_end=0.05,
        normalize_observations=True,
    )
    return Experiment(
        Gymnasium("robot_env:Robot", 8),
        dataclasses.replace(algorithm, **changes),
        Sync(UpdateSchedule(32, 1), replay_capacity=4000, learning_starts=10),
        Inline(threads=1),
        until=Until(env_steps=2000),
        evaluation=Evaluation(episodes=8, env_steps=2000),
        deterministic=True,
    )


def test_dqn_joins_camera_and_joints_and_numbers_combinations_of_actions(monkeypatch, tmp_path, capsys):
    experiment(monkeypatch).run(tmp_path / "run")
    # One of six combinations is right: 1.7 of 10 at random, 3.3 from the camera and 5 from the joints alone.
    assert Summary.read(tmp_path / "run").return_mean > 8
    assert "DQN does not read the observation 'privileged' of robot_env:Robot" in capsys.readouterr().out
    import robot_env

    policy, env = api.load_policy(tmp_path / "run", allow=["robot_env"]), robot_env.Robot()
    obs, _ = env.reset(seed=3)
    rewards = []
    for _ in range(10):
        obs, reward, *_ = env.step(policy(obs))
        rewards.append(reward)
    assert sum(rewards) > 8


def test_doctor_names_observations_that_are_not_read(monkeypatch, capsys):
    from troop.cli.main import run

    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "envs"))
    assert run(["doctor", "--recipe", "dqn", "--env", "robot_env:Robot"]) == 0
    out = capsys.readouterr().out
    assert "unread     DQN does not read the observation 'privileged'" in out and "factors=(3, 2)" in out


def test_a_text_observation_of_minigrid_is_named():
    pytest.importorskip("envpool")
    sentences = unread_observations(api.make_experiment("dqn", "MiniGrid-Empty-5x5-v0"))
    assert sentences == ["the observation 'mission' of MiniGrid-Empty-5x5-v0 is a text and is not read"]
    assert not unread_observations(api.make_experiment("dqn", "CartPole-v1"))
    assert unread_observations(api.make_experiment("flashsac", "Pendulum-v1", env__last_step=True))
