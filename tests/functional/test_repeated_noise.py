import pytest
import torch

from troop.functional import repeated_noise

THRESHOLDS = repeated_noise.repeat_thresholds(2.0, 16)


def simulate(rows, steps, columns=1, shared=False, seed=0):
    """Return the noise [steps, rows, columns] and the remaining steps [steps, rows]."""
    torch.manual_seed(seed)
    state, active = repeated_noise.initial_state(rows, columns), torch.ones(rows, dtype=torch.bool)
    noises, remaining = [], []
    for _ in range(steps):
        state = repeated_noise.advance(state, THRESHOLDS, active, shared=shared)
        noises.append(repeated_noise.noise(state))
        remaining.append(state[:, -1])
    return torch.stack(noises), torch.stack(remaining)


def test_law_of_repeats():
    law = torch.cat((THRESHOLDS, torch.ones(1))).double().diff(prepend=torch.zeros(1).double())
    assert law[0].item() == pytest.approx(0.63118, abs=5e-6)
    assert law[1].item() == pytest.approx(0.15779, abs=5e-6)
    assert law[15].item() == pytest.approx(0.0024655, abs=5e-7)
    k = torch.arange(1, 17).double()
    mean = (law * k).sum()
    assert mean.item() == pytest.approx(2.1338, abs=1e-4)
    assert ((law * k.square()).sum() / mean).item() == pytest.approx(4.73, abs=0.005)


def test_drawn_repeats_follow_the_law():
    torch.manual_seed(0)
    active = torch.ones(400_000, dtype=torch.bool)
    state = repeated_noise.advance(repeated_noise.initial_state(len(active), 0), THRESHOLDS, active)
    repeats = state[:, -1] + 1
    assert repeats.min() == 1 and repeats.max() == 16
    for k, share in ((1, 0.63118), (2, 0.15779), (16, 0.0024655)):
        assert (repeats == k).float().mean().item() == pytest.approx(share, abs=4 * (share / 400_000) ** 0.5)
    assert repeats.mean().item() == pytest.approx(2.1338, abs=0.02)


def test_autocorrelation_and_marginal_law():
    noise, _ = simulate(rows=2000, steps=600)
    x = noise[100:, :, 0]  # after the common start of all rows
    assert x.mean().item() == pytest.approx(0, abs=0.01)
    assert x.var().item() == pytest.approx(1, abs=0.01)
    for lag, expected in ((1, 0.5314), (2, 0.3585), (4, 0.1936), (8, 0.0614), (16, 0.0)):
        assert (x[lag:] * x[:-lag]).mean().item() == pytest.approx(expected, abs=0.008)


def test_noise_is_held_exactly_while_steps_remain_and_rows_are_independent():
    noise, remaining = simulate(rows=50, steps=200, columns=3)
    held = remaining[:-1] > 0
    assert torch.equal(noise[1:][held], noise[:-1][held])
    assert torch.equal(remaining[1:][held], remaining[:-1][held] - 1)
    assert (noise[1:][~held] != noise[:-1][~held]).all()
    assert remaining.unique(dim=1).shape[1] == 50


def test_shared_repeats_change_all_rows_in_the_same_step():
    noise, remaining = simulate(rows=8, steps=100, shared=True)
    assert (remaining == remaining[:, :1]).all()
    assert (noise[:, 0] != noise[:, 1]).all()
    # A row that starts an episode draws new noise and joins the count of the others.
    state = torch.tensor([[0.5, 3.0], [0.0, 0.0], [-0.5, 3.0]])
    state = repeated_noise.advance(state, THRESHOLDS, torch.ones(3, dtype=torch.bool), shared=True)
    assert state[:, 1].tolist() == [2, 2, 2]
    assert state[0, 0] == 0.5 and state[2, 0] == -0.5 and state[1, 0] != 0


def test_rows_that_are_not_active_keep_their_state():
    noise, remaining = simulate(rows=6, steps=3, columns=2)
    state = torch.cat((noise[-1], remaining[-1].unsqueeze(-1)), -1)
    before, active = state.clone(), torch.tensor([True, False] * 3)
    after = repeated_noise.advance(state, THRESHOLDS, active)
    assert torch.equal(after[1::2], before[1::2]) and torch.equal(state, before)
    assert not torch.equal(after[::2], before[::2])


def test_longest_of_one_draws_at_every_step():
    thresholds, active = repeated_noise.repeat_thresholds(2.0, 1), torch.ones(5, dtype=torch.bool)
    assert len(thresholds) == 0
    first = repeated_noise.advance(repeated_noise.initial_state(5, 2), thresholds, active)
    second = repeated_noise.advance(first, thresholds, active)
    assert (first[:, -1] == 0).all() and (first[:, :-1] != second[:, :-1]).all()


@pytest.mark.parametrize(
    "setting, limit, longest",
    [(0, 1000, 100), (0, 200, 20), (0, 5, 1), (0, None, 100), (7, 1000, 7), (1, None, 1)],
)
def test_longest_repeat_follows_from_the_time_limit_unless_it_is_set(setting, limit, longest):
    assert repeated_noise.longest_repeat(setting, limit) == longest
    assert setting or repeated_noise.longest_repeat(0, limit, 1.0) == (limit or 1000)


def test_uniform_noise_has_the_quantiles_of_the_uniform_law():
    noise = torch.tensor([-100.0, -0.6744898, 0.0, 0.6744898, 1.2815516, 100.0])  # quantiles of N(0, 1)
    expected = [-1.0, -0.5, 0.0, 0.5, 0.8, 1.0]
    assert repeated_noise.uniform(noise).tolist() == pytest.approx(expected, abs=1e-6)


def test_the_setting_zero_holds_the_noise_of_every_second_row():
    # Not of the first half: PQL and Ape-X give the first envs little noise, which finds nothing.
    torch.manual_seed(0)
    thresholds, active = repeated_noise.repeat_thresholds(2.0, 100), torch.ones(7, dtype=torch.bool)
    share, repeated = repeated_noise.held_share(0), torch.zeros(7)
    state = repeated_noise.initial_state(7, 2, share=share)
    for _ in range(200):
        after = repeated_noise.advance(state, thresholds, active)
        repeated += (repeated_noise.noise(after) == repeated_noise.noise(state)).all(1)
        state = after
    assert (repeated[::2] > 20).all() and (repeated[1::2] == 0).all()
    assert repeated_noise.held_share(16) == 1.0


def test_shared_repeats_hold_only_the_share_of_rows_that_hold_noise():
    torch.manual_seed(0)
    thresholds, active = repeated_noise.repeat_thresholds(2.0, 100), torch.ones(6, dtype=torch.bool)
    state, repeated = repeated_noise.initial_state(6, 2, share=0.5), torch.zeros(6)
    for _ in range(200):
        after = repeated_noise.advance(state, thresholds, active, shared=True)
        repeated += (repeated_noise.noise(after) == repeated_noise.noise(state)).all(1)
        state = after
    assert (repeated[::2] > 20).all() and (repeated[1::2] == 0).all()
