"""Action distributions of stochastic policies, as functions of the network's outputs [N, P]."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MASKED_LOGIT = -1e9  # logit of an action that a mask forbids: its probability is exactly 0 in float32
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Categorical:
    """Independent categorical distributions with `choices` actions each; outputs are their logits, joined.

    An action [N] is the index of a combination of their choices; the last one varies fastest.
    """

    choices: tuple[int, ...]

    @property
    def outputs(self) -> int:
        """Number of logits P."""
        return sum(self.choices)

    def sample(self, logits: Tensor) -> Tensor:
        """Draw actions by the Gumbel-max trick."""
        exponential = torch.empty_like(logits).exponential_()  # -log of it is Gumbel noise
        return self._argmax(logits - exponential.log_())

    def mode(self, logits: Tensor) -> Tensor:
        """Return the most probable actions."""
        return self._argmax(logits)

    def _argmax(self, x: Tensor) -> Tensor:
        index = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
        for part in torch.split(x, list(self.choices), -1):
            index = index * part.shape[-1] + part.argmax(-1)
        return index

    def parts(self, action: Tensor) -> list[Tensor]:
        """Return the choice of each distribution, [N] each."""
        choices: list[Tensor] = []
        for count in reversed(self.choices):
            choices.append(action % count)
            action = action.div(count, rounding_mode="floor")
        return choices[::-1]

    def log_prob(self, logits: Tensor, action: Tensor) -> Tensor:
        """Return log pi(action) [N], summed over the distributions."""
        parts = zip(self._log_probs(logits), self.parts(action), strict=True)
        return torch.stack([part.gather(-1, index.unsqueeze(-1)) for part, index in parts]).sum(0).squeeze(-1)

    def entropy(self, logits: Tensor) -> Tensor:
        """Return the entropy in nats [N]."""
        return -torch.stack([(part.exp() * part).sum(-1) for part in self._log_probs(logits)]).sum(0)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return KL(old || new) [N]."""
        parts = zip(self._log_probs(old), self._log_probs(new), strict=True)
        return torch.stack([(p.exp() * (p - q)).sum(-1) for p, q in parts]).sum(0)

    def symmetric_kl_from_uniform(self, logits: Tensor) -> Tensor:
        """Return (KL(pi || u) + KL(u || pi)) / 2 [N], where u is uniform over the actions without a mask."""
        total = []
        for part in torch.split(logits, list(self.choices), -1):
            allowed = part > 0.5 * MASKED_LOGIT
            log_u = -allowed.sum(-1, keepdim=True).log()
            difference = torch.where(allowed, part.log_softmax(-1) - log_u, 0.0)  # log pi - log u
            total.append(0.5 * ((part.softmax(-1) - log_u.exp()) * difference).sum(-1))
        return torch.stack(total).sum(0)

    def mask_logits(self, logits: Tensor, mask: Tensor) -> Tensor:
        """Return logits in which actions whose `mask` [N, P] is False have probability 0."""
        return logits.masked_fill(~mask, MASKED_LOGIT)

    def _log_probs(self, logits: Tensor) -> list[Tensor]:
        return [part.log_softmax(-1) for part in torch.split(logits, list(self.choices), -1)]


@dataclass(frozen=True)
class DiagonalGaussian:
    """A Gaussian with independent columns; outputs are means and log standard deviations, [N, 2 size]."""

    size: int

    @property
    def outputs(self) -> int:
        """Number of means; the log standard deviations are joined to them by the policy."""
        return self.size

    def sample(self, outputs: Tensor) -> Tensor:
        """Draw actions [N, size], which may lie outside of [-1, 1]."""
        mean, log_std = outputs.chunk(2, -1)
        return torch.addcmul(mean, log_std.exp(), torch.randn_like(mean))

    def mode(self, outputs: Tensor) -> Tensor:
        """Return the means."""
        return outputs.chunk(2, -1)[0]

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Return the log-density [N]."""
        mean, log_std = outputs.chunk(2, -1)
        z = (action - mean) * torch.exp(-log_std)
        return -(0.5 * z.square() + log_std).sum(-1) - self.size * LOG_SQRT_2PI

    def entropy(self, outputs: Tensor) -> Tensor:
        """Return the differential entropy in nats [N]."""
        return outputs.chunk(2, -1)[1].sum(-1) + self.size * (0.5 + LOG_SQRT_2PI)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """Return KL(old || new) [N]."""
        (mean, log_std), (new_mean, new_log_std) = old.chunk(2, -1), new.chunk(2, -1)
        ratio = torch.exp(2 * (log_std - new_log_std))
        distance = ((mean - new_mean) * torch.exp(-new_log_std)).square()
        return (new_log_std - log_std + 0.5 * (ratio + distance - 1)).sum(-1)


Distribution = Categorical | DiagonalGaussian
