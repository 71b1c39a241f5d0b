"""Stacks of frames put together at sampling, against stacks kept whole."""

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
SPEC = EnvSpec("film", {"obs": Field((STACK, 2, 3), torch.uint8, STACK)}, Discrete(3), 1)


class Film:
    """One stream of stacked observations as an env would show them, each kept whole, by its number."""

    def __init__(self):
        self.seen, self.kinds = [], []
        self.stack = None
        self.count = 0

    def frame(self):
        self.count += 1
        return torch.full((1, 2, 3), self.count % 251, dtype=torch.uint8)

    def row(self, kind="step", life_lost=False):
        """The next row: a plain step, an 'end' (terminated), or its 'closing' row."""
        if self.stack is None or (self.kinds and self.kinds[-1] == "closing" and not life_lost):
            self.stack = self.frame().repeat(STACK, 1, 1)  # a new game repeats its first frame
        else:
            self.stack = torch.cat((self.stack[1:], self.frame()))
        self.seen.append(self.stack)
        self.kinds.append(kind)
        flag = torch.tensor([[kind == "end"]])
        closing = torch.tensor([[kind == "closing"]])
        return Rollout(
            torch.tensor([0]),
            {"obs": self.stack[None, None]},
            torch.tensor([[len(self.seen) % 3]]),
            torch.tensor([[float(len(self.seen) - 1)]]),
            flag,
            torch.zeros_like(flag),
            closing,
        )


def check(film, batch, n):
    by_frame = {int(stack[-1, 0, 0]): number for number, stack in enumerate(film.seen)}
    for obs, next_obs, discount in zip(batch.obs["obs"], batch.next_obs["obs"], batch.discount, strict=True):
        start = by_frame[int(obs[-1, 0, 0])]
        assert torch.equal(obs, film.seen[start])
        if discount > 0:
            assert torch.equal(next_obs, film.seen[start + n])


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("life_lost", [False, True])
def test_stacks_at_every_offset_from_an_episodes_start_and_end(n, life_lost, prioritized):
    for end, steps in itertools.product(range(1, 7), (12, 17, 30, 41)):
        film = Film()
        size = ReplaySize(16, 1)
        replay = (
            PrioritizedReplay(SPEC, NStep(n, 0.9), size, 0, priority=PriorityConfig(alpha=0.6))
            if prioritized
            else UniformReplay(SPEC, NStep(n, 0.9), size, 0)
        )
        for i in range(steps):
            kind = {end - 1: "end", end: "closing"}.get(i % (end + 1), "step")
            replay.add(film.row(kind, life_lost))
        batch = replay.sample(300)
        check(film, batch, n)
        starts = {int(x) for x in batch.obs["obs"][:, -1, 0, 0]}
        oldest = max(0, steps - 16) + (STACK - 1 if steps > 16 else 0)
        wanted = {i for i in range(oldest, steps - n) if film.kinds[i] != "closing"}
        assert {s - 1 for s in starts} == wanted  # frames are numbered from one


def test_each_frame_is_kept_once():
    atari = EnvSpec("atari", {"obs": Field((4, 84, 84), torch.uint8, 4)}, Discrete(6), 8)
    layout = Layout.of(atari)
    assert layout.row_bytes == 84 * 84 + 8 + 4 + 1
    assert 1_000_000 * layout.row_bytes < 8e9  # a million transitions in less than 8 GB
    assert RingStorage(atari, 8, 10).bytes == 80 * layout.row_bytes


def test_state_round_trips_with_frames():
    film, replay = Film(), UniformReplay(SPEC, NStep(2, 0.9), ReplaySize(16, 1), 0)
    for i in range(40):
        replay.add(film.row("closing" if i % 9 == 8 else "end" if i % 9 == 7 else "step"))
    fresh = UniformReplay(SPEC, NStep(2, 0.9), ReplaySize(16, 1), 7)
    fresh.load_state_dict(copy.deepcopy(replay.state_dict()))
    one, two = replay.sample(20), fresh.sample(20)
    assert torch.equal(one.obs["obs"], two.obs["obs"]) and torch.equal(
        one.next_obs["obs"], two.next_obs["obs"]
    )


def test_tensor_operations_for_gpus_agree_with_the_compiled_loops():
    torch.manual_seed(0)
    length, streams = 20, 3
    flags = torch.tensor([0, 0, 0, 0, 8, 1, 2, 4])[torch.randint(8, (streams * length,))].to(torch.uint8)
    reward = torch.randn(streams * length)
    place = torch.arange(streams * length)
    history = torch.empty(len(place), 4, dtype=torch.int64)
    kernels.frame_stacks(place.numpy(), length, flags.numpy(), history.numpy())
    assert torch.equal(history, kernels_torch.frame_stacks(place, length, flags, 4))
    for n, final in itertools.product((1, 3, 5), (1, 3)):
        powers = 0.9 ** torch.arange(n + 1, dtype=torch.float64)
        start = place[(flags & kernels.CLOSING) == 0]
        total, discount, successor = (torch.empty(len(start)) for _ in range(3))
        successor = successor.long()
        arrays = (x.numpy() for x in (total, discount, successor))
        kernels.windows(start.numpy(), length, reward.numpy(), flags.numpy(), powers.numpy(), final, *arrays)
        other = kernels_torch.windows(start, length, reward, flags, powers, final)
        assert torch.allclose(total, other[0]) and torch.equal(discount, other[1])
        assert torch.equal(successor, other[2])


def test_draws_for_gpus_fall_on_the_same_windows():
    torch.manual_seed(0)
    length, heads = 20, torch.tensor([33, 12, 3])
    flags = torch.zeros(60, dtype=torch.uint8)
    flags[::4] = kernels.CLOSING
    random = torch.randint(2**62, (3000,))
    slow = torch.empty(3000, dtype=torch.int64)
    kernels.draw(random.numpy(), 0.5, heads.numpy(), length, 3, 2, flags.numpy(), slow.numpy())
    fast = kernels_torch.draw(random, torch.tensor(0.5), heads, length, 3, 2, flags)
    assert set(slow.tolist()) == set(fast.tolist())
    assert ((fast // length).bincount() - (slow // length).bincount()).abs().max() <= 60


def test_a_replay_in_files_is_the_same_and_leaves_nothing_behind(tmp_path):
    film = Film()
    inside, outside = (
        UniformReplay(SPEC, NStep(1), ReplaySize(16, 1, folder), 0) for folder in ("", str(tmp_path))
    )
    assert not list(tmp_path.iterdir())  # mapped and unlinked: nothing to clean up after a crash
    for _ in range(30):
        piece = film.row()
        inside.add(piece)
        outside.add(piece)
    assert torch.equal(inside.sample(50).obs["obs"], outside.sample(50).obs["obs"])


def test_what_does_not_fit_is_refused_with_the_numbers(tmp_path):
    with pytest.raises(SetupProblem, match=r"needs 70\d+\.\d+ GB on cpu but .* --system.replay-dir"):
        RingStorage(EnvSpec("a", {"obs": Field((4, 84, 84), torch.uint8, 4)}, Discrete(2), 1), 1, 10**9)
    with pytest.raises(SetupProblem, match=r"needs .* GB in .* but .* GB are free"):
        RingStorage(SPEC, 1, 10**15, folder=str(tmp_path))
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(SetupProblem, match="cannot be used"):
        RingStorage(SPEC, 1, 10, folder=str(file))
    with pytest.raises(BadInput, match="cpu"):
        RingStorage(SPEC, 1, 10, "meta", str(tmp_path))
