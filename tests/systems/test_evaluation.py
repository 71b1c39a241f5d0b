"""Training, `troop eval`, --target and `troop compare` evaluate a policy in one and the same way."""

import dataclasses

import pytest
from small_systems import DISCRETE_CLOCK, DQN, GORILA

from troop import api
from troop.cli.main import run
from troop.core.program import construct
from troop.core.system import UNLIMITED_STEPS, Evaluation, RunSettings
from troop.envs import EnvPool, Toy
from troop.systems import Sync

ATARI_LIMIT = 27_000


def training_evaluator(env, evaluation, algorithm=DQN, system=GORILA):
    """Return the evaluator that the system adds, without its policy and its weights."""
    build = system.program(algorithm, env, RunSettings(1, "cpu", evaluation)).nodes["evaluator"].build
    make_env, _, _, *rest = build.args
    return construct(dataclasses.replace(build, args=(make_env, None, None, *rest)), None)


@pytest.mark.parametrize(
    "env, limit",
    [
        (EnvPool("Pong-v5", 2), ATARI_LIMIT + 1),
        (Toy("Clock", 2, limit=50_000, discrete=True), 50_001),
        (Toy("Countdown", 2, discrete=True), UNLIMITED_STEPS),  # its spec has no limit
    ],
)
def test_episodes_are_evaluated_to_the_time_limit_of_the_env(env, limit):
    for system in (GORILA, Sync(replay_capacity=10_000)):
        assert training_evaluator(env, Evaluation(), system=system).max_steps == limit
    assert training_evaluator(env, Evaluation(max_episode_steps=30)).max_steps == 30


def test_troop_eval_uses_the_limit_and_the_exploration_of_the_training_evaluations(tmp_path, monkeypatch):
    path = tmp_path / "run"
    flags = ["--env-steps", "16", "--evaluation.episodes", "2", "--evaluation.explore", "0.25"]
    assert run(["train", "dqn", "--env", "Catch-v0", *flags, "--run", str(path)]) == 0
    calls = []

    def record(env, policy, seed, max_steps, explore, on_step):
        calls.append((max_steps, explore))
        return first_episodes(env, policy, seed, max_steps, explore, on_step)

    first_episodes = api.first_episodes
    monkeypatch.setattr(api, "first_episodes", record)
    experiment = api.Experiment.from_dict(api.RunDirectory.open(path).read_config())
    evaluator = training_evaluator(
        experiment.env, experiment.evaluation, experiment.algorithm, experiment.system
    )
    api.evaluate(path, episodes=2)
    api.evaluate(path, episodes=2, explore=0.0)
    assert calls == [(evaluator.max_steps, 0.25), (evaluator.max_steps, 0.0)]
    assert evaluator.explore == 0.25


def test_exploration_of_evaluation_is_none_by_default():
    assert training_evaluator(DISCRETE_CLOCK, Evaluation()).explore == 0.0
