"""SAC: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (1812.05905).

A stochastic policy that is paid for being unpredictable, by a price (the temperature) that is learned. With
categorical critics, each on its own target, it is FastSAC (2512.01996). Deviations: docs/algorithms/sac.md.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from troop.algorithms.actor_critic import ActorCritic
from troop.algorithms.actor_critic_config import ActorCriticConfig
from troop.algorithms.actor_critic_policy import ActorCriticPolicy
from troop.algorithms.halves import ActorLearner, CriticLearner
from troop.algorithms.optim.value_and_grad import Told
from troop.core.algorithm import PolicyOutput, State
from troop.core.config import bounded
from troop.core.env import Continuous, EnvSpec, Obs
from troop.core.exploration import Exploration, PerEpisodeUniform
from troop.core.peers import NO_PEERS, Peers
from troop.functional import tanh_normal
from troop.nets.actors import GaussianActor
from troop.nets.critics import Critics


@dataclass(frozen=True)
class SACConfig(ActorCriticConfig):
    """The paper's settings; FastSAC's are in `troop.recipes.sac`."""

    alpha_init: float = bounded(1.0, above=0)
    """The temperature at first: what a nat of entropy is worth in reward."""
    alpha_lr: float = bounded(3e-4, low=0)
    """Learning rate of the log temperature; 0 keeps the temperature as it is."""
    target_entropy_ratio: float = 1.0
    """The temperature moves until the policy's entropy is minus this per joint, of actions in [-1, 1]."""
    log_std_min: float = -5.0
    log_std_max: float = 2.0
    """The log standard deviation is squashed in between; it starts in the middle."""
    tau: float = bounded(0.005, above=0, high=1)
    policy_delay: int = bounded(1, low=1)
    atoms: int = bounded(0, low=0, high=4096)
    actor_hidden: tuple[int, ...] = bounded((256, 256), low=1)
    critic_hidden: tuple[int, ...] = bounded((256, 256), low=1)
    normalize_observations: bool = False
    weight_decay: float = bounded(0.0, low=0)

    @property
    def exploration(self) -> Exploration:
        """All rows draw their actions; how widely is the policy's own business."""
        return PerEpisodeUniform(1.0, 1.0)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """As every actor-critic; and a range of standard deviations that is one."""
        if self.log_std_min >= self.log_std_max:
            return f"log_std_min {self.log_std_min:g} is not below log_std_max {self.log_std_max:g}"
        return super().unsupported_reason(spec)

    def policy(self, spec: EnvSpec) -> SACPolicy:
        """The acting part alone."""
        return SACPolicy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> SAC:
        """The learner."""
        return SAC(spec, self, peers, device)

    def critic_learner(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> CriticLearner:
        """The learner of the critics alone."""
        return CriticLearner.apart(self, spec, peers, device)

    def actor_learner(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> SACPolicyHalf:
        """The learner of policy and temperature."""
        return SACPolicyHalf.apart(self, spec, peers, device)


class Temperature(nn.Module):
    """alpha, kept as its logarithm so that it stays positive."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha)))

    def forward(self) -> Tensor:
        """The temperature itself."""
        return self.log_alpha.exp()


class SACPolicy(ActorCriticPolicy):
    """A squashed Gaussian, and the temperature, which travels with it to whoever bootstraps from it."""

    actor: GaussianActor

    def __init__(self, spec: EnvSpec, cfg: SACConfig) -> None:
        assert isinstance(spec.action, Continuous)
        shape, joints = cfg.shape(cfg.actor_hidden), spec.action.size
        actor = GaussianActor(spec.width(), shape, joints, cfg.log_std_min, cfg.log_std_max, cfg.actor_init)
        super().__init__(spec, cfg, actor)
        self.joints, self.temperature = joints, Temperature(cfg.alpha_init)

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Where `explore` [B] is 0 the middle of the distribution, elsewhere an action drawn from it.

        The value it tells is the soft one, of the drawn action: q - alpha log pi.
        """
        x = self.glanced(obs)
        mean, log_std = self.actor(x[:, : self.actor.inputs])
        action, bonus = mean.tanh(), torch.zeros_like(explore)
        if explore.any():
            drawn, log_prob = tanh_normal.draw(mean, log_std)
            curious = explore > 0
            action = torch.where(curious.unsqueeze(-1), drawn, action)
            bonus = torch.where(curious, -self.temperature() * log_prob, bonus)
        if self.critic is None:
            return PolicyOutput(action)
        q = self.value(self.critic(x, action))
        return PolicyOutput(action, None, {"q": q, "value": q + bonus})

    def proposed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Drawn actions and their log-probabilities."""
        mean, log_std = self.actor(x[:, : self.actor.inputs])
        return tanh_normal.draw(mean.float(), log_std.float())

    def ahead(self, x: Tensor, actor: nn.Module) -> tuple[Tensor, Tensor]:
        """Drawn actions, and what their entropy is worth."""
        mean, log_std = actor(x[:, : self.actor.inputs])
        action, log_prob = tanh_normal.draw(mean.float(), log_std.float())
        return action, -self.temperature() * log_prob


class SACPolicyHalf(ActorLearner):
    """Moves the policy up value and entropy, and the temperature towards the wanted entropy."""

    policy: SACPolicy

    def __init__(self, cfg: SACConfig, policy: SACPolicy, critic: Critics, peers: Peers, device: str) -> None:
        super().__init__(cfg, policy, critic, peers, device)
        # No decay: it would pull the temperature towards 1.
        gently = dataclasses.replace(cfg.descent(device), weight_decay=0.0, max_grad_norm=0.0)
        self.temperature_descent = gently.on(peers, policy.temperature, cfg.alpha_lr, cfg.policy_delay)
        self.target_entropy = -cfg.target_entropy_ratio * policy.joints

    def loss(self, obs: Obs) -> tuple[Tensor, Told]:
        """Mean of alpha log pi - value; with it log pi of each row."""
        x = self.policy.seen(obs)
        action, log_prob = self.policy.proposed(x)
        value: Tensor = self.policy.value(self.critic(x, action).float())
        alpha = self.policy.temperature().detach()
        return (alpha * log_prob - value).mean(), (log_prob.detach(),)

    def temper(self, log_prob: Tensor) -> dict[str, Tensor]:
        """One step of the temperature: up where the policy is more predictable than wanted, else down."""
        entropy, temperature = -log_prob.mean(), self.policy.temperature
        alpha = temperature().detach()
        self.temperature_descent.step(temperature.log_alpha * (entropy - self.target_entropy))
        return {"policy/alpha": alpha, "policy/entropy": entropy}

    def state_dict(self) -> dict[str, Any]:
        """And the temperature's optimiser."""
        return super().state_dict() | {"temperature_descent": self.temperature_descent.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if never stopped."""
        super().load_state_dict(state)
        self.temperature_descent.load_state_dict(state["temperature_descent"])


class SAC(ActorCritic):
    """Both halves in one place."""

    halves = (CriticLearner, SACPolicyHalf)
