"""FastTD3's learner as the authors' code structures it, in plain PyTorch: the comparison of learner.py.

Separate networks, one `backward` per loss, AdamW with its defaults, projections of both target
distributions, observation statistics updated by every batch, the whole update function compiled. Written
from the description of that code; mixed precision is off, as it is there without CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

Logs = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """Transitions: observations, actions, rewards [B], 1 where the target bootstraps [B], gamma^n [B]."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    bootstrap: Tensor
    discount: Tensor
    next_obs: Tensor


@dataclass(frozen=True)
class Settings:
    """Sizes of the networks and hyperparameters; defaults are those of the paper."""

    obs: int
    actions: int
    critic_hidden: tuple[int, ...]
    actor_hidden: tuple[int, ...]
    atoms: int = 101
    v_min: float = -10.0
    v_max: float = 10.0
    lr: float = 3e-4
    weight_decay: float = 0.1
    tau: float = 0.1
    policy_frequency: int = 2
    policy_noise: float = 0.001
    noise_clip: float = 0.5


def layers(inputs: int, hidden: Sequence[int]) -> list[nn.Module]:
    """Return linear layers and ReLUs in turn."""
    found: list[nn.Module] = []
    for fan_in, fan_out in pairwise([inputs, *hidden]):
        found += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return found


class Actor(nn.Module):
    """Deterministic policy; the weights of the last layer start near zero."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(settings.obs, settings.actor_hidden))
        self.mean = nn.Sequential(nn.Linear(settings.actor_hidden[-1], settings.actions), nn.Tanh())
        nn.init.normal_(self.mean[0].weight, 0.0, 0.01)  # type: ignore[arg-type]
        nn.init.zeros_(self.mean[0].bias)  # type: ignore[arg-type]

    def forward(self, obs: Tensor) -> Tensor:
        """[B, obs] -> [B, actions]."""
        action: Tensor = self.mean(self.net(obs))
        return action


class DistributionalQ(nn.Module):
    """One categorical Q network."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.atoms, self.v_min, self.v_max = settings.atoms, settings.v_min, settings.v_max
        hidden = settings.critic_hidden
        self.net = nn.Sequential(
            *layers(settings.obs + settings.actions, hidden), nn.Linear(hidden[-1], settings.atoms)
        )

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return logits [B, atoms]."""
        logits: Tensor = self.net(torch.cat([obs, action], 1))
        return logits

    def projection(self, batch: Batch, obs: Tensor, action: Tensor, support: Tensor) -> Tensor:
        """Return the projected target distribution [B, atoms]."""
        step = (self.v_max - self.v_min) / (self.atoms - 1)
        shifted = (
            batch.reward.unsqueeze(1) + batch.bootstrap.unsqueeze(1) * batch.discount.unsqueeze(1) * support
        )
        b = (shifted.clamp(self.v_min, self.v_max) - self.v_min) / step
        lower, upper = torch.floor(b).long(), torch.ceil(b).long()
        whole = lower == upper  # exactly one of the neighbours moves
        down, up = whole & (lower > 0), whole & (lower == 0)
        lower, upper = torch.where(down, lower - 1, lower), torch.where(up, upper + 1, upper)
        probabilities = functional.softmax(self(obs, action), 1)
        projected = torch.zeros_like(probabilities)
        rows = len(probabilities)
        offset = torch.linspace(0, (rows - 1) * self.atoms, rows, device=support.device)
        offset = offset.unsqueeze(1).expand(rows, self.atoms).long()
        flat = projected.view(-1)
        flat.index_add_(0, (lower + offset).view(-1), (probabilities * (upper.float() - b)).view(-1))
        flat.index_add_(0, (upper + offset).view(-1), (probabilities * (b - lower.float())).view(-1))
        return projected


class Critic(nn.Module):
    """Two Q networks and their support."""

    support: Tensor

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.q1, self.q2 = DistributionalQ(settings), DistributionalQ(settings)
        self.register_buffer("support", torch.linspace(settings.v_min, settings.v_max, settings.atoms))

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of both networks."""
        return self.q1(obs, action), self.q2(obs, action)

    def projection(self, batch: Batch, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the projected target distributions of both networks."""
        first = self.q1.projection(batch, obs, action, self.support)
        return first, self.q2.projection(batch, obs, action, self.support)

    def value(self, probabilities: Tensor) -> Tensor:
        """[B, atoms] -> [B]."""
        return torch.sum(probabilities * self.support, 1)


class EmpiricalNormalization(nn.Module):
    """Running mean and variance, updated by every call in training mode."""

    mean: Tensor
    var: Tensor
    std: Tensor
    count: Tensor

    def __init__(self, columns: int, eps: float = 1e-2) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("mean", torch.zeros(1, columns))
        self.register_buffer("var", torch.ones(1, columns))
        self.register_buffer("std", torch.ones(1, columns))
        self.register_buffer("count", torch.tensor(0, dtype=torch.long))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return normalized rows."""
        if self.training:
            self.update(x)
        return (x - self.mean) / (self.std + self.eps)

    def update(self, x: Tensor) -> None:
        """Merge a batch."""
        rows, mean, var = x.shape[0], x.mean(0, keepdim=True), x.var(0, keepdim=True, unbiased=False)
        total = self.count + rows
        self.mean += (mean - self.mean) * (rows / total)
        delta = mean - self.mean
        squares = self.var * self.count + var * rows + delta.pow(2) * (self.count * rows / total)
        self.var.copy_(squares / total)
        self.std.copy_(self.var.sqrt())
        self.count.copy_(total)


class OfficialFastTD3:
    """Critic update, every second time an actor update, and the target update."""

    def __init__(self, settings: Settings, compile: bool) -> None:
        self.settings, self.updates = settings, 0
        self.actor, self.critic, self.target = Actor(settings), Critic(settings), Critic(settings)
        self.target.load_state_dict(self.critic.state_dict())
        self.normalizer = EmpiricalNormalization(settings.obs)
        self.critic_optimizer, self.actor_optimizer = (
            torch.optim.AdamW(
                list(module.parameters()), lr=torch.tensor(settings.lr), weight_decay=settings.weight_decay
            )
            for module in (self.critic, self.actor)
        )
        self.scaler = torch.GradScaler("cpu", enabled=False)
        self.normalize: Callable[[Tensor], Tensor] = self.normalizer.forward
        self.update_main: Callable[[Batch], Logs] = self._update_main
        self.update_policy: Callable[[Tensor], Logs] = self._update_policy
        if compile:  # as the authors' code does; without CUDA reduce-overhead is the default mode
            self.normalize = torch.compile(self.normalize)
            self.update_main = torch.compile(self.update_main, mode="reduce-overhead")
            self.update_policy = torch.compile(self.update_policy, mode="reduce-overhead")

    def update(self, batch: Batch) -> Logs:
        """Perform one update of the training loop."""
        normalized = Batch(
            self.normalize(batch.obs),
            batch.action,
            batch.reward,
            batch.bootstrap,
            batch.discount,
            self.normalize(batch.next_obs),
        )
        logs = self.update_main(normalized)
        if self.updates % self.settings.policy_frequency == 1:
            logs |= self.update_policy(normalized.obs)
        self.soft_update()
        self.updates += 1
        return logs

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum of both cross entropies and the mean values of both targets, [2, B]."""
        noise = torch.randn_like(batch.action).mul(self.settings.policy_noise)
        noise = noise.clamp(-self.settings.noise_clip, self.settings.noise_clip)
        next_action = (self.actor(batch.next_obs) + noise).clamp(-1.0, 1.0)
        with torch.no_grad():
            first, second = self.target.projection(batch, batch.next_obs, next_action)
            first_value, second_value = self.target.value(first), self.target.value(second)
            target = torch.where(first_value.unsqueeze(1) < second_value.unsqueeze(1), first, second)
        q1, q2 = self.critic(batch.obs, batch.action)
        first_loss = -torch.sum(target * functional.log_softmax(q1, 1), 1).mean()
        second_loss = -torch.sum(target * functional.log_softmax(q2, 1), 1).mean()
        return first_loss + second_loss, torch.stack((first_value, second_value))

    def _update_main(self, batch: Batch) -> Logs:
        with torch.autocast("cpu", enabled=False):
            loss, values = self.critic_loss(batch)
        self.critic_optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.unscale_(self.critic_optimizer)
        self.scaler.step(self.critic_optimizer)
        self.scaler.update()
        return {"loss": loss.detach(), "max": values[0].max(), "min": values[0].min()}

    def _update_policy(self, obs: Tensor) -> Logs:
        with torch.autocast("cpu", enabled=False):
            q1, q2 = self.critic(obs, self.actor(obs))
            first, second = (self.critic.value(functional.softmax(q, 1)) for q in (q1, q2))
            loss = -torch.minimum(first, second).mean()
        self.actor_optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.unscale_(self.actor_optimizer)
        self.scaler.step(self.actor_optimizer)
        self.scaler.update()
        return {"policy_loss": loss.detach()}

    @torch.no_grad()
    def soft_update(self) -> None:
        """Move the target critics by `tau` towards the critics."""
        online = [parameter.data for parameter in self.critic.parameters()]
        target = [parameter.data for parameter in self.target.parameters()]
        torch._foreach_mul_(target, 1.0 - self.settings.tau)
        torch._foreach_add_(target, online, alpha=self.settings.tau)
