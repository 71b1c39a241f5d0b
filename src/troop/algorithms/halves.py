"""The two halves of an actor-critic: one learns the critics, one the policy, each by the other's net.

In one place they hold the same nets (actor_critic.py); apart, each has a lagged copy of the other's, which
is what it `peer_module`, and there is no target policy: the lagged one plays that part.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from troop.algorithms.actor_critic_config import ActorCriticConfig
from troop.algorithms.actor_critic_policy import ActorCriticPolicy, critics, observed
from troop.algorithms.optim.target import frozen, soft_update
from troop.algorithms.optim.value_and_grad import Told, compiled, value_and_grad
from troop.core.algorithm import UpdateResult
from troop.core.batch import Transition
from troop.core.env import EnvSpec, Obs
from troop.core.errors import BadInput
from troop.core.peers import Peers
from troop.functional import categorical, td
from troop.nets.critics import Critics

STEADY = 1000  # updates after which the normalizer looks at every tenth batch only


def nets(cfg: ActorCriticConfig, spec: EnvSpec, device: str) -> tuple[ActorCriticPolicy, Critics]:
    """Policy and critics, made in the same order by whole and halves; a telling policy brings its own."""
    policy = cfg.policy(spec).to(device)
    return policy, critics(spec, cfg).to(device) if policy.critic is None else policy.critic


def _apart(cfg: ActorCriticConfig, spec: EnvSpec, device: str) -> tuple[ActorCriticPolicy, Critics]:
    if reason := cfg.unsplittable_reason():
        raise BadInput(f"{reason}.")
    return nets(cfg, spec, device)


class CriticLearner:
    """Regresses critics on what target critics say of the policy's next actions."""

    def __init__(
        self, cfg: ActorCriticConfig, policy: ActorCriticPolicy, critic: Critics, peers: Peers, device: str
    ) -> None:
        self.cfg, self.policy, self.critic = cfg, policy, critic
        self.module: nn.Module = critic
        self.peer_module: nn.Module = policy
        self.atoms = torch.linspace(cfg.v_min, cfg.v_max, cfg.atoms, device=device) if cfg.atoms else None
        self.elementwise = cfg.clipped_double_q and cfg.categorical_min == "elementwise_min"
        self.descent = cfg.descent(device).on(peers, critic, cfg.critic_lr)
        self.target_critic = frozen(critic)
        self.actor: nn.Module = policy.actor  # who chooses the next actions
        autocast = torch.autocast(torch.device(device).type, torch.bfloat16, enabled=cfg.amp)
        found = value_and_grad(self.loss, critic.parameters(), autocast)
        self.value_and_grad = compiled(found, device) if cfg.compile else found
        self.updates = 0

    @classmethod
    def apart(cls, cfg: ActorCriticConfig, spec: EnvSpec, peers: Peers, device: str) -> Self:
        """With a copy of the policy, which somebody else learns."""
        policy, critic = _apart(cfg, spec, device)
        if policy.critic is critic:  # those of the policy come and go with it
            critic = copy.deepcopy(critic)
        return cls(cfg, policy.requires_grad_(False), critic, peers, device)

    def update(self, batch: Transition) -> UpdateResult:
        """One critic update, after which the targets follow."""
        outcome = self.descend(batch)
        self.move_targets()
        return outcome

    def descend(self, batch: Transition) -> UpdateResult:
        """One gradient step of all critics towards the target of one batch."""
        gradients, loss, (error, value) = self.value_and_grad(batch)
        skipped = self.descent.along(gradients, loss)
        self.critic.nets.project()
        self.updates += 1
        metrics = {"loss/critic": loss, "value/mean": value, "count/skipped_updates": skipped}
        return UpdateResult(metrics, priority=error if batch.index is not None else None)

    def move_targets(self) -> None:
        """The target critics go a little way after the online ones."""
        soft_update(self.target_critic, self.critic, self.cfg.tau)

    @torch.no_grad()
    def target(self, batch: Transition, next_obs: Tensor) -> Tensor:
        """What the critics regress on: distributions [C or 1, B, K], or values [C or 1, B]."""
        action, bonus = self.policy.ahead(next_obs, self.actor)
        outputs = self.target_critic(next_obs, action).float()  # [C, B, K]
        reward = batch.reward if bonus is None else torch.addcmul(batch.reward, batch.discount, bonus)
        if self.atoms is None:
            values = outputs.squeeze(-1)
            if self.cfg.clipped_double_q:
                values = td.clipped_double(values).unsqueeze(0)
            return td.target(reward, batch.discount, values)
        moved = categorical.shift(reward, batch.discount, self.atoms)  # [B, K]
        probabilities = outputs.softmax(-1)
        if self.cfg.clipped_double_q and not self.elementwise:
            probabilities = categorical.select_lower_mean(probabilities, moved).unsqueeze(0)
        projected = torch.stack([categorical.project(p, moved, self.atoms) for p in probabilities])
        return projected.amin(0, keepdim=True) if self.elementwise else projected

    def loss(self, batch: Transition) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Sum over critics of their mean loss; with it each row's error and the mean value of the targets."""
        target = self.target(batch, self.policy.seen(batch.next_obs))
        outputs = self.critic(self.policy.seen(batch.obs), batch.action)
        if self.atoms is None:
            error = outputs.squeeze(-1) - target  # [C, B]
            rows, size, value = error.square(), error.detach().abs().amax(0), target
        else:
            against = categorical.binary_cross_entropy if self.elementwise else categorical.cross_entropy
            rows = against(target, outputs)  # [C, B]
            size, value = rows.detach().amax(0), categorical.mean(target, self.atoms)
        weighted = rows if batch.weight is None else rows * batch.weight
        return weighted.mean(-1).sum(), (size, value.mean())

    @property
    def consecutive_skips(self) -> Tensor:
        """How many updates in a row were skipped for a loss that was not finite; a tensor, read it rarely."""
        return self.descent.consecutive_skips

    def state_dict(self) -> dict[str, Any]:
        """Critics, targets, optimiser, counter, and the policy they follow."""
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "target_critic": self.target_critic.state_dict(),
            "critic_descent": self.descent.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if never stopped."""
        for name in ("policy", "critic", "target_critic"):
            getattr(self, name).load_state_dict(state[name])
        self.descent.load_state_dict(state["critic_descent"])
        self.updates = int(state["updates"])


class ActorLearner:
    """Moves the policy up the critics' value; its normalizer learns here, from the same observations."""

    def __init__(
        self, cfg: ActorCriticConfig, policy: ActorCriticPolicy, critic: Critics, peers: Peers, device: str
    ) -> None:
        self.cfg, self.policy, self.critic = cfg, policy, critic
        self.module: nn.Module = policy
        self.peer_module: nn.Module = critic
        self.descent = cfg.descent(device).on(peers, policy.actor, cfg.actor_lr, cfg.policy_delay)
        self.trained_elsewhere = [p for p in critic.parameters() if p.requires_grad]
        autocast = torch.autocast(torch.device(device).type, torch.bfloat16, enabled=cfg.amp)
        found = value_and_grad(self.loss, policy.actor.parameters(), autocast)
        self.value_and_grad = compiled(found, device) if cfg.compile else found
        self.updates = 0

    @classmethod
    def apart(cls, cfg: ActorCriticConfig, spec: EnvSpec, peers: Peers, device: str) -> Self:
        """With a copy of the critics, which somebody else learns."""
        policy, critic = _apart(cfg, spec, device)
        return cls(cfg, policy, critic.requires_grad_(False), peers, device)

    def update(self, batch: Transition) -> UpdateResult:
        """One policy update, from observations alone."""
        self.observe(batch.obs)
        return self.climb(batch.obs)

    def observe(self, obs: Obs) -> None:
        """Take a batch into the statistics of the normalizer; once for each update."""
        # Later on a batch hardly moves the statistics, and taking it in costs as much as a small layer.
        if self.policy.normalize and (self.updates < STEADY or self.updates % 10 == 0):
            self.policy.normalizer.update(observed(obs))
        self.updates += 1

    def climb(self, obs: Obs) -> UpdateResult:
        """One gradient step of the policy up the critics' value."""
        # Frozen weights: the critics are only a way through, their own gradients would be thrown away.
        for parameter in self.trained_elsewhere:
            parameter.requires_grad = False
        gradients, loss, (log_prob,) = self.value_and_grad(obs)
        skipped = self.descent.along(gradients, loss)
        self.policy.actor.net.project()
        for parameter in self.trained_elsewhere:
            parameter.requires_grad = True
        metrics = {"loss/policy": loss, "count/skipped_updates": skipped}
        return UpdateResult(metrics if log_prob is None else metrics | self.temper(log_prob))

    def temper(self, log_prob: Tensor) -> dict[str, Tensor]:
        """Learn from how likely the policy's own actions [B] were, if there is anything to; its metrics."""
        return {}

    def loss(self, obs: Obs) -> tuple[Tensor, Told]:
        """Minus the mean value of the policy's actions; with it log pi of each row, if there is one."""
        x = self.policy.seen(obs)
        action, log_prob = self.policy.proposed(x)
        value: Tensor = self.policy.value(self.critic(x, action).float())
        return -value.mean(), (log_prob,)

    @property
    def consecutive_skips(self) -> Tensor:
        """How many updates in a row were skipped for a loss that was not finite; a tensor, read it rarely."""
        return self.descent.consecutive_skips

    def state_dict(self) -> dict[str, Any]:
        """Policy, optimiser, counter, and the critics it follows."""
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "policy_descent": self.descent.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if never stopped."""
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self.descent.load_state_dict(state["policy_descent"])
        self.updates = int(state["updates"])
