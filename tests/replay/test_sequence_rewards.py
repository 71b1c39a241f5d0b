"""Rewards of sequences are scaled by the returns of their episodes, in one replay and over shards."""

import copy

import pytest
import torch

from troop.core.algorithm import PolicyOutput
from troop.core.batch import SequenceSpec
from troop.envs import Toy
from troop.replay.limiter import Limiter
from troop.replay.recorders.sequences import VectorSequenceRecorder
from troop.replay.sequences import SequenceReplay, SequenceReplaySize
from troop.replay.sharded import Shard, ShardedReplay

GAMMA = 0.9
SPEC = SequenceSpec(4, 2, 1, GAMMA, scale_rewards_to=2.0)
ENV = Toy("Countdown", 3, limit=7)


def record(steps, recorder=None, seed=0):
    """Return the sequences of some vector steps, and the largest return of an episode so far."""
    recorder, env = recorder or VectorSequenceRecorder(ENV.envs, SPEC), ENV.make(seed)
    step, found, returns, largest = env.reset(seed), [], torch.zeros(3), 0.0
    for _ in range(steps):
        action = torch.zeros(3, 1)
        recorder.on_action(step.obs, PolicyOutput(action))
        step = env.step(action)
        found += recorder.on_step(step)
        returns = GAMMA * returns + step.reward
        largest = max(largest, float(returns.max()))
        returns[step.terminated] = 0.0
    return found, largest


def test_the_recorder_adds_the_discounted_return_of_the_episode():
    for sequence in record(40)[0]:
        returns = sequence.extras["episode_return"]
        for column in range(len(sequence)):
            for t in range(1, sequence.length):
                if sequence.started[t, column] and sequence.valid[t, column]:
                    assert returns[t, column] == 1
                elif sequence.valid[t, column] and sequence.valid[t - 1, column]:
                    assert torch.isclose(returns[t, column], 1 + GAMMA * returns[t - 1, column])


def make_replay(found):
    replay = SequenceReplay(ENV.spec, SPEC, SequenceReplaySize(64), 0)
    for sequence in found:
        replay.add(sequence)
    return replay


def test_rewards_are_divided_so_that_returns_stay_within_the_bound():
    found, largest = record(60)
    replay = make_replay(found)
    batch = replay.sample(16)
    assert batch.reward[batch.valid].unique().item() == pytest.approx(2.0 / largest, rel=1e-5)
    assert replay.sample_unscaled(16).reward.max() == 1
    other = SequenceReplay(ENV.spec, SPEC, SequenceReplaySize(64), 1)
    other.load_state_dict(copy.deepcopy(replay.state_dict()))
    assert torch.equal(other.sample(16).reward, replay.sample(16).reward)


@pytest.mark.parametrize("spec", [SPEC, SequenceSpec(6, 5, 4, GAMMA, 2.0)], ids=["short", "mostly burn-in"])
def test_the_return_of_a_step_that_is_in_several_sequences_counts_once(spec):
    recorder, env = VectorSequenceRecorder(ENV.envs, spec), ENV.make(0)
    replay = SequenceReplay(ENV.spec, spec, SequenceReplaySize(1000), 0)
    step, episode, returns = env.reset(0), torch.zeros(3), []
    for _ in range(40):
        recorder.on_action(step.obs, PolicyOutput(torch.zeros(3, 1)))
        step = env.step(torch.zeros(3, 1))
        episode = GAMMA * episode + step.reward
        returns.append(episode.clone())
        episode[step.terminated] = 0.0
        for sequence in recorder.on_step(step):
            replay.add(sequence)
    for sequence in recorder.flush(step.obs):
        replay.add(sequence)
    moments = replay.reward_scale.moments
    assert int(moments.count) == replay.steps == 3 * 40
    assert float(moments.mean) == pytest.approx(float(torch.stack(returns).mean()), rel=1e-5)


def test_shards_divide_by_the_returns_of_all_of_them():
    replays = [make_replay([]) for _ in range(2)]
    shards = [Shard(replay, Limiter(0.0, 1, 1.0)) for replay in replays]
    for shard, steps in zip(shards, (8, 60), strict=True):
        for sequence in record(steps)[0]:
            shard.add(sequence)
    sharded = ShardedReplay(shards, 1, 0, SPEC.scale_rewards_to)
    sharded.sample(16)  # the first request finds out what the shards hold
    batch = sharded.sample(16)
    largest = max(float(replay.reward_scale.moments.max_abs) for replay in replays)
    assert batch.reward[batch.valid].unique().item() == pytest.approx(2.0 / largest, rel=1e-5)


def test_a_time_limit_lowers_the_bound():
    assert SPEC.within_time_limit(None).scale_rewards_to == 2.0
    assert SPEC.within_time_limit(5).scale_rewards_to == pytest.approx(2.0 * (1 - GAMMA**5))
    assert SequenceSpec(4).within_time_limit(5) == SequenceSpec(4)
