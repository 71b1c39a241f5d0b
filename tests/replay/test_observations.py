import copy

import pytest
import torch

from troop.core.batch import Rollout
from troop.core.env import Continuous, EnvSpec, Field
from troop.replay.observations import ObservationBuffer, observations_only

SPEC = EnvSpec("c", {"obs": Field((3,)), "privileged": Field((2,))}, Continuous(2), 4)


def piece(numbers, closing=()):
    """[T, B] rows whose observations are these numbers; those at the given places are closing rows."""
    values = torch.tensor(numbers, dtype=torch.float32)
    obs = {
        name: values.unsqueeze(-1).expand(*values.shape, field.shape[0]) for name, field in SPEC.obs.items()
    }
    never = torch.zeros_like(values, dtype=torch.bool)
    closed = never.clone()
    for at in closing:
        closed[at] = True
    action = torch.randn(*values.shape, 2)
    return Rollout(torch.arange(values.shape[1]), obs, action, torch.randn_like(values), never, never, closed)


def held(store):
    return sorted(store.fields["obs"][: len(store), 0].tolist())


def size(rows):
    """Bytes that travel."""
    fields = (rows.action, rows.reward, rows.terminated, rows.truncated, rows.closing, rows.streams)
    return sum(x.nbytes for x in (*rows.obs.values(), *fields))


def test_what_was_seen_is_what_was_acted_on_and_nothing_else_travels():
    whole = piece([[0, 1, 2, 3], [10, 11, 12, 13]], closing=[(0, 1), (1, 3)])
    told = observations_only(whole)
    assert told.obs["obs"].shape == (1, 6, 3) and told.obs["privileged"].shape == (1, 6, 2)
    assert told.obs["obs"][0, :, 0].tolist() == [0, 2, 3, 10, 11, 12]
    assert told.closing.tolist() == [[False] * 6]
    assert size(told) == 6 * (5 * 4 + 1)
    assert observations_only(piece([[1, 2]], closing=[(0, 0), (0, 1)])) is None


def test_nothing_is_copied_where_every_row_was_acted_on():
    whole = piece([[0, 1, 2, 3]])
    obs = {name: x.contiguous() for name, x in whole.obs.items()}
    whole = Rollout(
        whole.streams, obs, *(getattr(whole, f) for f in ("action", "reward")), *[whole.closing] * 3
    )
    assert observations_only(whole).obs["obs"].data_ptr() == obs["obs"].data_ptr()


@pytest.mark.parametrize("chunks", [[3], [5, 1], [7, 7, 2], [10], [4, 23], [25]])
def test_the_newest_rows_stay_whatever_the_pieces(chunks):
    store, written = ObservationBuffer(SPEC, 10, seed=0), 0
    for _ in range(6):
        for chunk in chunks:
            store.add(observations_only(piece([list(range(written, written + chunk))])))
            written += chunk
            assert held(store) == list(range(max(0, written - 10), written)) and len(store) == min(
                written, 10
            )
            assert store.written == written
    assert torch.equal(store.fields["obs"][:, :2], store.fields["privileged"])


def test_batches_are_uniform_over_all_rows_and_hold_observations_only():
    store = ObservationBuffer(SPEC, 8, seed=0)
    assert store.sample(4) is None and store.capacity == 8
    store.add(observations_only(piece([[0, 1, 2, 3, 4]])))
    batch = store.sample(5000)
    assert len(batch) == 5000 and batch.next_obs == {} and not batch.action.numel() and batch.index is None
    assert batch.obs["obs"].shape == (5000, 3) and batch.obs["privileged"].shape == (5000, 2)
    counts = torch.bincount(batch.obs["obs"][:, 0].long())
    assert len(counts) == 5 and counts.min() > 850 and counts.max() < 1150


@pytest.mark.parametrize("written", [6, 10, 23])
def test_it_goes_on_from_its_state(written):
    one, two = ObservationBuffer(SPEC, 10, seed=0), ObservationBuffer(SPEC, 10, seed=99)
    for number in range(written):
        one.add(observations_only(piece([[number]])))
    one.sample(3)
    assert two.load_state_dict(copy.deepcopy(one.state_dict())) == 0
    for number in range(written, written + 7):
        for store in (one, two):
            store.add(observations_only(piece([[number]])))
    assert torch.equal(one.sample(50).obs["obs"], two.sample(50).obs["obs"]) and two.written == one.written


@pytest.mark.parametrize("capacity, dropped", [(4, 6), (30, 0)])
def test_a_ring_of_another_size_takes_the_newest(capacity, dropped):
    one, two = ObservationBuffer(SPEC, 10, seed=0), ObservationBuffer(SPEC, capacity, seed=0)
    for number in range(23):
        one.add(observations_only(piece([[number]])))
    assert two.load_state_dict(one.state_dict()) == dropped
    two.add(observations_only(piece([[23]])))
    assert held(two) == list(range(24 - min(capacity, 11), 24))
