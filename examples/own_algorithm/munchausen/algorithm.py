"""Munchausen DQN: Vieillard et al. 2020, "Munchausen Reinforcement Learning" (2007.14430)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troop.algorithms.optim import OptimizerConfig, frozen_copy, polyak_update, value_and_grad
from troop.algorithms.requirements import discrete_control_reason
from troop.core.algorithm import Policy, PolicyOutput, State, UpdateResult
from troop.core.batch import NStep, Transition
from troop.core.config import bounded
from troop.core.env import OBS, Discrete, EnvSpec, Obs
from troop.core.exploration import Exploration, LinearSchedule
from troop.core.peers import NO_PEERS, Peers
from troop.functional import td
from troop.nets.q_network import QNetwork


@dataclass(frozen=True)
class MunchausenConfig:
    """Settings of Munchausen DQN; alpha, entropy_tau and clip are those of the paper."""

    gamma: float = bounded(0.99, low=0, high=1)
    """Discount factor."""
    alpha: float = bounded(0.9, low=0, high=1)
    """Weight of the log-probability that is added to the reward."""
    entropy_tau: float = bounded(0.03, above=0)
    """Temperature of the softmax policy."""
    clip: float = bounded(-1.0, high=0)
    """Lower bound of the scaled log-probability."""
    tau: float = bounded(0.02, above=0, high=1)
    """Polyak coefficient of the target network."""
    lr: float = bounded(1e-3, above=0)
    """Learning rate."""
    hidden: tuple[int, ...] = bounded((128, 128), low=1)
    """Widths of the hidden layers."""
    net: str = "auto"
    """auto, or your own network as module:function."""
    epsilon_end: float = bounded(0.02, low=0, high=1)
    """Probability of a random action after epsilon_steps."""
    epsilon_steps: int = bounded(10_000, low=0)
    """Env steps in which epsilon decreases from 1 to epsilon_end."""

    @property
    def experience(self) -> NStep:
        """One-step transitions."""
        return NStep(1, self.gamma)

    @property
    def exploration(self) -> Exploration:
        """Linearly decreasing epsilon."""
        return LinearSchedule(1.0, self.epsilon_end, self.epsilon_steps)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Require discrete actions and vector or image observations."""
        return discrete_control_reason(spec, self.net, False)

    def policy(self, spec: EnvSpec) -> MunchausenPolicy:
        """Build the policy alone, on the CPU."""
        return MunchausenPolicy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> Munchausen:
        """Build the learner."""
        return Munchausen(spec, self, peers, device)


class MunchausenPolicy(Policy):
    """The online network; acts epsilon-greedily."""

    def __init__(self, spec: EnvSpec, cfg: MunchausenConfig) -> None:
        super().__init__()
        assert isinstance(spec.action, Discrete)
        self.actions = spec.action.choices
        self.q = QNetwork(spec.obs[OBS].shape, self.actions, cfg.hidden, cfg.net, layer_norm=True)

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Return actions [B]; `explore` [B] is each row's epsilon. Extras are used for initial priorities."""
        q = self.q(obs[OBS])
        value, greedy = q.max(1)
        action = td.epsilon_greedy(greedy, self.actions, explore) if explore.any() else greedy
        return PolicyOutput(action, None, {"q": td.select_action(q, action), "value": value})


class Munchausen:
    """Regresses the online network on the Munchausen target."""

    def __init__(self, spec: EnvSpec, cfg: MunchausenConfig, peers: Peers, device: str) -> None:
        self.cfg = cfg
        self.policy = cfg.policy(spec).to(device)
        self.q = self.policy.q
        self.optimizer = OptimizerConfig(device, max_grad_norm=10.0, eps=1e-5).build(self.q, cfg.lr, peers)
        self.target_q = frozen_copy(self.q)
        self.value_and_grad = value_and_grad(self.loss, self.q.parameters(), device)

    @torch.no_grad()
    def target(self, batch: Transition) -> Tensor:
        """Return y [B]."""
        cfg, tau = self.cfg, self.cfg.entropy_tau
        log_pi = (self.target_q(batch.obs[OBS]) / tau).log_softmax(1)
        bonus = (tau * td.select_action(log_pi, batch.action)).clamp(cfg.clip, 0.0)
        next_q = self.target_q(batch.next_obs[OBS])
        next_log_pi = (next_q / tau).log_softmax(1)
        soft_value = (next_log_pi.exp() * (next_q - tau * next_log_pi)).sum(1)
        return td.target(batch.reward + cfg.alpha * bonus, batch.discount, soft_value)

    def loss(self, batch: Transition) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the weighted Huber loss, and |TD error| [B] and the mean target as further outputs."""
        y = self.target(batch)
        q = td.select_action(self.q(batch.obs[OBS]), batch.action)
        row_loss = td.huber(q, y)
        weighted = row_loss if batch.weight is None else row_loss * batch.weight
        return weighted.mean(), ((q.detach() - y).abs(), y.mean())

    def update(self, batch: Transition) -> UpdateResult:
        """Perform one gradient step and the target update."""
        grads, loss, (td_error, value) = self.value_and_grad(batch)
        skipped = self.optimizer.step(grads, loss)
        polyak_update(self.target_q, self.q, self.cfg.tau)
        metrics = {"loss/critic": loss, "value/mean": value, "count/skipped_updates": skipped}
        return UpdateResult(metrics, td_error if batch.index is not None else None)

    @property
    def consecutive_skips(self) -> Tensor:
        """Number of consecutive updates skipped for a non-finite loss or gradient."""
        return self.optimizer.consecutive_skips

    def state_dict(self) -> dict[str, Any]:
        """Return networks and optimizer."""
        return {name: getattr(self, name).state_dict() for name in ("policy", "target_q", "optimizer")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        for name in ("policy", "target_q", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
