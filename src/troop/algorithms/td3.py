"""FastTD3: Seo et al. 2025, "FastTD3: Simple, Fast, and Capable RL for Humanoid Control" (2505.22642).

TD3 (Fujimoto et al. 2018) with categorical twin critics, no target policy, large batches and noise that
differs between envs. With `atoms=0` it is TD3; with one critic, no smoothing and no delay it is DDPG
(Lillicrap et al. 2016). Deviations from paper and reference: docs/algorithms/fasttd3.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from troop.algorithms.actor_critic import ActorCritic
from troop.algorithms.actor_critic_config import ActorCriticConfig
from troop.algorithms.actor_critic_policy import ActorCriticPolicy
from troop.algorithms.halves import ActorLearner, CriticLearner
from troop.algorithms.optim.target import frozen, soft_update
from troop.core.algorithm import PolicyOutput, State
from troop.core.config import bounded
from troop.core.env import Continuous, EnvSpec, Obs
from troop.core.exploration import Exploration, PerEpisodeUniform
from troop.core.peers import NO_PEERS, Peers
from troop.nets.actors import DeterministicActor


@dataclass(frozen=True)
class TD3Config(ActorCriticConfig):
    """The paper's table (its HumanoidBench column); suites differ in `troop.recipes.fast_td3`."""

    policy_noise: float = bounded(0.001, low=0)
    """Standard deviation of the noise on target actions (target policy smoothing)."""
    noise_clip: float = bounded(0.5, low=0)
    std_min: float = bounded(0.001, low=0)
    std_max: float = bounded(0.4, low=0)
    """Exploration noise: each env draws its own in [std_min, std_max] at each episode's start."""
    clip_actions: bool = False
    """Clip noisy actions to [-1, 1] before they are stored; the reference stores them as they are."""
    target_policy: bool = False
    """Keep a slow copy of the policy for target actions, as TD3 and DDPG do."""
    delay_targets: bool = False
    """Move target copies only when the policy moves, as TD3 does."""

    @property
    def exploration(self) -> Exploration:
        """Mixed noise."""
        return PerEpisodeUniform(self.std_min, max(self.std_min, self.std_max))

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """As every actor-critic; and a range of noise that is none."""
        if self.std_min > self.std_max:
            return f"std_min {self.std_min:g} is above std_max {self.std_max:g}"
        return super().unsupported_reason(spec)

    def unsplittable_reason(self) -> str | None:
        """Critics that learn apart have a lagged policy instead of a slow one, and do not see it move."""
        for name in ("target_policy", "delay_targets"):
            if getattr(self, name):
                flag = f"--algorithm.{name.replace('_', '-')}"
                return (
                    f"{flag} is True, but critics that learn apart from the policy bootstrap from its lagged "
                    f"copy and do not see it move; give {flag.replace('algorithm.', 'algorithm.no-')}"
                )
        return None

    def policy(self, spec: EnvSpec) -> TD3Policy:
        """The acting part alone."""
        return TD3Policy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> TD3:
        """The learner."""
        return TD3(spec, self, peers, device)

    def critic_learner(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> CriticLearner:
        """The learner of the critics alone."""
        return CriticLearner.apart(self, spec, peers, device)

    def actor_learner(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> ActorLearner:
        """The learner of the policy alone."""
        return ActorLearner.apart(self, spec, peers, device)


class TD3Policy(ActorCriticPolicy):
    """A deterministic actor; explores by Gaussian noise."""

    def __init__(self, spec: EnvSpec, cfg: TD3Config) -> None:
        assert isinstance(spec.action, Continuous)
        shape = cfg.shape(cfg.actor_hidden)
        actor = DeterministicActor(spec.width(), shape, spec.action.size, cfg.actor_init)
        super().__init__(spec, cfg, actor)
        self.clip_actions, self.policy_noise, self.noise_clip = (
            cfg.clip_actions,
            cfg.policy_noise,
            cfg.noise_clip,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Action for normalized observations, whose first columns are the policy's own."""
        action: Tensor = self.actor(x[:, : self.actor.inputs])
        return action

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Tanh action plus Gaussian noise of standard deviation `explore` [B], the same for all joints."""
        x = self.glanced(obs)
        best = action = self(x)
        if explore.any():
            action = torch.addcmul(best, torch.randn_like(best), explore.unsqueeze(-1))
        action = action.clamp(-1, 1) if self.clip_actions else action
        if self.critic is None:
            return PolicyOutput(action)
        q, value = (self.value(self.critic(x, each)) for each in (action, best))
        return PolicyOutput(action, None, {"q": q, "value": value})

    def proposed(self, x: Tensor) -> tuple[Tensor, None]:
        """The policy's actions."""
        return self(x), None

    def ahead(self, x: Tensor, actor: nn.Module) -> tuple[Tensor, None]:
        """The actor's actions with clipped noise (target policy smoothing)."""
        action: Tensor = actor(x[:, : self.actor.inputs])
        if self.policy_noise:
            noise = torch.randn_like(action).mul_(self.policy_noise)
            action = (action + noise.clamp_(-self.noise_clip, self.noise_clip)).clamp_(-1, 1)
        return action, None


class TD3(ActorCritic):
    """Both halves in one place, and the slow copy of the policy if there is one."""

    cfg: TD3Config

    def __init__(self, spec: EnvSpec, cfg: TD3Config, peers: Peers, device: str) -> None:
        super().__init__(spec, cfg, peers, device)
        self.target_actor: nn.Module = self.policy.actor
        if cfg.target_policy:
            self.target_actor = self.critic_learner.actor = frozen(self.policy.actor)

    def move_targets(self, climbed: bool) -> None:
        """Critics always, or with the policy; the slow policy with them."""
        if self.cfg.delay_targets and not climbed:
            return
        super().move_targets(climbed)
        if self.cfg.target_policy:
            soft_update(self.target_actor, self.policy.actor, self.cfg.tau)

    def state_dict(self) -> dict[str, Any]:
        """Both halves, and the slow policy."""
        slow = {"target_actor": self.target_actor.state_dict()} if self.cfg.target_policy else {}
        return super().state_dict() | slow

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if never stopped."""
        super().load_state_dict(state)
        if self.cfg.target_policy:
            self.target_actor.load_state_dict(state["target_actor"])
