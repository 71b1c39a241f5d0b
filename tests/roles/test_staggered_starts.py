import pytest
import torch

from troop.envs import Toy
from troop.roles.staggered_starts import StaggeredMake


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_first_episodes_end_at_different_times_and_all_others_at_the_limit(autoreset):
    env = StaggeredMake(Toy("Clock", 5, limit=20, autoreset=autoreset).make)(3)
    step, lengths, current = env.reset(3), [[] for _ in range(5)], torch.zeros(5)
    for _ in range(120):
        before = step.obs["obs"].clone()
        step = env.step(torch.zeros(5, 1))
        current += step.valid
        for row in (step.terminated | step.truncated).nonzero().flatten().tolist():
            lengths[row].append(int(current[row]))
            current[row] = 0
        moved = step.valid & ~torch.isclose(before[:, 0], torch.tensor(1.0))
        assert torch.allclose(step.next_obs["obs"][moved, 0], before[moved, 0] + 0.05)  # the true successor
        assert (step.obs["obs"][step.started] == 0).all()
    first = sorted(row[0] for row in lengths)
    assert len(set(first)) == 5 and first[-1] < 20 and first[0] <= 4
    assert all(length == 20 for row in lengths for length in row[1:])


def test_the_times_depend_only_on_the_seed_and_episodes_that_end_earlier_are_left_alone():
    ends = []
    for _ in range(2):
        env = StaggeredMake(Toy("Clock", 4, limit=12).make)(7)
        env.reset(7)
        ends.append([env.step(torch.zeros(4, 1)).truncated for _ in range(14)])
    assert torch.equal(torch.stack(ends[0]), torch.stack(ends[1]))
    env = StaggeredMake(Toy("Countdown", 4, limit=9).make)(7)  # without a time limit
    env.reset(7)
    assert not any(env.step(torch.zeros(4, 1)).truncated.any() for _ in range(1, 30))
