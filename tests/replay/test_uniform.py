import itertools
from collections import Counter

import pytest
import torch
from history import CLOSE, STEP, TERMINATE, TRUNCATE, History
from hypothesis import given, settings
from hypothesis import strategies as st

from troop.core.batch import NStep
from troop.core.errors import SetupProblem

experiences = st.builds(
    NStep, st.integers(1, 5), st.sampled_from([0.5, 0.99, 1.0]), bootstrap_on_truncation=st.booleans()
)
kinds = st.sampled_from([STEP] * 5 + [TERMINATE, TRUNCATE, CLOSE])
events = st.one_of(
    st.tuples(st.just("all"), st.lists(kinds, min_size=3, max_size=3)),  # a vector step
    st.tuples(st.just("some"), st.sets(st.integers(0, 2), min_size=1)),  # closing rows of a few streams
    st.tuples(st.sampled_from(["flush", "end_streams"]), st.none()),  # forced resets
)


def play(history, replay, drawn):
    for event, detail in drawn:
        count = len(history.rows)
        if event == "all":
            replay.add(history.rollout(range(count), detail[:count]))
        elif event == "some":
            streams = sorted(s % count for s in detail if s < count) or [0]
            replay.add(history.rollout(streams, [CLOSE] * len(streams)))
        elif event == "flush":
            replay.add(history.rollout(range(count), [CLOSE] * count))
        else:
            history.end_streams()
            replay.end_streams()


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 3), st.integers(7, 13), experiences, st.lists(events, min_size=8, max_size=50))
@pytest.mark.reliability("N5")
def test_every_transition_equals_the_reference(streams, length, experience, drawn):
    history = History(streams, length)
    replay = history.replay(experience)
    for at in range(0, len(drawn), 8):
        play(history, replay, drawn[at : at + 8])
        assert len(replay) == sum(min(len(rows), length) for rows in history.rows)
        possible = [history.starts(s, experience.n) for s in range(streams)]
        batch = replay.sample(3 * streams)
        if not any(possible):
            assert batch is None
        else:
            assert batch is not None and len(batch) == 3 * streams
            history.check(batch, experience)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", [TERMINATE, TRUNCATE, CLOSE])
@pytest.mark.reliability("N5")
def test_episode_ends_at_every_offset_and_write_position(n, kind):
    experience = NStep(n, 0.9)
    for end, extra in itertools.product(range(8), range(9)):
        history = History(2, 8)
        replay = history.replay(experience)
        for i in range(8 + extra):
            replay.add(history.rollout([0, 1], [kind if i % 8 == end else STEP, STEP]))
            if kind == TRUNCATE and i % 8 == end:
                replay.add(history.rollout([0], [CLOSE]))
        history.check(replay.sample(128), experience)


def test_all_windows_are_sampled_equally_often():
    history = History(2, 12)
    replay = history.replay(NStep(3))
    for i in range(30):
        ended = i % 6 == 5
        replay.add(history.rollout([0, 1], [TRUNCATE if ended else STEP, STEP]))
        if ended:
            replay.add(history.rollout([0], [CLOSE]))
    drawn = Counter(tuple(int(x) for x in row[:2]) for row in replay.sample(20_000).obs["obs"])
    for stream in (0, 1):
        starts = history.starts(stream, 3)
        assert {i for s, i in drawn if s == stream} == starts
        for i in starts:
            assert drawn[stream, i] == pytest.approx(10_000 / len(starts), rel=0.15)


@pytest.mark.parametrize("rows, streams", [(12, 3), (14, 3), (2, 3), (7, 5), (64, 1)])
def test_each_stream_gets_an_equal_share_of_a_batch(rows, streams):
    history = History(streams, 8)
    replay = history.replay()
    for _ in range(10):
        replay.add(history.rollout(range(streams), [STEP] * streams))
    streams_with_more = set()
    for _ in range(50):
        batch = replay.sample(rows)
        assert len(batch) == rows and batch.weight is None and batch.index is None
        drawn = Counter(int(x) for x in batch.obs["obs"][:, 0])
        counts = {s: drawn[s] for s in range(streams)}
        assert set(counts.values()) <= {rows // streams, rows // streams + 1}
        assert sum(c - rows // streams for c in counts.values()) == rows % streams
        streams_with_more |= {s for s, c in counts.items() if c > rows // streams}
    # Each stream gets one row more at times, unless the rows divide equally.
    assert len(streams_with_more) == (streams if rows % streams else 0)


def test_bootstrap_on_truncation_changes_only_the_discount_of_truncations():
    batches = []
    for bootstrap in (True, False):
        history = History(1, 40)
        replay = history.replay(NStep(2, 0.9, bootstrap))
        for i in range(40):
            kind = {5: TERMINATE, 11: TRUNCATE}.get(i % 12, STEP)
            replay.add(history.rollout([0], [kind]))
            if kind == TRUNCATE:
                replay.add(history.rollout([0], [CLOSE]))
        batches.append((replay.sample(400), history))
    (on, history), (off, _) = batches
    assert torch.equal(on.obs["obs"], off.obs["obs"]) and torch.equal(on.reward, off.reward)
    flipped = on.discount != off.discount
    for start, changed in zip(on.obs["obs"][:, 1].int().tolist(), flipped.tolist(), strict=True):
        rows = history.rows[0][start : start + 2]
        assert changed == any(row.kind == TRUNCATE for row in rows)
    assert not off.discount[flipped].any() and flipped.any()


def test_sample_returns_none_until_the_warmup_is_over():
    history = History(2, 20)
    replay = history.replay(NStep(3), warmup=6)
    for i in range(10):
        assert (replay.sample(4) is None) == (i < 6)
        replay.add(history.rollout([0, 1], [STEP, STEP]))
    short = history.replay(NStep(3), warmup=1)
    for i in range(6):
        assert (short.sample(4) is None) == (i < 4)  # three rows and their successor
        short.add(history.rollout([0, 1], [STEP, STEP]))


def test_memory_per_row_is_one_observation():
    history = History(4, 1100)
    replay = history.replay()
    row = 3 * 4 + 1 * 4 + 2 * 4 + 4 + 1  # obs, privileged, action, reward, flags
    replay_bytes = replay.storage.bytes
    assert replay_bytes == 4 * 1100 * row
    transitions = 4 * 1100 * 10 / 11  # episodes of ten steps and their closing row
    assert replay_bytes / transitions <= 1.1 * row * (1 + 1e-9)


@pytest.mark.reliability("S5")
def test_replay_that_does_not_fit_into_memory_is_rejected_with_the_numbers():
    with pytest.raises(
        SetupProblem, match=r"3,000,000,000,000 rows of history needs 87000\.00 GB on cpu but"
    ):
        History(3, 10**12).replay()


def test_one_rollout_of_several_steps_equals_several_rollouts_of_one():
    one, other = History(2, 7), History(2, 7)
    single, joined = one.replay(NStep(2)), other.replay(NStep(2))
    for _ in range(6):
        rows = [other.rollout([0, 1], [STEP, STEP]) for _ in range(3)]
        for _ in range(3):
            single.add(one.rollout([0, 1], [STEP, STEP]))
        merged = type(rows[0])(
            rows[0].streams,
            {k: torch.cat([r.obs[k] for r in rows]) for k in rows[0].obs},
            *(
                torch.cat([getattr(r, k) for r in rows])
                for k in ("action", "reward", "terminated", "truncated", "closing")
            ),
        )
        joined.add(merged)
    assert torch.equal(single.storage.rows, joined.storage.rows)
    other.check(joined.sample(32), NStep(2))
