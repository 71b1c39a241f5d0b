import time

import pytest
import torch

from troop.core.errors import BadInput
from troop.envs import Toy


def test_clock_only_truncates_and_rewards_one_per_step():
    env = Toy("Clock", 2, limit=3).make(0)
    env.reset(0)
    results = [env.step(torch.zeros(2, 1)) for _ in range(6)]
    assert [s.truncated[0].item() for s in results] == [False, False, True] * 2
    assert all(s.reward.tolist() == [1, 1] for s in results)
    assert results[2].next_obs["obs"].tolist() == [[1], [1]]
    assert results[2].obs["obs"].tolist() == [[0], [0]]


def test_countdown_terminates_at_zero():
    env = Toy("Countdown", 8, limit=5).make(0)
    counter = (env.reset(0).obs["obs"] * 5).round().squeeze(1)
    assert counter.min() >= 1 and counter.max() <= 5
    step = env.step(torch.zeros(8, 1))
    assert torch.equal(step.terminated, counter == 1)


def test_chain_rewards_the_right_end():
    env = Toy("Chain", 1, limit=4).make(0)
    env.reset(0)
    results = [env.step(torch.ones(1, 1)) for _ in range(3)]
    assert [s.reward.item() for s in results] == [0, 0, 1]
    assert results[-1].terminated.item() and results[-1].next_obs["obs"].tolist() == [[0, 0, 0, 1]]


def test_point_mass_rewards_a_small_distance_to_the_goal():
    env = Toy("PointMass", 4, limit=50).make(0)
    step = env.reset(0)
    for _ in range(40):
        position, goal = step.obs["obs"].T
        step = env.step(((goal - position) * 10).unsqueeze(1))
    assert (step.reward > 0.999).all()


def test_sleepy_counts_its_time_from_send():
    env = Toy("Sleepy", 2, seconds=0.2).make(0)
    env.reset(0)
    start = time.monotonic()
    env.send(torch.zeros(2, 1))
    assert time.monotonic() - start < 0.1
    time.sleep(0.15)
    env.recv()
    assert 0.19 < time.monotonic() - start < 0.33


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(BadInput, match="did you mean 'Clock'"):
        Toy("Clok").make(0)
