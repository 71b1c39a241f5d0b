"""Epsilon-greedy actions that may be held for several steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from troop.functional import td
from troop.functional.repeated_noise import EXPONENT, repeat_thresholds

RepeatState = dict[str, Tensor]


class EpsilonGreedy(nn.Module):
    """Epsilon-greedy; with `repeats` above 1 temporally-extended (Dabney et al. 2021, 2006.01782).

    A row that explores repeats its random action for k steps, k = 1..repeats with P(k) proportional to k^-2:
    a sequence of independent random actions rarely moves a system with inertia far. The state [rows, 2] holds
    the random action and the number of further steps for which it is repeated.
    """

    thresholds: Tensor

    def __init__(self, actions: int, repeats: int = 1) -> None:
        super().__init__()
        self.actions = actions
        self.register_buffer("thresholds", repeat_thresholds(EXPONENT, repeats), persistent=False)

    def initial_state(self, rows: int) -> RepeatState | None:
        """Return the state of new episodes; None if random actions are not repeated."""
        if not len(self.thresholds):
            return None
        return {"repeat": torch.zeros(rows, 2, device=self.thresholds.device)}

    def forward(
        self, greedy: Tensor, epsilon: Tensor, state: RepeatState | None
    ) -> tuple[Tensor, RepeatState | None]:
        """Replace greedy actions [B] by random ones; `epsilon` [B] is the probability that one begins."""
        if state is None:
            return td.epsilon_greedy(greedy, self.actions, epsilon), None
        held, remaining = state["repeat"].unbind(1)
        rows, device = len(greedy), greedy.device
        begins = (remaining <= 0) & (torch.rand(rows, device=device) < epsilon)
        drawn = torch.randint(self.actions, (rows,), device=device).to(held.dtype)
        repeats = torch.bucketize(torch.rand(rows, device=device), self.thresholds).to(held.dtype) + 1
        held = torch.where(begins, drawn, held)
        remaining = torch.where(begins, repeats, remaining)
        random = (remaining > 0) & (epsilon > 0)
        action = torch.where(random, held.to(greedy.dtype), greedy)
        remaining = torch.where(random, remaining - 1, remaining)
        return action, {"repeat": torch.stack((held, remaining), 1)}
