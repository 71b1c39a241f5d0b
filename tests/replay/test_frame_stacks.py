"""Frame stacks assembled at sampling, against complete stored stacks."""

import copy
import itertools

import pytest
import torch

from troop.core.batch import NStep, Rollout
from troop.core.env import Discrete, EnvSpec, Field
from troop.core.errors import BadInput, SetupProblem
from troop.replay.prioritized import PrioritizedReplay, PriorityConfig
from troop.replay.storage import kernels, kernels_torch
from troop.replay.storage.ring import Layout, RingStorage
from troop.replay.uniform import ReplaySize, UniformReplay

STACK = 4
SPEC = EnvSpec("frames", {"obs": Field((STACK, 2, 3), torch.uint8, STACK)}, Discrete(3), 1)


class StackedStream:
    """One stream of frame-stacked observations as an env returns them, all stored completely."""

    def __init__(self):
        self.stacks, self.kinds = [], []
        self.stack = None
        self.count = 0

    def frame(self):
        self.count += 1
        return torch.full((1, 2, 3), self.count % 251, dtype=torch.uint8)

    def row(self, kind="step", life_lost=False):
        """Return the next row: a plain step, an "end" (terminated), or its "closing" row."""
        if self.stack is None or (self.kinds and self.kinds[-1] == "closing" and not life_lost):
            self.stack = self.frame().repeat(STACK, 1, 1)  # a new episode repeats its first frame
        else:
            self.stack = torch.cat((self.stack[1:], self.frame()))
        self.stacks.append(self.stack)
        self.kinds.append(kind)
        flag = torch.tensor([[kind == "end"]])
        closing = torch.tensor([[kind == "closing"]])
        return Rollout(
            torch.tensor([0]),
            {"obs": self.stack[None, None]},
            torch.tensor([[len(self.stacks) % 3]]),
            torch.tensor([[float(len(self.stacks) - 1)]]),
            flag,
            torch.zeros_like(flag),
            closing,
        )


def check(stream, batch, n):
    by_frame = {int(stack[-1, 0, 0]): number for number, stack in enumerate(stream.stacks)}
    for obs, next_obs, discount in zip(batch.obs["obs"], batch.next_obs["obs"], batch.discount, strict=True):
        start = by_frame[int(obs[-1, 0, 0])]
        assert torch.equal(obs, stream.stacks[start])
        if discount > 0:
            assert torch.equal(next_obs, stream.stacks[start + n])


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("life_lost", [False, True])
def test_stacks_are_correct_at_every_offset_from_an_episode_start_and_end(n, life_lost, prioritized):
    for end, steps in itertools.product(range(1, 7), (12, 17, 30, 41)):
        stream = StackedStream()
        size = ReplaySize(16, 1)
        replay = (
            PrioritizedReplay(SPEC, NStep(n, 0.9), size, 0, priority=PriorityConfig(alpha=0.6))
            if prioritized
            else UniformReplay(SPEC, NStep(n, 0.9), size, 0)
        )
        for i in range(steps):
            kind = {end - 1: "end", end: "closing"}.get(i % (end + 1), "step")
            replay.add(stream.row(kind, life_lost))
        batch = replay.sample(300)
        check(stream, batch, n)
        starts = {int(x) for x in batch.obs["obs"][:, -1, 0, 0]}
        oldest = max(0, steps - 16) + (STACK - 1 if steps > 16 else 0)
        expected = {i for i in range(oldest, steps - n) if stream.kinds[i] != "closing"}
        assert {s - 1 for s in starts} == expected  # frames are numbered from one


def test_each_frame_is_stored_once():
    atari = EnvSpec("atari", {"obs": Field((4, 84, 84), torch.uint8, 4)}, Discrete(6), 8)
    layout = Layout.of(atari)
    assert layout.row_bytes == 84 * 84 + 8 + 4 + 1
    assert 1_000_000 * layout.row_bytes < 8e9  # a million transitions in less than 8 GB
    assert RingStorage(atari, 8, 10).bytes == 80 * layout.row_bytes


def test_restored_replay_returns_equal_stacks():
    stream, replay = StackedStream(), UniformReplay(SPEC, NStep(2, 0.9), ReplaySize(16, 1), 0)
    for i in range(40):
        replay.add(stream.row("closing" if i % 9 == 8 else "end" if i % 9 == 7 else "step"))
    fresh = UniformReplay(SPEC, NStep(2, 0.9), ReplaySize(16, 1), 7)
    fresh.load_state_dict(copy.deepcopy(replay.state_dict()))
    one, two = replay.sample(20), fresh.sample(20)
    assert torch.equal(one.obs["obs"], two.obs["obs"]) and torch.equal(
        one.next_obs["obs"], two.next_obs["obs"]
    )


def test_torch_kernels_agree_with_the_numba_kernels():
    torch.manual_seed(0)
    length, streams = 20, 3
    flags = torch.tensor([0, 0, 0, 0, 8, 1, 2, 4])[torch.randint(8, (streams * length,))].to(torch.uint8)
    reward = torch.randn(streams * length)
    slots = torch.arange(streams * length)
    stacks = torch.empty(len(slots), 4, dtype=torch.int64)
    kernels.frame_stacks(slots.numpy(), length, flags.numpy(), stacks.numpy())
    assert torch.equal(stacks, kernels_torch.frame_stacks(slots, length, flags, 4))
    for n, final in itertools.product((1, 3, 5), (1, 3)):
        powers = 0.9 ** torch.arange(n + 1, dtype=torch.float64)
        start = slots[(flags & kernels.CLOSING) == 0]
        total, discount, successor = (torch.empty(len(start)) for _ in range(3))
        successor = successor.long()
        arrays = (x.numpy() for x in (total, discount, successor))
        kernels.n_step_returns(
            start.numpy(), length, reward.numpy(), flags.numpy(), powers.numpy(), final, *arrays
        )
        other = kernels_torch.n_step_returns(start, length, reward, flags, powers, final)
        assert torch.allclose(total, other[0]) and torch.equal(discount, other[1])
        assert torch.equal(successor, other[2])


def test_torch_kernel_draws_the_same_windows():
    torch.manual_seed(0)
    length, written = 20, torch.tensor([33, 12, 3])
    flags = torch.zeros(60, dtype=torch.uint8)
    flags[::4] = kernels.CLOSING
    random = torch.randint(2**62, (3000,))
    slots = torch.empty(3000, dtype=torch.int64)
    kernels.draw_slots(random.numpy(), 0.5, written.numpy(), length, 3, 2, flags.numpy(), slots.numpy())
    numbers = torch.randint(2**62, (kernels_torch.MAX_TRIES, 3000))
    other = kernels_torch.draw_slots(numbers, torch.tensor(0.5), written, length, 3, 2, flags)
    assert set(slots.tolist()) == set(other.tolist())
    assert ((other // length).bincount() - (slots // length).bincount()).abs().max() <= 60


@pytest.mark.reliability("T6")
def test_replay_in_files_equals_one_in_memory_and_leaves_no_files(tmp_path):
    stream = StackedStream()
    in_memory, in_files = (
        UniformReplay(SPEC, NStep(1), ReplaySize(16, 1, directory), 0) for directory in ("", str(tmp_path))
    )
    assert not list(tmp_path.iterdir())  # files are mapped and unlinked, so a crash leaves none
    for _ in range(30):
        rollout = stream.row()
        in_memory.add(rollout)
        in_files.add(rollout)
    assert torch.equal(in_memory.sample(50).obs["obs"], in_files.sample(50).obs["obs"])


@pytest.mark.reliability("S5")
def test_replay_that_does_not_fit_is_rejected_with_the_numbers(tmp_path):
    with pytest.raises(SetupProblem, match=r"needs 70\d+\.\d+ GB on cpu but .* --system.replay-dir"):
        RingStorage(EnvSpec("a", {"obs": Field((4, 84, 84), torch.uint8, 4)}, Discrete(2), 1), 1, 10**9)
    with pytest.raises(SetupProblem, match=r"needs .* GB in .* but .* GB are free"):
        RingStorage(SPEC, 1, 10**15, directory=str(tmp_path))
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SetupProblem, match="cannot be used"):
        RingStorage(SPEC, 1, 10, directory=str(file))
    with pytest.raises(BadInput, match="cpu"):
        RingStorage(SPEC, 1, 10, "meta", str(tmp_path))
