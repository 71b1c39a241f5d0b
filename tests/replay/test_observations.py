import copy
import dataclasses

import pytest
import torch

from troop.core.batch import Rollout
from troop.core.env import Continuous, EnvSpec, Field
from troop.replay.observations import ObservationBuffer, observations_only

SPEC = EnvSpec("c", {"obs": Field((3,)), "privileged": Field((2,))}, Continuous(2), 4)


def rollout(numbers, closing=()):
    """Return [T, B] rows whose observations are these numbers; rows at indices `closing` are closing rows."""
    values = torch.tensor(numbers, dtype=torch.float32)
    obs = {
        name: values.unsqueeze(-1).expand(*values.shape, field.shape[0]) for name, field in SPEC.obs.items()
    }
    false = torch.zeros_like(values, dtype=torch.bool)
    is_closing = false.clone()
    for index in closing:
        is_closing[index] = True
    action = torch.randn(*values.shape, 2)
    return Rollout(
        torch.arange(values.shape[1]), obs, action, torch.randn_like(values), false, false, is_closing
    )


def stored(buffer):
    return sorted(buffer.fields["obs"][: len(buffer), 0].tolist())


def message_bytes(x):
    """Return the bytes of all tensors of a rollout."""
    fields = (x.action, x.reward, x.terminated, x.truncated, x.closing, x.streams)
    return sum(tensor.nbytes for tensor in (*x.obs.values(), *fields))


def test_observations_only_contains_the_observations_that_were_acted_on_and_nothing_else():
    full = rollout([[0, 1, 2, 3], [10, 11, 12, 13]], closing=[(0, 1), (1, 3)])
    part = observations_only(full)
    assert part.obs["obs"].shape == (1, 6, 3) and part.obs["privileged"].shape == (1, 6, 2)
    assert part.obs["obs"][0, :, 0].tolist() == [0, 2, 3, 10, 11, 12]
    assert part.closing.tolist() == [[False] * 6]
    assert message_bytes(part) == 6 * (5 * 4 + 1)
    assert observations_only(rollout([[1, 2]], closing=[(0, 0), (0, 1)])) is None


def test_observations_only_copies_nothing_if_there_are_no_closing_rows():
    full = rollout([[0, 1, 2, 3]])
    obs = {name: x.contiguous() for name, x in full.obs.items()}
    full = dataclasses.replace(full, obs=obs)
    assert observations_only(full).obs["obs"].data_ptr() == obs["obs"].data_ptr()


@pytest.mark.parametrize("chunks", [[3], [5, 1], [7, 7, 2], [10], [4, 23], [25]])
def test_newest_rows_are_stored_whatever_the_rollout_lengths(chunks):
    buffer, written = ObservationBuffer(SPEC, 10, seed=0), 0
    for _ in range(6):
        for chunk in chunks:
            buffer.add(observations_only(rollout([list(range(written, written + chunk))])))
            written += chunk
            assert stored(buffer) == list(range(max(0, written - 10), written))
            assert len(buffer) == min(written, 10) and buffer.rows_written == written
    assert torch.equal(buffer.fields["obs"][:, :2], buffer.fields["privileged"])


def test_batches_are_uniform_over_all_rows_and_contain_only_observations():
    buffer = ObservationBuffer(SPEC, 8, seed=0)
    assert buffer.sample(4) is None and buffer.capacity == 8
    buffer.add(observations_only(rollout([[0, 1, 2, 3, 4]])))
    batch = buffer.sample(5000)
    assert len(batch) == 5000 and batch.next_obs == {} and not batch.action.numel() and batch.index is None
    assert batch.obs["obs"].shape == (5000, 3) and batch.obs["privileged"].shape == (5000, 2)
    counts = torch.bincount(batch.obs["obs"][:, 0].long())
    assert len(counts) == 5 and counts.min() > 850 and counts.max() < 1150


@pytest.mark.parametrize("written", [6, 10, 23])
def test_restored_buffer_continues_bit_equal(written):
    one, two = ObservationBuffer(SPEC, 10, seed=0), ObservationBuffer(SPEC, 10, seed=99)
    for number in range(written):
        one.add(observations_only(rollout([[number]])))
    one.sample(3)
    assert two.load_state_dict(copy.deepcopy(one.state_dict())) == 0
    for number in range(written, written + 7):
        for buffer in (one, two):
            buffer.add(observations_only(rollout([[number]])))
    assert (
        torch.equal(one.sample(50).obs["obs"], two.sample(50).obs["obs"])
        and two.rows_written == one.rows_written
    )


@pytest.mark.parametrize("capacity, dropped", [(4, 6), (30, 0)])
def test_buffer_of_another_capacity_restores_the_newest_rows(capacity, dropped):
    one, two = ObservationBuffer(SPEC, 10, seed=0), ObservationBuffer(SPEC, capacity, seed=0)
    for number in range(23):
        one.add(observations_only(rollout([[number]])))
    assert two.load_state_dict(one.state_dict()) == dropped
    two.add(observations_only(rollout([[23]])))
    assert stored(two) == list(range(24 - min(capacity, 11), 24))
