import copy

import pytest
import torch
from small_trainer import make_trainer

from troop.core.algorithm import Policy, PolicyOutput
from troop.core.exploration import PerEnv
from troop.envs import Toy
from troop.replay.recorders.steps import StepRecorder
from troop.roles.collector import Collector, EnvFactory
from troop.roles.evaluator import first_episodes


def make_collector(env, recreate_every=0, **algorithm):
    return make_trainer(env, updates=0, recreate_every=recreate_every, **algorithm).collector


def play(collector, steps):
    """Make some vector steps; return their metrics."""
    metrics = []
    for _ in range(steps):
        collector.send()
        metrics.append(collector.recv()[1])
    return metrics


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_exploration_value_is_constant_within_an_episode_and_drawn_again_at_the_next_start(autoreset):
    collector = make_collector(Toy("Countdown", 16, limit=6, autoreset=autoreset), std_min=0.1, std_max=0.4)
    redrawn = 0
    for _ in range(40):
        before = collector.explore.clone()
        play(collector, 1)
        started = collector.last_step.started
        assert torch.equal(before != collector.explore, started)
        assert collector.explore.min() >= 0.1 and collector.explore.max() <= 0.4
        redrawn += int(started.sum())
    assert redrawn > 50


def test_exploration_values_cover_the_whole_range():
    explore = make_collector(Toy("Clock", 2000), std_min=0.1, std_max=0.4).explore
    assert explore.mean().item() == pytest.approx(0.25, abs=0.01)
    assert explore.min() < 0.11 and explore.max() > 0.39


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_returns_of_finished_episodes_are_reported(autoreset):
    collector = make_collector(Toy("Clock", 3, limit=5, autoreset=autoreset))
    ended = [metrics for metrics in play(collector, 20) if "count/episodes" in metrics]
    assert len(ended) >= 3
    assert all(m["count/episodes"] == 3 and float(m["train/return"]) == 5.0 for m in ended)


@pytest.mark.reliability("N1")
def test_env_faults_are_counted_and_their_episodes_not_reported():
    collector = make_collector(Toy("Faulty", 2, limit=6, faults=((3, 0, "nan_obs"),)))
    metrics = play(collector, 9)
    assert [m.get("count/env_faults", 0) for m in metrics] == [0, 0, 1] + [0] * 6
    assert [m["count/env_steps"] for m in metrics] == [2, 2, 1] + [2] * 6
    returns = [float(m["train/return"]) for m in metrics if "train/return" in m]
    assert returns == [6.0, 6.0]  # env 1 after six steps, env 0 six steps after its fault


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_recreating_the_env_closes_every_stream_and_starts_new_episodes(autoreset):
    collector = make_collector(Toy("PointMass", 3, limit=50, autoreset=autoreset), recreate_every=7)
    first = collector.last_step.obs["obs"].clone()
    play(collector, 6)
    collector.send()
    *_, row, closing = collector.recv()[0]
    assert not row.closing.any() and closing.closing.all()
    assert closing.streams.tolist() == [0, 1, 2]
    assert collector.actions == [] and collector.recreations == 1 and not collector.episodes.returns.any()
    # The closing row has the observation after the last action, which moves the point by a tenth of it.
    reached = (row.obs["obs"][0, :, 0] + 0.1 * row.action[0, :, 0].clamp(-1, 1)).clamp(-1, 1)
    assert torch.allclose(closing.obs["obs"][0, :, 0], reached, atol=1e-6)
    assert not torch.equal(first, collector.last_step.obs["obs"])
    play(collector, 1)
    assert len(collector.actions) == 1


def test_restore_repeats_the_recorded_actions_and_reaches_the_same_state():
    config = Toy("PointMass", 3, limit=5)
    collector = make_collector(config, recreate_every=20)
    play(collector, 27)  # the env was recreated once; in the middle of an episode
    state = copy.deepcopy(collector.state_dict())
    other = make_collector(config, recreate_every=20)
    assert other.load_state_dict(state)
    assert torch.equal(other.last_step.obs["obs"], collector.last_step.obs["obs"])
    assert torch.equal(other.explore, collector.explore) and torch.equal(
        other.episodes.returns, collector.episodes.returns
    )
    for each in (collector, other):
        torch.manual_seed(0)
        play(each, 30)
    assert torch.equal(other.last_step.obs["obs"], collector.last_step.obs["obs"])


def test_restore_starts_new_episodes_if_the_env_does_not_reproduce_the_observations():
    collector = make_collector(Toy("PointMass", 3, limit=50), recreate_every=20)
    play(collector, 9)
    state = copy.deepcopy(collector.state_dict())
    state["actions"] = state["actions"] * 0.5
    other = make_collector(Toy("PointMass", 3, limit=50), recreate_every=20)
    assert not other.load_state_dict(state)
    assert other.actions == [] and not other.episodes.returns.any()


@pytest.mark.parametrize("envs, recreate_every", [(3, 0), (5, 20)])
def test_restore_starts_new_episodes_without_recorded_actions_or_with_other_envs(envs, recreate_every):
    collector = make_collector(Toy("PointMass", 3, limit=50), recreate_every=recreate_every)
    first = collector.last_step.obs["obs"].clone()
    play(collector, 9)
    other = make_collector(Toy("PointMass", envs, limit=50), recreate_every=recreate_every)
    assert not other.load_state_dict(copy.deepcopy(collector.state_dict()))
    assert other.explore.shape == (envs,)
    if envs == 3:
        assert not torch.equal(other.last_step.obs["obs"], first)  # other episodes than at the start
    play(other, 3)


class CountingPolicy(Policy):
    """Its state counts the steps of each episode, from 1 on; its action is the count / 100."""

    def initial_state(self, rows):
        return {"count": torch.ones(rows, 1)}

    def act(self, obs, state, explore):
        return PolicyOutput(state["count"] / 100, {"count": state["count"] + 1})


def counting_collector(env, recreate_every=0):
    factory = EnvFactory(env.make, 1, recreate_every)
    return Collector(factory, CountingPolicy(), StepRecorder(env.envs), PerEnv((0.0,) * env.envs))


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_the_state_of_the_policy_starts_anew_with_each_episode(autoreset):
    collector = counting_collector(Toy("Countdown", 16, limit=6, autoreset=autoreset))
    steps, starts = torch.zeros(16), 0
    for _ in range(40):
        play(collector, 1)
        started = collector.last_step.started
        steps, starts = torch.where(started, 0, steps + 1), starts + int(started.sum())
        assert torch.equal(collector.state["count"][:, 0], steps + 1)
    assert starts > 50


def test_the_state_of_the_policy_starts_anew_with_recreated_envs_and_after_faults():
    collector = counting_collector(Toy("Clock", 2, limit=50), recreate_every=7)
    play(collector, 9)
    assert collector.state["count"].flatten().tolist() == [3, 3]
    collector = counting_collector(Toy("Faulty", 2, limit=50, faults=((3, 0, "nan_obs"),)))
    play(collector, 4)
    assert collector.state["count"].flatten().tolist() == [2, 5]


def test_restore_continues_with_the_state_of_the_policy():
    config = Toy("Countdown", 3, limit=6)
    collector, other = (counting_collector(config, recreate_every=20) for _ in range(2))
    play(collector, 8)
    assert other.load_state_dict(copy.deepcopy(collector.state_dict()))
    assert torch.equal(other.state["count"], collector.state["count"]) and collector.state["count"].max() > 1
    for each in (collector, other):
        play(each, 9)
    assert torch.equal(other.state["count"], collector.state["count"])
    assert torch.equal(other.actions[-1], collector.actions[-1])
    assert not other.load_state_dict(collector.state_dict() | {"envs": 7})  # other episodes
    assert other.state["count"].flatten().tolist() == [1, 1, 1]
    old = {name: x for name, x in collector.state_dict().items() if name != "state"}
    assert counting_collector(config, recreate_every=20).load_state_dict(old)  # saved by an older version


def test_evaluation_carries_the_state_of_the_policy():
    actions = []
    env = Toy("Clock", 2, limit=5).make(1)
    step = env.step
    env.step = lambda action: actions.append(action.clone()) or step(action)
    first_episodes(env, CountingPolicy(), 1, 10)
    assert torch.stack(actions)[:, 0, 0].tolist() == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
