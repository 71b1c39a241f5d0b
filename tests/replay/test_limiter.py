import copy
import itertools

import pytest
import torch
from history import CLOSE, STEP, History

from troop.core.batch import NStep
from troop.replay.limiter import Limiter, RateLimited, RatioLimited, UpdateRatio

BATCH, CHUNK, ENVS = 16, 6, 2


def rate_limited(ratio, warmup=30, tolerance=BATCH):
    history = History(ENVS, 50)
    return RateLimited(history.replay(NStep(1)), Limiter(ratio, warmup, tolerance)), history


def ratio_limited(updates_per_step, tolerance=2.0, warmup=5):
    history = History(ENVS, 5000)
    ratio = UpdateRatio("critic", updates_per_step, tolerance, BATCH, ENVS)
    return RatioLimited(history.replay(NStep(1)), "transitions", ratio, warmup), history


def add_steps(replay, history, steps):
    for _ in range(steps):
        replay.add(history.rollout([0, 1], [STEP, STEP]))


@pytest.mark.parametrize("ratio", [0.5, 1.0, 4.0, 32.0])
@pytest.mark.parametrize("faster", ["actors", "learner"])
def test_ratio_is_kept_within_the_tolerance_whichever_side_is_faster(ratio, faster):
    replay, history = rate_limited(ratio)
    inserts, samples = {"actors": (20, 1), "learner": (1, 50)}[faster]
    operations = 0
    for _ in range(300):
        for _ in range(inserts):
            if replay.wants_data():
                add_steps(replay, history, CHUNK // ENVS)
                operations += 1
        for _ in range(samples):
            operations += replay.sample(BATCH) is not None
        limiter = replay.limiter
        if limiter.inserted > limiter.warmup:
            target = (limiter.inserted - limiter.warmup) * ratio
            assert limiter.sampled - target <= BATCH
            assert target - limiter.sampled <= BATCH + CHUNK * ratio
    assert operations > 300
    assert replay.limiter.samples_per_insert == pytest.approx(ratio, rel=0.15)


@pytest.mark.parametrize("old, new", [(1.0, 8.0), (8.0, 1.0), (4.0, 0.0), (0.0, 4.0)])
@pytest.mark.reliability("R9")
def test_restored_replay_keeps_the_ratio_of_the_new_settings_and_never_blocks_both_sides(old, new):
    replay, history = rate_limited(old)
    for _ in range(100):
        if replay.wants_data():
            add_steps(replay, history, CHUNK // ENVS)
        replay.sample(BATCH)
    state = copy.deepcopy(replay.state_dict())
    restored, history = rate_limited(new)
    restored.load_state_dict(state)
    assert restored.limiter.ratio == restored.gauges()["replay/samples_per_insert_target"] == new
    for _ in range(3000):
        wants_data, batch = restored.wants_data(), restored.sample(BATCH)
        assert wants_data or batch is not None
        if wants_data:
            add_steps(restored, history, CHUNK // ENVS)
    if new:  # the totals, including those before the restore, approach the new ratio
        assert restored.limiter.samples_per_insert == pytest.approx(new, rel=0.15)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 7.7])
@pytest.mark.parametrize("tolerance", [BATCH // 2, BATCH, 5 * BATCH])
def test_actors_and_learner_never_wait_at_the_same_time(ratio, tolerance):
    replay, history = rate_limited(ratio, tolerance=tolerance)
    for _ in range(500):
        wants_data = replay.wants_data()
        batch = replay.sample(BATCH)
        assert wants_data or batch is not None
        if wants_data:
            add_steps(replay, history, 1)


def test_ratio_of_zero_limits_only_the_warmup():
    replay, history = rate_limited(0.0)
    for _ in range(15):
        assert replay.sample(BATCH) is None and replay.wants_data()
        add_steps(replay, history, 1)
    assert all(replay.sample(BATCH) is not None and replay.wants_data() for _ in range(100))


def test_closing_rows_do_not_count_as_inserted():
    replay, history = rate_limited(1.0)
    replay.add(history.rollout([0, 1], [STEP, CLOSE]))
    assert replay.limiter.inserted == 1 and len(replay.replay) == 2


def test_gauges_of_a_rate_limited_replay():
    replay, history = rate_limited(2.0)
    add_steps(replay, history, 20)
    replay.sample(BATCH)
    assert replay.gauges() == {
        "replay/rows": 40,
        "replay/capacity": 100,
        "replay/sample_age": 20.0,
        "replay/samples_per_insert": 1.6,
        "replay/samples_per_insert_target": 2.0,
    }


@pytest.mark.reliability("R5")
def test_restored_replay_continues_and_an_unsaved_one_has_a_warmup_again():
    replay, history = rate_limited(2.0)
    add_steps(replay, history, 20)
    replay.sample(BATCH)
    other, _ = rate_limited(2.0)
    other.load_state_dict(copy.deepcopy(replay.state_dict()))
    assert (other.limiter.inserted, other.limiter.sampled) == (40, 16) and not other.notes
    assert torch.equal(other.sample(BATCH).reward, replay.sample(BATCH).reward)
    replay.save = False
    other, _ = rate_limited(2.0)
    other.load_state_dict(copy.deepcopy(replay.state_dict()))
    assert other.limiter.inserted == 0 and other.sample(BATCH) is None and "starts empty" in other.notes[0]


def test_unsaved_replay_keeps_the_divisor_of_rewards():
    history = History(ENVS, 50)
    one, other = (
        RateLimited(history.replay(NStep(1, scale_rewards_to=2.0)), Limiter(0.0, 1, BATCH), save=False)
        for _ in range(2)
    )
    add_steps(one, history, 20)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert len(other.replay) == 0 and other.replay.reward_scale.value == one.replay.reward_scale.value > 2


def test_end_of_one_stream_does_not_affect_the_others():
    replay, history = rate_limited(0.0, warmup=1)
    add_steps(replay, history, 5)
    replay.end_streams(torch.tensor([1]))
    add_steps(replay, history, 5)
    batch = replay.sample(400)
    stream, before, after = batch.obs["obs"][:, 0], batch.obs["obs"][:, 1], batch.next_obs["obs"][:, 1]
    assert torch.equal(after, before + 1)
    assert not (before[stream == 1] == 4).any() and (before[stream == 0] == 4).any()


@pytest.mark.parametrize("updates", [0.25, 1.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize("faster", ["actor", "learner"])
def test_updates_per_vector_step_meet_the_target_over_every_hundred_steps(updates, faster):
    replay, history = ratio_limited(updates)
    readings = []
    for _ in itertools.count():
        for _ in range(20 if faster == "actor" else 1):
            if replay.wants_data():
                add_steps(replay, history, 1)
        for _ in range(1 if faster == "actor" else 200):
            replay.sample(BATCH)
        gauges = replay.gauges()
        readings.append((gauges["critic/steps"], gauges["critic/updates"]))
        if gauges["critic/steps"] > 450:
            break
    assert gauges["critic/updates_per_step_target"] == updates
    for steps, done in readings:
        later = next(((s, u) for s, u in readings if s >= steps + 100), None)
        if steps and later:
            assert (later[1] - done) / (later[0] - steps) == pytest.approx(updates, rel=0.1)


def test_tolerance_is_in_vector_steps_but_at_least_one_update():
    for updates, tolerance, steps in ((8.0, 2.0, 2), (8.0, 5.0, 5), (0.25, 2.0, 4), (1.0, 0.0, 1)):
        replay, history = ratio_limited(updates, tolerance, warmup=3)
        accepted = 0
        while replay.wants_data():
            add_steps(replay, history, 1)
            accepted += 1
        assert accepted == 3 + steps + 1  # the step that exceeds the tolerance is accepted too


def test_update_ratio_of_zero_only_counts():
    replay, history = ratio_limited(0.0)
    for _ in range(40):
        assert replay.wants_data()
        add_steps(replay, history, 1)
    for _ in range(70):
        assert replay.sample(BATCH) is not None
    gauges = replay.gauges()
    assert (gauges["critic/updates"], gauges["critic/steps"], gauges["transitions/rows"]) == (70, 35.0, 80)
    assert gauges["critic/updates_per_step_target"] == 0.0
