"""Both halves of an actor-critic in one place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from troop.algorithms.actor_critic_config import ActorCriticConfig
from troop.algorithms.halves import ActorLearner, CriticLearner, nets
from troop.core.algorithm import UpdateResult
from troop.core.batch import Transition
from troop.core.env import EnvSpec
from troop.core.peers import Peers


class ActorCritic:
    """One batch, one critic update, and every `policy_delay`-th time one policy update.

    Its halves are the very ones that learn apart, holding each other's net itself instead of a lagged copy.
    """

    halves: tuple[type[CriticLearner], type[ActorLearner]] = (CriticLearner, ActorLearner)

    def __init__(self, spec: EnvSpec, cfg: ActorCriticConfig, peers: Peers, device: str) -> None:
        self.cfg = cfg
        self.policy, self.critic = nets(cfg, spec, device)
        learns_critic, learns_policy = self.halves
        self.critic_learner = learns_critic(cfg, self.policy, self.critic, peers, device)
        self.actor_learner = learns_policy(cfg, self.policy, self.critic, peers, device)
        self.target_critic = self.critic_learner.target_critic

    def update(self, batch: Transition) -> UpdateResult:
        """One critic update, then the policy's if it is due."""
        self.actor_learner.observe(batch.obs)
        outcome = self.critic_learner.descend(batch)
        due = self.critic_learner.updates % self.cfg.policy_delay == 0
        if due:
            skipped = outcome.metrics["count/skipped_updates"]
            outcome |= self.actor_learner.climb(batch.obs)
            outcome.metrics["count/skipped_updates"] += skipped
        self.move_targets(due)
        return outcome

    def move_targets(self, climbed: bool) -> None:
        """The targets go a little way after the nets, of which the policy has `climbed` or not."""
        self.critic_learner.move_targets()

    @property
    def consecutive_skips(self) -> Tensor:
        """How many updates in a row were skipped for a loss that was not finite; a tensor, read it rarely."""
        return torch.maximum(self.critic_learner.consecutive_skips, self.actor_learner.consecutive_skips)

    def state_dict(self) -> dict[str, Any]:
        """That of both halves, in which what they share has the same name."""
        return self.critic_learner.state_dict() | self.actor_learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if never stopped."""
        self.critic_learner.load_state_dict(state)
        self.actor_learner.load_state_dict(state)
