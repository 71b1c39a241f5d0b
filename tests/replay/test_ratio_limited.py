import itertools

import pytest
from history import STEP, History

from troop.core.batch import NStep
from troop.replay.ratio_limited import RatioLimited, UpdateRatio

ENVS, BATCH = 2, 16


def paced(updates, tolerance=2.0, warmup=5):
    history = History(ENVS, 5000)
    beat = UpdateRatio("critic", updates, tolerance, BATCH, ENVS)
    return RatioLimited(history.replay(NStep(1)), "transitions", beat, warmup), history


@pytest.mark.parametrize("updates", [0.25, 1.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize("faster", ["actor", "learner"])
def test_updates_for_each_vector_step_are_those_wanted_in_every_hundred_steps(updates, faster):
    store, history = paced(updates)
    readings = []
    for _ in itertools.count():
        for _ in range(20 if faster == "actor" else 1):
            if store.wants_data():
                store.add(history.piece([0, 1], [STEP, STEP]))
        for _ in range(1 if faster == "actor" else 200):
            store.sample(BATCH)
        read = store.gauges()
        readings.append((read["critic/steps"], read["critic/updates"]))
        if read["critic/steps"] > 450:
            break
    assert read["critic/updates_per_step_wanted"] == updates
    for begun, done in readings:
        call_async = next(((s, u) for s, u in readings if s >= begun + 100), None)
        if begun and call_async:
            made = (call_async[1] - done) / (call_async[0] - begun)
            assert made == pytest.approx(updates, rel=0.1)


def test_the_slack_is_in_vector_steps_but_at_least_an_update():
    for updates, tolerance, steps in ((8.0, 2.0, 2), (8.0, 5.0, 5), (0.25, 2.0, 4), (1.0, 0.0, 1)):
        store, history = paced(updates, tolerance, warmup=3)
        taken = 0
        while store.wants_data():
            store.add(history.piece([0, 1], [STEP, STEP]))
            taken += 1
        assert taken == 3 + steps + 1  # the first one too many is taken as well


def test_free_running_it_only_counts():
    store, history = paced(0.0)
    for _ in range(40):
        assert store.wants_data()
        store.add(history.piece([0, 1], [STEP, STEP]))
    for _ in range(70):
        assert store.sample(BATCH) is not None
    read = store.gauges()
    assert (read["critic/updates"], read["critic/steps"], read["transitions/rows"]) == (70, 35.0, 80)
    assert read["critic/updates_per_step_wanted"] == 0.0
