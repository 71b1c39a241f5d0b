"""Every store of sequences against the contract of stores: counts, batch sizes, exact restore."""

import copy

import pytest
import torch

from troop.core.batch import SequenceSpec, Trajectory
from troop.core.env import Continuous, Discrete, EnvSpec, Field
from troop.core.errors import SetupProblem
from troop.replay.prioritized import PriorityConfig
from troop.replay.sequences import SequenceReplay, SequenceReplaySize

SPECS = {
    "continuous": EnvSpec("c", {"obs": Field((3,)), "privileged": Field((2,))}, Continuous(2), 3),
    "stacked images": EnvSpec("e", {"obs": Field((4, 4, 4), torch.uint8, 4)}, Discrete(5), 3),
    "images, discrete": EnvSpec("d", {"obs": Field((2, 4, 4), torch.uint8)}, Discrete(5), 3),
}
PRIORITIES = {
    "uniform": PriorityConfig(0.0),
    "prioritized": PriorityConfig(0.9, 0.6, 0.6),
    "prioritized, weights by buffer": PriorityConfig(0.9, normalize_weights_by="buffer"),
}
LENGTH = 5


@pytest.fixture(params=PRIORITIES, ids=str)
def make(request):
    def build(spec, capacity=16, warmup=4, **kwargs):
        size = SequenceReplaySize(capacity, warmup, **kwargs)
        priority = PRIORITIES[request.param]
        return SequenceReplay(spec, SequenceSpec(LENGTH, 2, 1), size, seed=0, priority=priority)

    return build


@pytest.fixture(params=SPECS, ids=str)
def spec(request):
    return SPECS[request.param]


def sequences(spec, number, count=1, length=LENGTH):
    """Sequences whose every number encodes `number` + column; entry t of an observation adds t / 10."""
    code = (number + torch.arange(count)).float()
    steps = code + torch.arange(length + 1).unsqueeze(1) / 10

    def rows(shape, dtype, entries):
        x = steps[:entries].view(entries, count, *(1,) * len(shape)) * 10
        return x.expand(entries, count, *shape).to(dtype).contiguous()

    obs = {name: rows(field.shape, field.dtype, length + 1) for name, field in spec.obs.items()}
    for name, field in spec.obs.items():
        if field.stack > 1:  # frame k of entry t is that of entry t - 3 + k
            newest = code * 10 + torch.arange(length + 1).view(-1, 1)
            older = [(newest - 3 + k) % 256 for k in range(4)]
            obs[name] = torch.stack(older, -1).to(field.dtype)[..., None, None].repeat(1, 1, 1, 4, 4)
    action = (spec.action.size,) if isinstance(spec.action, Continuous) else ()
    flags = torch.zeros(length, count, dtype=torch.bool)
    return Trajectory(
        obs=obs,
        action=rows(action, torch.float32 if action else torch.int64, length),
        reward=steps[:length].clone(),
        discount=torch.full((length, count), 0.9),
        ended=flags,
        valid=~flags,
        started=torch.zeros(length + 1, count, dtype=torch.bool),
        final_obs={name: x[0, :0] for name, x in obs.items()},
        final_index=torch.empty(0, dtype=torch.int64),
        state={"core": {"h": code.unsqueeze(1).repeat(1, 2)}, "count": code.clone()},
        extras={"version": code.long().expand(length, count)},
    )


def nbytes(replay):
    return sum(x.nbytes for x in replay.arrays.values())


def filled(make, spec, count, **kwargs):
    replay = make(spec, **kwargs)
    for number in range(count):
        replay.add(sequences(spec, number))
    return replay


def test_length_counts_sequences_up_to_the_capacity(make, spec):
    replay = make(spec)
    assert replay.capacity == 16
    for number in range(20):
        assert len(replay) == min(number, 16)
        replay.add(sequences(spec, number))
    size = nbytes(replay)
    replay.add(sequences(spec, 20, 40))  # more than fit
    assert len(replay) == 16 and nbytes(replay) == size
    assert set(replay.sample(200).state["count"].int().tolist()) == set(range(44, 60))


def test_sample_returns_none_before_the_warmup_is_over(make, spec):
    assert make(spec).sample(4) is None
    assert filled(make, spec, 3).sample(4) is None


@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_batch_holds_whole_sequences_with_their_states_and_ids(make, spec, rows):
    batch = filled(make, spec, 20).sample(rows)
    assert len(batch) == rows and batch.length == LENGTH and batch.weight.shape == (rows,)
    for column, number in enumerate(batch.index.tolist()):
        expected = sequences(spec, number)
        assert 4 <= number < 20
        for name, field in spec.obs.items():
            assert batch.obs[name].dtype == field.dtype
            assert torch.equal(batch.obs[name][:, column], expected.obs[name][:, 0])
        for name in ("action", "reward", "discount", "ended", "valid", "started"):
            assert torch.equal(getattr(batch, name)[:, column], getattr(expected, name)[:, 0])
        assert torch.equal(batch.state["core"]["h"][column], expected.state["core"]["h"][0])
        assert int(batch.extras["version"][0, column]) == number


@pytest.mark.reliability("R1")
def test_restored_replay_returns_bit_equal_batches(make, spec):
    replay, other = filled(make, spec, 20), make(spec)
    first = replay.sample(5)
    replay.reprioritize(first.index, torch.rand(5) * 3)
    assert other.load_state_dict(copy.deepcopy(replay.state_dict())) == 0
    assert len(other) == len(replay)
    for _ in range(4):
        one, two = replay.sample(9), other.sample(9)
        assert torch.equal(one.index, two.index) and torch.equal(one.weight, two.weight)
        assert torch.equal(one.obs["obs"], two.obs["obs"])
        for each in (replay, other):
            each.add(sequences(spec, 30))


def test_a_smaller_replay_restores_the_newest_sequences(make, spec):
    replay, smaller = filled(make, spec, 20), make(spec, capacity=6)
    assert smaller.load_state_dict(copy.deepcopy(replay.state_dict())) == 10
    batch = smaller.sample(100)
    assert set(batch.index.tolist()) == set(range(14, 20))
    assert torch.equal(batch.state["count"].long(), batch.index)
    other = SequenceReplay(spec, SequenceSpec(LENGTH + 1), SequenceReplaySize(16), seed=0)
    assert other.load_state_dict(replay.state_dict()) == 16 and other.sample(2) is None
    other.add(sequences(spec, 3, length=LENGTH + 1))
    assert other.sample(1).index.tolist() == [0]


def test_writing_into_a_batch_does_not_change_the_stored_sequences(make, spec):
    replay = filled(make, spec, 20)
    before = copy.deepcopy(replay.state_dict()["arrays"])
    batch = replay.sample(50)
    batch.reward.fill_(-99)
    batch.obs["obs"].fill_(1)
    after = replay.state_dict()["arrays"]
    assert all(torch.equal(x, after[name]) for name, x in before.items())


def test_sequences_of_another_length_or_with_resets_within_are_refused(make, spec):
    replay = make(spec)
    with pytest.raises(ValueError, match="6 steps"):
        replay.add(sequences(spec, 0, length=6))


@pytest.mark.parametrize("first", [0, 1, 2, 4])
def test_frame_stacks_are_stored_as_single_frames_from_the_first_step_on(make, first):
    spec = SPECS["stacked images"]
    replay, part = make(spec, capacity=4, warmup=1), sequences(spec, 7)
    part.valid[:first], part.obs["obs"][:first] = False, 0  # an episode's first sequence
    part.obs["obs"][first, :, :3] = 99  # frames of before a lost life
    for t in range(first + 1, LENGTH + 1):
        part.obs["obs"][t, :, :3] = part.obs["obs"][t - 1, :, 1:]
    replay.add(part)
    assert replay.arrays["obs.obs"].shape == (4, LENGTH + 4, 1, 4, 4)
    batch = replay.sample(2)
    assert torch.equal(batch.obs["obs"][first:, 0], part.obs["obs"][first:, 0])


def test_a_replay_in_files_holds_the_same_sequences(make, spec, tmp_path):
    stored = filled(make, spec, 20, directory=str(tmp_path))
    assert torch.equal(stored.sample(9).obs["obs"], filled(make, spec, 20).sample(9).obs["obs"])


def test_a_replay_that_does_not_fit_is_refused_with_its_size(make, spec):
    with pytest.raises(SetupProblem, match=r"sequences of .* needs"):
        make(spec, capacity=10**10)
