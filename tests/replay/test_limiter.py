import copy

import pytest
import torch
from history import STEP, History

from troop.core.batch import NStep
from troop.replay.limiter import Limiter, RateLimited

BATCH, CHUNK = 16, 6


def limited(ratio, warmup=30, tolerance=BATCH, history=None):
    history = history or History(2, 50)
    return RateLimited(history.replay(NStep(1)), Limiter(ratio, warmup, tolerance)), history


def fed(store, history, steps=CHUNK // 2):
    for _ in range(steps):
        store.add(history.piece([0, 1], [STEP, STEP]))


@pytest.mark.parametrize("ratio", [0.5, 1.0, 4.0, 32.0])
@pytest.mark.parametrize("faster", ["actors", "learner"])
def test_whoever_is_faster_the_ratio_is_kept_to_within_the_tolerance(ratio, faster):
    store, history = limited(ratio)
    turns = {"actors": (20, 1), "learner": (1, 50)}[faster]
    moved = 0
    for _ in range(300):
        for _ in range(turns[0]):
            if store.wants_data():
                fed(store, history)
                moved += 1
        for _ in range(turns[1]):
            moved += store.sample(BATCH) is not None
        limiter = store.limiter
        if limiter.inserted > limiter.warmup:
            owed = (limiter.inserted - limiter.warmup) * ratio
            assert limiter.sampled - owed <= BATCH
            assert owed - limiter.sampled <= BATCH + CHUNK * ratio
    assert moved > 300
    assert store.limiter.had == pytest.approx(ratio, rel=0.15)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 7.7])
@pytest.mark.parametrize("tolerance", [BATCH // 2, BATCH, 5 * BATCH])
def test_the_two_sides_never_wait_for_each_other(ratio, tolerance):
    store, history = limited(ratio, tolerance=tolerance)
    for _ in range(500):
        wanted = store.wants_data()
        batch = store.sample(BATCH)
        assert wanted or batch is not None
        if wanted:
            fed(store, history, 1)


def test_off_it_only_waits_for_the_warm_up():
    store, history = limited(0.0)
    for _ in range(15):
        assert store.sample(BATCH) is None and store.wants_data()
        fed(store, history, 1)
    assert all(store.sample(BATCH) is not None and store.wants_data() for _ in range(100))


def test_rows_are_counted_and_closing_rows_are_none():
    store, history = limited(1.0)
    from history import CLOSE

    store.add(history.piece([0, 1], [STEP, CLOSE]))
    assert store.limiter.inserted == 1 and len(store.store) == 2


def test_what_is_told_of_it():
    store, history = limited(2.0)
    fed(store, history, 20)
    store.sample(BATCH)
    assert store.gauges() == {
        "replay/rows": 40,
        "replay/capacity": 100,
        "replay/age": 20.0,
        "replay/samples_per_insert": 1.6,
        "replay/samples_per_insert_wanted": 2.0,
    }


def test_state_round_trips_and_an_unsaved_store_warms_up_again():
    store, history = limited(2.0)
    fed(store, history, 20)
    store.sample(BATCH)
    other, _ = limited(2.0)
    other.load_state_dict(copy.deepcopy(store.state_dict()))
    assert (other.limiter.inserted, other.limiter.sampled) == (40, 16) and not other.notes
    assert torch.equal(other.sample(BATCH).reward, store.sample(BATCH).reward)
    store.save = False
    other, _ = limited(2.0)
    other.load_state_dict(copy.deepcopy(store.state_dict()))
    assert other.limiter.inserted == 0 and other.sample(BATCH) is None and "fills anew" in other.notes[0]


def test_a_stream_that_is_cut_leaves_the_others_alone():
    store, history = limited(0.0, warmup=1)
    fed(store, history, 5)
    store.end_streams(torch.tensor([1]))
    fed(store, history, 5)
    batch = store.sample(400)
    stream, before, after = batch.obs["obs"][:, 0], batch.obs["obs"][:, 1], batch.next_obs["obs"][:, 1]
    assert torch.equal(after, before + 1)
    assert not (before[stream == 1] == 4).any() and (before[stream == 0] == 4).any()
