"""Gaussian noise held for a random number of steps (FlashSAC, 2604.04539).

The number of steps k has P(k) proportional to k^-exponent. Held noise has more power at low frequencies than
noise drawn at every step: 4.73 times with exponent 2 and at most 16 steps. The state of the noise is a tensor
[rows, columns + 1]: the noise of the last step, and the number of further steps for which it is held, or
NEVER_HELD in rows that draw new noise at every step. It fits into the recurrent state of a policy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

EXPONENT = 2.0  # of the law of the number of steps
UNLIMITED = 1000  # steps that count as the time limit of envs without one
NEVER_HELD = -1.0  # number of further steps of rows whose noise is not held


def longest_repeat(setting: int, episode_limit: int | None, share: float = 0.1) -> int:
    """Return `setting`, or for 0 a share of the time limit: noise of a system's time scale, whatever it is.

    The time spent in repeats of length k is proportional to 1/k, so every octave of durations up to the
    longest has the same part.
    """
    return setting or max(1, round(share * (episode_limit or UNLIMITED)))


def held_share(setting: int) -> float:
    """Return the share of envs whose noise is held with this setting of `longest_repeat`: half of them for 0.

    Held noise reaches rare rewards more often; envs without it stay closer to the policy's own behaviour.
    """
    return 1.0 if setting else 0.5


def repeat_thresholds(exponent: float, longest: int) -> Tensor:
    """Return P(k <= 1), .., P(k <= longest - 1) of the truncated zeta law over k = 1..longest."""
    weights = torch.arange(1, longest + 1, dtype=torch.float64) ** -exponent
    return (weights / weights.sum()).cumsum(0)[:-1].float()


def initial_state(rows: int, columns: int, device: torch.device | None = None, share: float = 1.0) -> Tensor:
    """Return the state before the first step, from which every row draws its noise.

    A `share` of the rows, evenly spread over all of them, holds its noise: systems give the first envs less
    noise than the last ones. The state of a row says whether it is one of them, so that the noise of an env
    does not depend on which other rows a call has.
    """
    state = torch.zeros(rows, columns + 1, device=device)
    if share < 1:
        state[torch.arange(rows, device=device) * share % 1 >= share, -1] = NEVER_HELD
    return state


def noise(state: Tensor) -> Tensor:
    """Return the noise of the last step, [rows, columns]."""
    return state[:, :-1]


def uniform(noise: Tensor) -> Tensor:
    """Map standard normal noise to noise that is uniform in [-1, 1] and held as long."""
    return torch.erf(noise * math.sqrt(0.5))


def advance(state: Tensor, thresholds: Tensor, active: Tensor, shared: bool = False) -> Tensor:
    """Return the state of the next step; rows that are not `active` [rows] keep theirs.

    A row whose noise has been held long enough draws new noise and the number of steps k for which to hold
    it. With `shared` all rows of the call draw new noise in the same step; a row that starts in between joins
    them.
    """
    held, remaining = noise(state), state[:, -1:]
    expired = remaining <= 0
    drawn = torch.rand(1 if shared else len(state), 1, device=state.device)
    repeats = torch.bucketize(drawn, thresholds).to(state.dtype) + 1
    if shared:
        others = torch.where(active.unsqueeze(-1), remaining, 0.0).amax(0, keepdim=True)
        repeats = torch.where(others > 0, others, repeats)
    further = torch.where(expired, repeats, remaining) - 1
    advanced = torch.cat(
        (
            torch.where(expired, torch.randn_like(held), held),
            torch.where(remaining == NEVER_HELD, remaining, further),
        ),
        -1,
    )
    return torch.where(active.unsqueeze(-1), advanced, state)


class HeldNoise(nn.Module):
    """Noise of a policy with `columns` actions, held as `longest_repeat(setting)` and `held_share` say."""

    thresholds: Tensor

    def __init__(
        self,
        columns: int,
        setting: int,
        episode_limit: int | None,
        exponent: float = EXPONENT,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.columns, self.share, self.shared = columns, held_share(setting), shared
        thresholds = repeat_thresholds(exponent, longest_repeat(setting, episode_limit))
        self.register_buffer("thresholds", thresholds, persistent=False)

    def initial_state(self, rows: int) -> dict[str, Tensor] | None:
        """Return the recurrent state of new episodes; None if noise is drawn in every step."""
        if not len(self.thresholds):
            return None
        return {"noise": initial_state(rows, self.columns, self.thresholds.device, self.share)}

    def forward(
        self, state: dict[str, Tensor] | None, active: Tensor
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        """Return standard normal noise [rows, columns] and the next state; `active` as in `advance`."""
        if state is None:
            return torch.randn(len(active), self.columns, device=active.device), None
        held = advance(state["noise"], self.thresholds, active, self.shared)
        return noise(held), {"noise": held}
