"""Surprise: the |TD error| of n-step windows, from what a policy said while it acted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from troop.core.batch import NStep


@dataclass(frozen=True, slots=True)
class ActedSteps:
    """Time-ordered rows [K, B] of B streams: what came, and what the policy thought of each observation."""

    q: Tensor  # value of the action taken
    value: Tensor  # value of the observation: of its best action
    after: Tensor  # value of the true successor where that is not the next row; NaN elsewhere
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    closing: Tensor


def n_step_td_error(said: ActedSteps, rows: int, experience: NStep) -> Tensor:
    """|R^(k) + gamma^k V(successor) - q| of the first `rows` rows, [rows, B]; 0 for closing rows.

    Windows are cut as the replay cuts them (kernels.windows): at ends and before closing rows, from whose
    observation they bootstrap. There must be n rows after the first `rows`, or a closing row behind the last.
    """
    n, gamma = experience.n, experience.gamma
    final = said.terminated if experience.bootstrap_on_truncation else said.terminated | said.truncated
    ended = said.terminated | said.truncated
    following = torch.cat((said.value[1:], torch.zeros_like(said.value[:1])))
    successor = torch.where(said.after.isnan(), following, said.after)
    total, going = torch.zeros_like(said.q[:rows]), ~said.closing[:rows]
    for k in range(n):
        now = slice(k, k + rows)
        closed = _until(said.closing, now)
        total += torch.where(going & closed, gamma**k * _until(said.value, now), 0.0)
        going = going & ~closed
        total += torch.where(going, gamma**k * _until(said.reward, now), 0.0)
        last = going & _until(ended, now) if k < n - 1 else going
        bootstraps = last & ~_until(final, now)
        total += torch.where(bootstraps, gamma ** (k + 1) * _until(successor, now), 0.0)
        going = going & ~last
    error = (total - said.q[:rows]).abs_().masked_fill_(said.closing[:rows], 0.0)
    return error.nan_to_num_(0.0, 0.0, 0.0)  # a net that says NaN must not poison a whole replay


def _until(x: Tensor, rows: slice) -> Tensor:
    """These rows; beyond the last, where no window goes on, the last again."""
    missing = rows.stop - len(x)
    return (
        x[rows]
        if missing <= 0
        else torch.cat((x[rows], x[-1:].expand(min(missing, rows.stop - rows.start), -1)))
    )
