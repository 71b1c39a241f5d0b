"""Uniformity of the rows that the kernels draw, by chi-square against the exact distribution."""

import numpy as np
import pytest
import torch
from scipy import stats

from troop.replay.storage import kernels, kernels_torch

LENGTH, N = 128, 3


def numba_draw(generator, rows, written, margin, flags):
    random = torch.randint(2**62, (rows + 1,), generator=generator).numpy()
    slots = np.empty(rows, np.int64)
    window = (LENGTH, N, margin)
    missing = kernels.draw_slots(
        random[:-1], random[-1] / 2**62, written.numpy(), *window, flags.numpy(), slots
    )
    assert missing == 0
    return slots


def torch_draw(generator, rows, written, margin, flags):
    random = torch.randint(2**62, (kernels_torch.MAX_TRIES, rows), generator=generator)
    shift = torch.rand((), generator=generator)
    return kernels_torch.draw_slots(random, shift, written, LENGTH, N, margin, flags).numpy()


def probabilities(written, margin, flags):
    """Return the probability of each slot: a stream's share of all windows, equal among its valid rows."""
    share = np.zeros(len(flags))
    for stream, count in enumerate(written.tolist()):
        first = count - LENGTH + margin if count > LENGTH else 0
        windows = stream * LENGTH + np.arange(first, count - N) % LENGTH
        valid = windows[flags.numpy()[windows] == 0]
        share[valid] = len(windows) / len(valid)
    return share / share.sum()


@pytest.mark.parametrize("draw", [numba_draw, torch_draw])
@pytest.mark.parametrize(
    "rows_written, closing", [((200, 128, 90), 0.05), ((200, 128, 90), 0.4), ((300,), 0.75)]
)
def test_valid_rows_are_drawn_equally_often_whatever_rows_are_closing(draw, rows_written, closing):
    generator, written, margin = torch.Generator().manual_seed(0), torch.tensor(rows_written), 2
    is_closing = torch.rand(len(written) * LENGTH, generator=generator) < closing
    flags = is_closing.to(torch.uint8) * kernels.CLOSING
    expected = probabilities(written, margin, flags)
    counts = np.zeros(len(flags))
    for _ in range(40):
        counts += np.bincount(draw(generator, 10_000, written, margin, flags), minlength=len(flags))
    assert not counts[expected == 0].any()
    drawn, expected = counts[expected > 0], 400_000 * expected[expected > 0]
    # Streams have fixed shares, so the sum of squares varies slightly less than for independent draws.
    chi_square = np.square(drawn - expected) @ (1 / expected)
    assert chi_square < stats.chi2.ppf(0.9999, len(drawn) - 1)
    assert np.abs(drawn / expected - 1).max() < 0.15


def test_torch_kernel_replaces_a_stream_of_closing_rows_by_rows_of_other_streams():
    flags = torch.zeros(2 * LENGTH, dtype=torch.uint8)
    flags[:LENGTH] = kernels.CLOSING
    slots = torch_draw(torch.Generator().manual_seed(0), 10_000, torch.tensor([100, 100]), 0, flags)
    counts = np.bincount(slots, minlength=2 * LENGTH)[LENGTH : LENGTH + 97]
    assert counts.sum() == 10_000 and counts.min() > 50
