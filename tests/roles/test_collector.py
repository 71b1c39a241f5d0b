import copy

import pytest
import torch
from parts import trainer

from troop.envs import Toy


def collector(env, recreate_every=0, **changes):
    return trainer(env, updates=0, recreate_every=recreate_every, **changes).collector


def play(made, steps):
    pieces = []
    for _ in range(steps):
        made.send()
        pieces += made.recv()[0]
    return pieces


@pytest.mark.parametrize("style", ["same_step", "next_step"])
def test_sigma_is_held_for_an_episode_and_drawn_anew_at_its_end(style):
    made = collector(Toy("Countdown", 16, limit=6, autoreset=style), std_min=0.1, std_max=0.4)
    redrawn = 0
    for _ in range(40):
        before = made.explore.clone()
        play(made, 1)
        ended = made.now.terminated | made.now.truncated
        assert torch.equal(before != made.explore, ended)
        assert made.explore.min() >= 0.1 and made.explore.max() <= 0.4
        redrawn += int(ended.sum())
    assert redrawn > 50


def test_sigmas_spread_over_the_whole_range():
    explore = collector(Toy("Clock", 2000), std_min=0.1, std_max=0.4).explore
    assert explore.mean().item() == pytest.approx(0.25, abs=0.01)
    assert explore.min() < 0.11 and explore.max() > 0.39


@pytest.mark.parametrize("style", ["same_step", "next_step"])
def test_returns_of_finished_episodes_are_reported(style):
    made = collector(Toy("Clock", 3, limit=5, autoreset=style))
    said = []
    for _ in range(20):
        made.send()
        said.append(made.recv()[1])
    ended = [metrics for metrics in said if "count/episodes" in metrics]
    assert len(ended) >= 3
    assert all(m["count/episodes"] == 3 and float(m["train/return"]) == 5.0 for m in ended)


def test_faults_are_counted_and_their_return_is_forgotten():
    made = collector(Toy("Faulty", 2, limit=6, faults=((3, 0, "nan_obs"),)))
    said = []
    for _ in range(9):
        made.send()
        said.append(made.recv()[1])
    assert [m.get("count/env_faults", 0) for m in said] == [0, 0, 1] + [0] * 6
    assert [m["count/env_steps"] for m in said] == [2, 2, 1] + [2] * 6
    returns = [float(m["train/return"]) for m in said if "train/return" in m]
    assert returns == [6.0, 6.0]  # env 1 after six steps, env 0 six steps after its fault


@pytest.mark.parametrize("style", ["same_step", "next_step"])
def test_renewal_closes_every_stream_where_it_stood_and_starts_another_world(style):
    made = collector(Toy("PointMass", 3, limit=50, autoreset=style), recreate_every=7)
    first = made.now.obs["obs"].clone()
    play(made, 6)
    made.send()
    *_, row, closing = made.recv()[0]
    assert not row.closing.any() and closing.closing.all()
    assert closing.streams.tolist() == [0, 1, 2]
    assert made.actions == [] and made.recreations == 1 and not made.returns.any()
    # The closing row holds where the last action led: a tenth of the push from where it was taken.
    reached = (row.obs["obs"][0, :, 0] + 0.1 * row.action[0, :, 0].clamp(-1, 1)).clamp(-1, 1)
    assert torch.allclose(closing.obs["obs"][0, :, 0], reached, atol=1e-6)
    assert not torch.equal(first, made.now.obs["obs"])
    play(made, 1)
    assert len(made.actions) == 1


def test_playing_the_same_actions_leads_back_to_the_same_place():
    config = Toy("PointMass", 3, limit=5)
    made = collector(config, recreate_every=20)
    play(made, 27)  # once renewed, in the middle of an episode
    state = copy.deepcopy(made.state_dict())
    other = collector(config, recreate_every=20)
    assert other.load_state_dict(state)
    assert torch.equal(other.now.obs["obs"], made.now.obs["obs"])
    assert torch.equal(other.explore, made.explore) and torch.equal(other.returns, made.returns)
    for one in (made, other):
        torch.manual_seed(0)
        play(one, 30)
    assert torch.equal(other.now.obs["obs"], made.now.obs["obs"])


def test_a_world_that_does_not_come_back_to_the_same_place_starts_anew():
    made = collector(Toy("PointMass", 3, limit=50), recreate_every=20)
    play(made, 9)
    state = copy.deepcopy(made.state_dict())
    state["actions"] = state["actions"] * 0.5
    other = collector(Toy("PointMass", 3, limit=50), recreate_every=20)
    assert not other.load_state_dict(state)
    assert other.actions == [] and not other.returns.any()


@pytest.mark.parametrize("envs, renewal", [(3, 0), (5, 20)])
def test_without_a_record_or_with_other_envs_new_episodes_begin(envs, recreate_every):
    made = collector(Toy("PointMass", 3, limit=50), recreate_every=recreate_every)
    first = made.now.obs["obs"].clone()
    play(made, 9)
    other = collector(Toy("PointMass", envs, limit=50), recreate_every=recreate_every)
    assert not other.load_state_dict(copy.deepcopy(made.state_dict()))
    assert other.explore.shape == (envs,)
    if envs == 3:
        assert not torch.equal(other.now.obs["obs"], first)  # not the episodes that were seen already
    play(other, 3)
