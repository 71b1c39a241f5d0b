"""Trajectories contain exactly the steps that happened, with the true successor of each."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.core.algorithm import PolicyOutput
from troop.core.batch import TrajectorySpec, join_trajectories
from troop.envs import Toy
from troop.replay.recorders.trajectories import TrajectoryRecorder
from troop.replay.trajectory_queue import TrajectoryQueue

GAMMA = 0.9


def collect(env_config, length, steps, seed=0):
    """Return the trajectories of `steps` vector steps, and (obs, action, step, state) of each of them."""
    generator = torch.Generator().manual_seed(seed)
    env = env_config.make(seed)
    recorder = TrajectoryRecorder(env_config.envs, TrajectorySpec(length, GAMMA))
    step, trajectories, log = env.reset(seed), [], []
    for number in range(steps):
        action = torch.rand(env_config.envs, 1, generator=generator) * 2 - 1
        state = {"h": torch.full((env_config.envs, 2), float(number))}
        obs = {name: x.clone() for name, x in step.obs.items()}
        recorder.on_action(obs, PolicyOutput(action, state, {"log_prob": action[:, 0]}), state, number)
        started = step.started.clone()
        step = env.step(action)
        log.append((obs, action, step, started))
        trajectories += recorder.on_step(step)
    return trajectories, log, recorder, step


def successor(trajectory, t, b):
    index = t * len(trajectory) + b
    found = (trajectory.final_index == index).nonzero().flatten()
    if len(found):
        return trajectory.final_obs["obs"][found[0]]
    return trajectory.obs["obs"][t + 1, b]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["same_step", "next_step"]),
    st.sampled_from(["Countdown", "PointMass", "Clock"]),
    st.integers(1, 6),
    st.integers(1, 9),
)
def test_rows_are_the_steps_that_happened_with_their_true_successors(autoreset, task, limit, length):
    trajectories, log, _, _ = collect(Toy(task, 3, limit=limit, autoreset=autoreset), length, 4 * length + 2)
    assert len(trajectories) == (4 * length + 2) // length
    for number, trajectory in enumerate(trajectories):
        assert len(trajectory) == 3 and trajectory.length == length
        assert float(trajectory.state["h"][0, 0]) == number * length
        for t in range(length):
            obs, action, step, started = log[number * length + t]
            assert torch.equal(trajectory.obs["obs"][t], obs["obs"])
            assert torch.equal(trajectory.action[t], action)
            assert torch.equal(trajectory.extras["log_prob"][t], action[:, 0])
            assert (trajectory.extras["version"][t] == number * length + t).all()
            assert torch.equal(trajectory.valid[t], step.valid)
            assert torch.equal(trajectory.started[t], started)
            assert torch.equal(trajectory.ended[t], step.terminated | step.truncated)
            for b in range(3):
                if step.valid[b]:
                    assert trajectory.reward[t, b] == step.reward[b]
                    assert float(trajectory.discount[t, b]) == pytest.approx(
                        0 if step.terminated[b] else GAMMA
                    )
                    if not step.terminated[b]:
                        assert torch.equal(successor(trajectory, t, b), step.next_obs["obs"][b])


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_the_return_of_the_episode_is_discounted_and_starts_anew(autoreset):
    trajectories, log, _, _ = collect(Toy("Clock", 2, limit=4, autoreset=autoreset), 6, 24)
    total, expected = torch.zeros(2), []
    for _, _, step, _ in log:
        total = GAMMA * total + step.reward
        expected.append(total.clone())
        total[step.terminated | step.truncated | ~step.valid] = 0.0
    recorded = torch.cat([trajectory.extras["episode_return"] for trajectory in trajectories])
    assert torch.allclose(recorded, torch.stack(expected))


@pytest.mark.parametrize("steps", [8, 9, 11])
def test_a_forced_reset_ends_all_streams_at_their_last_observation(steps):
    trajectories, _, recorder, step = collect(Toy("PointMass", 2, limit=50), 4, steps)
    assert len(trajectories) == 2
    last = {name: x.clone() for name, x in step.obs.items()}
    completed = recorder.flush(last)
    rows = steps % 4
    assert len(completed) == (1 if rows == 3 else 0)
    first, zero = torch.full((2, 2), 7.0), torch.zeros(2, 1)
    for number in range(4 - (rows + 1 if rows and rows < 3 else 0)):
        output = PolicyOutput(zero, None, {"log_prob": zero[:, 0]})
        recorder.on_action({"obs": first + number}, output)
        completed += recorder.on_step(step)
    if rows == 0:  # the trajectory before is complete: it holds the last observation
        assert torch.equal(trajectories[-1].obs["obs"][4], last["obs"])
    else:
        trajectory = completed[0]
        assert torch.equal(trajectory.obs["obs"][rows], last["obs"])
        assert trajectory.ended[rows - 1].all() and not trajectory.valid[rows].any()
        assert not trajectory.reward[rows].any() and not trajectory.discount[rows].any()
    newest = completed[-1]
    entry = 0 if rows in (0, 3) else rows + 1
    assert newest.started[entry].all() and torch.equal(newest.obs["obs"][entry], first)


def test_a_restored_recorder_continues_in_the_middle_of_a_trajectory():
    trajectories, log, recorder, _ = collect(Toy("Countdown", 3, limit=4), 5, 7)
    other = TrajectoryRecorder(3, TrajectorySpec(5, GAMMA))
    other.load_state_dict(copy.deepcopy(recorder.state_dict()))
    for each in (recorder, other):
        for obs, action, step, _ in log[:3]:
            each.on_action(obs, PolicyOutput(action, None, {"log_prob": action[:, 0]}))
            trajectories += each.on_step(step)
    one, two = trajectories[-2:]
    for name in ("action", "reward", "discount", "ended", "valid", "started", "final_index"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert torch.equal(one.obs["obs"], two.obs["obs"])
    _, _, recorder, _ = collect(Toy("Countdown", 3, limit=4), 5, 8)
    for steps, envs in ((5, 2), (6, 3)):
        changed = TrajectoryRecorder(envs, TrajectorySpec(steps, GAMMA))
        changed.load_state_dict(copy.deepcopy(recorder.state_dict()))
        assert changed.time == 0 and not changed.rows
        # With another length the episodes go on: the next observation is a first one only where one ended.
        assert (changed.started is None) == (envs == 2)
    assert changed.started.tolist() == recorder.started.tolist()
    assert torch.equal(changed.episode_return, recorder.episode_return)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 6))
def test_a_queue_returns_each_stream_once_in_the_order_of_arrival(sizes, rows):
    queue, arrived = TrajectoryQueue(100), []
    for number, size in enumerate(sizes):
        (trajectory,), _, _, _ = collect(Toy("Clock", size, limit=2), 3, 3, seed=number)
        trajectory.extras["version"][:] = torch.arange(size) + 10 * number
        arrived += (torch.arange(size) + 10 * number).tolist()
        queue.add(trajectory)
    left = list(arrived)
    while (batch := queue.sample(rows)) is not None:
        assert len(batch) == rows
        assert batch.extras["version"][0].tolist() == left[:rows]
        left = left[rows:]
        for index, obs in zip(batch.final_index.tolist(), batch.final_obs["obs"], strict=True):
            t, b = divmod(index, rows)
            assert batch.ended[t, b] and obs.shape == batch.obs["obs"][t, b].shape
    assert len(left) < rows and len(queue) == len(left)


def test_columns_and_join_are_inverse():
    (trajectory, *_), _, _, _ = collect(Toy("Clock", 4, limit=3), 6, 6)
    assert len(trajectory.final_index)
    parts = [trajectory.columns(torch.tensor(index)) for index in ([0, 1], [2], [3])]
    joined = join_trajectories(parts)
    for name in ("action", "reward", "discount", "ended", "valid", "started"):
        assert torch.equal(getattr(joined, name), getattr(trajectory, name)), name
    order = joined.final_index.argsort(), trajectory.final_index.argsort()
    assert torch.equal(joined.final_index[order[0]], trajectory.final_index[order[1]])
    assert torch.equal(joined.final_obs["obs"][order[0]], trajectory.final_obs["obs"][order[1]])
    assert torch.equal(joined.state["h"], trajectory.state["h"])
