"""FastTD3: Seo et al. 2025, "FastTD3: Simple, Fast, and Capable RL for Humanoid Control" (2505.22642).

TD3 (Fujimoto et al. 2018) with categorical twin critics, no target policy, large batches and noise that
differs between envs. With `atoms=0` it is TD3; with one critic, no smoothing and no delay it is DDPG
(Lillicrap et al. 2016). Deviations from paper and reference: docs/algorithms/fasttd3.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from troop.algorithms.descent import Descent
from troop.algorithms.target import frozen, soft_update
from troop.core.algorithm import Acted, Outcome, State
from troop.core.batch import NStep, Transition
from troop.core.config import ranged
from troop.core.env import OBS, PRIVILEGED, Continuous, EnvSpec, Obs
from troop.core.exploration import Drawn, Exploration
from troop.core.peers import NO_PEERS, Peers
from troop.functional import categorical, td
from troop.nets.critics import Critics
from troop.nets.mlp import DeterministicActor
from troop.nets.normalizer import Normalizer

STEADY = 1000  # updates after which the normalizer looks at every tenth batch only


@dataclass(frozen=True)
class FastTD3Config:
    """The paper's table (its HumanoidBench column); suites differ in `troop.recipes.fast_td3`."""

    gamma: float = ranged(0.99, low=0, high=1)
    n_step: int = ranged(1, low=1, high=64)
    tau: float = ranged(0.1, above=0, high=1)
    policy_delay: int = ranged(2, low=1)
    """One policy update every this many critic updates, counted across env steps."""
    policy_noise: float = ranged(0.001, low=0)
    """Standard deviation of the noise on target actions (target policy smoothing)."""
    noise_clip: float = ranged(0.5, low=0)
    std_min: float = ranged(0.001, low=0)
    std_max: float = ranged(0.4, low=0)
    """Exploration noise: each env draws its own in [std_min, std_max] at each episode's start."""
    clip_actions: bool = False
    """Clip noisy actions to [-1, 1] before they are stored; the reference stores them as they are."""
    critics: int = ranged(2, low=1, high=16)
    atoms: int = ranged(101, low=0, high=4096)
    """Atoms of the categorical critics; 0 for scalar critics."""
    v_min: float = -250.0
    v_max: float = 250.0
    """Range of the atoms: cover reward per step / (1 - gamma); too small a range caps learning silently."""
    clipped_double_q: bool = True
    """Regress every critic on the target with the lower value; off: each on its own."""
    policy_q: Literal["auto", "min", "mean", "first"] = "auto"
    """What the policy climbs; auto is min with clipped double Q and mean without."""
    target_policy: bool = False
    """Keep a slow copy of the policy for target actions, as TD3 and DDPG do."""
    delay_targets: bool = False
    """Move target copies only when the policy moves, as TD3 does."""
    bootstrap_at_limits: bool = True
    """A time limit is not the world's end; off only for tasks whose time limit is part of the task."""
    normalize_observations: bool = True
    normalize_rewards: bool = False
    actor_hidden: tuple[int, ...] = ranged((512, 256, 128), low=1)
    critic_hidden: tuple[int, ...] = ranged((1024, 512, 256), low=1)
    layer_norm: bool = False
    """LayerNorm before each ReLU: steadier with small batches and many updates per step."""
    actor_init: float = ranged(0.01, above=0)
    """Standard deviation of the weights of the policy's last layer."""
    actor_lr: float = ranged(3e-4, above=0)
    critic_lr: float = ranged(3e-4, above=0)
    lr_end: float = ranged(1.0, above=0, high=1)
    """Fraction of the learning rates left at the end of the cosine; 1 keeps them constant."""
    lr_updates: int = ranged(200_000, low=1)
    """Critic updates over which the cosine runs."""
    weight_decay: float = ranged(0.1, low=0)
    max_grad_norm: float = ranged(0.0, low=0)
    """Clip gradients to this norm; 0 does not clip."""
    telling: bool = False
    """The policy carries the critics and tells the value of what it does, for actors that judge their rows
    (Ape-X DPG); a TD error is what the learner's priorities are only where `atoms` is 0."""
    compile: bool = False
    """Compile the two losses with torch.compile."""
    amp: bool = False
    """bf16 autocast around targets and losses; only where the device has bf16 units."""

    @property
    def experience(self) -> NStep:
        """n-step transitions."""
        reach = min(abs(self.v_min), abs(self.v_max)) if self.atoms else 10.0
        scale = reach if self.normalize_rewards else None
        return NStep(self.n_step, self.gamma, self.bootstrap_at_limits, scale)

    @property
    def exploration(self) -> Exploration:
        """Mixed noise."""
        return Drawn(self.std_min, max(self.std_min, self.std_max))

    def refuse(self, spec: EnvSpec) -> str | None:
        """Continuous actions and vector observations only; and a support that is one."""
        if not isinstance(spec.action, Continuous):
            return (
                f"{spec.id} has discrete actions; FastTD3, TD3 and DDPG take continuous ones. "
                "Discrete ones are for DQN, C51 and Rainbow"
            )
        if len(spec.obs[OBS].shape) != 1:
            return f"{spec.id} has image observations {spec.obs[OBS].shape}; FastTD3 takes vectors"
        if self.atoms == 1 or (self.atoms and self.v_min >= self.v_max):
            return (
                f"v_min {self.v_min:g} to v_max {self.v_max:g} with {self.atoms} atoms is no range of values"
            )
        if self.atoms and self.normalize_rewards and not self.v_min < 0 < self.v_max:
            return f"normalize_rewards needs v_min < 0 < v_max, not {self.v_min:g} to {self.v_max:g}"
        if self.std_min > self.std_max:
            return f"std_min {self.std_min:g} is above std_max {self.std_max:g}"
        return None

    def policy(self, spec: EnvSpec) -> FastTD3Policy:
        """The acting part alone."""
        return FastTD3Policy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> FastTD3:
        """The learner."""
        return FastTD3(spec, self, peers, device)


def critics(spec: EnvSpec, cfg: FastTD3Config) -> Critics:
    """The critics of an env: they see observation, privileged observation and action."""
    assert isinstance(spec.action, Continuous)
    inputs = spec.width(OBS) + spec.width(PRIVILEGED) + spec.action.size
    return Critics(inputs, cfg.critic_hidden, cfg.atoms or 1, cfg.critics, cfg.layer_norm)


def observed(obs: Obs) -> Tensor:
    """All a critic may see, [B, obs + privileged]."""
    return torch.cat((obs[OBS], obs[PRIVILEGED]), -1) if PRIVILEGED in obs else obs[OBS]


class FastTD3Policy(nn.Module):
    """Normalizer and actor in one, so that statistics travel with weights."""

    def __init__(self, spec: EnvSpec, cfg: FastTD3Config) -> None:
        super().__init__()
        assert isinstance(spec.action, Continuous)
        # One normalizer over all columns serves both: the policy reads its first ones.
        self.normalizer = Normalizer(spec.width(OBS) + spec.width(PRIVILEGED))
        self.actor = DeterministicActor(
            spec.width(), cfg.actor_hidden, spec.action.size, cfg.actor_init, cfg.layer_norm
        )
        self.clip_actions, self.normalize = cfg.clip_actions, cfg.normalize_observations
        self.critic = critics(spec, cfg) if cfg.telling else None
        self.value = Value(cfg)

    def forward(self, x: Tensor) -> Tensor:
        """Action for normalized observations, whose first columns are the policy's own."""
        action: Tensor = self.actor(x[:, : self.actor.inputs])
        return action

    def initial_state(self, rows: int) -> State:
        """No memory."""
        return None

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> Acted:
        """Tanh action plus Gaussian noise of standard deviation `explore` [B], the same for all joints."""
        x = obs[OBS] if self.critic is None else observed(obs)
        x = self.normalizer(x) if self.normalize else x
        best = action = self(x)
        if explore.any():
            action = torch.addcmul(best, torch.randn_like(best), explore.unsqueeze(-1))
        action = action.clamp(-1, 1) if self.clip_actions else action
        if self.critic is None:
            return Acted(action)
        q, value = (self.value(self.critic(x, each)) for each in (action, best))
        return Acted(action, None, {"q": q, "value": value})


class Value(nn.Module):
    """One number a row out of what critics say, [C, B, K]: what the policy climbs."""

    atoms: Tensor | None

    def __init__(self, cfg: FastTD3Config) -> None:
        super().__init__()
        atoms = torch.linspace(cfg.v_min, cfg.v_max, cfg.atoms) if cfg.atoms else None
        self.register_buffer("atoms", atoms, persistent=False)
        which = cfg.policy_q
        if which == "auto":
            which = "min" if cfg.clipped_double_q else "mean"
        self.which = which

    def forward(self, outputs: Tensor) -> Tensor:
        """Values [B]."""
        values = (
            outputs.squeeze(-1) if self.atoms is None else categorical.mean(outputs.softmax(-1), self.atoms)
        )
        return {"min": lambda: values.amin(0), "mean": lambda: values.mean(0), "first": lambda: values[0]}[
            self.which
        ]()


class FastTD3:
    """The learner: one batch, one critic update, and every `policy_delay`-th time one policy update."""

    def __init__(self, spec: EnvSpec, cfg: FastTD3Config, peers: Peers, device: str) -> None:
        self.cfg = cfg
        self.policy = self.publishes = cfg.policy(spec).to(device)
        self.critic = critics(spec, cfg).to(device) if self.policy.critic is None else self.policy.critic
        self.atoms = torch.linspace(cfg.v_min, cfg.v_max, cfg.atoms, device=device) if cfg.atoms else None
        descent = Descent(cfg.weight_decay, cfg.max_grad_norm, cfg.lr_end, cfg.lr_updates, device)
        self.critic_descent = descent.on(peers, self.critic, cfg.critic_lr)
        self.policy_descent = descent.on(peers, self.policy.actor, cfg.actor_lr, cfg.policy_delay)
        self.target_critic = frozen(self.critic)
        self.target_actor = frozen(self.policy.actor) if cfg.target_policy else self.policy.actor
        self.autocast = torch.autocast(torch.device(device).type, torch.bfloat16, enabled=cfg.amp)
        self.critic_loss: Callable[..., tuple[Tensor, ...]] = self._critic_loss
        self.policy_loss: Callable[[Tensor], Tensor] = self._policy_loss
        if cfg.compile:
            self.critic_loss, self.policy_loss = (
                torch.compile(self._critic_loss),
                torch.compile(self._policy_loss),
            )
        self.updates = 0

    def update(self, batch: Transition) -> Outcome:
        """One critic update, then the policy's if it is due."""
        outcome = self.update_critic(batch)
        self.updates += 1
        due = self.updates % self.cfg.policy_delay == 0
        if due:
            skipped = outcome.metrics["count/skipped_updates"]
            outcome |= self.update_policy(batch)
            outcome.metrics["count/skipped_updates"] += skipped
        if due or not self.cfg.delay_targets:
            soft_update(self.target_critic, self.critic, self.cfg.tau)
            if self.cfg.target_policy:
                soft_update(self.target_actor, self.policy.actor, self.cfg.tau)
        return outcome

    def update_critic(self, batch: Transition) -> Outcome:
        """One gradient step of all critics towards the target of one batch."""
        obs, next_obs = observed(batch.obs), observed(batch.next_obs)
        if self.cfg.normalize_observations:
            # Later on a batch hardly moves the statistics, and taking it in costs as much as a small layer.
            if self.updates < STEADY or self.updates % 10 == 0:
                self.policy.normalizer.update(obs)
            obs, next_obs = self.policy.normalizer(obs), self.policy.normalizer(next_obs)
        with self.autocast:
            target = self.target(batch, next_obs)
            loss, error, value = self.critic_loss(obs, batch.action, target, batch.weight)
        skipped = self.critic_descent.step(loss)
        metrics = {"loss/critic": loss.detach(), "value/mean": value.mean(), "count/skipped_updates": skipped}
        return Outcome(metrics, priority=error if batch.index is not None else None)

    @torch.no_grad()
    def target(self, batch: Transition, next_obs: Tensor) -> Tensor:
        """What the critics regress on: distributions [C or 1, B, K], or values [C or 1, B]."""
        action = self.target_actor(next_obs[:, : self.target_actor.inputs])
        if self.cfg.policy_noise:
            noise = torch.randn_like(action).mul_(self.cfg.policy_noise)
            action = (action + noise.clamp_(-self.cfg.noise_clip, self.cfg.noise_clip)).clamp_(-1, 1)
        outputs = self.target_critic(next_obs, action).float()  # [C, B, K]
        if self.atoms is None:
            values = outputs.squeeze(-1)
            if self.cfg.clipped_double_q:
                values = td.clipped_double(values).unsqueeze(0)
            return td.target(batch.reward, batch.discount, values)
        moved = categorical.shift(batch.reward, batch.discount, self.atoms)  # [B, K]
        probabilities = outputs.softmax(-1)
        if self.cfg.clipped_double_q:
            probabilities = lower(probabilities, moved).unsqueeze(0)
        return torch.stack([categorical.project(p, moved, self.atoms) for p in probabilities])

    def _critic_loss(
        self, obs: Tensor, action: Tensor, target: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sum over critics of their mean loss; with it each row's error and the value of the targets."""
        outputs = self.critic(obs, action)
        if self.atoms is None:
            error = outputs.squeeze(-1) - target  # [C, B]
            rows, size, value = error.square(), error.detach().abs().amax(0), target
        else:
            rows = categorical.cross_entropy(target, outputs)  # [C, B]
            size, value = rows.detach().amax(0), categorical.mean(target, self.atoms)
        return (rows if weight is None else rows * weight).mean(-1).sum(), size, value

    def update_policy(self, batch: Transition) -> Outcome:
        """One gradient step of the policy up the critics' value."""
        obs = observed(batch.obs)
        if self.cfg.normalize_observations:
            obs = self.policy.normalizer(obs)
        # Frozen weights: the critics are only a way through, their own gradients would be thrown away.
        for parameter in self.critic.nets.parts:
            parameter.requires_grad = False
        with self.autocast:
            loss = self.policy_loss(obs)
        skipped = self.policy_descent.step(loss)
        for parameter in self.critic.nets.parts:
            parameter.requires_grad = True
        return Outcome({"loss/policy": loss.detach(), "count/skipped_updates": skipped})

    def _policy_loss(self, obs: Tensor) -> Tensor:
        """Minus the mean value of the policy's actions."""
        value: Tensor = self.policy.value(self.critic(obs, self.policy(obs)).float())
        return -value.mean()

    @property
    def skipped_in_row(self) -> Tensor:
        """How many updates in a row were skipped for a loss that was not finite; a tensor, read it rarely."""
        return torch.maximum(self.critic_descent.skipped_in_row, self.policy_descent.skipped_in_row)

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, counters."""
        state = {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "target_critic": self.target_critic.state_dict(),
            "critic_descent": self.critic_descent.state_dict(),
            "policy_descent": self.policy_descent.state_dict(),
            "updates": self.updates,
        }
        return state | ({"target_actor": self.target_actor.state_dict()} if self.cfg.target_policy else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if never stopped."""
        for name in ("policy", "critic", "target_critic", "critic_descent", "policy_descent"):
            getattr(self, name).load_state_dict(state[name])
        if self.cfg.target_policy:
            self.target_actor.load_state_dict(state["target_actor"])
        self.updates = int(state["updates"])


def lower(probabilities: Tensor, moved: Tensor) -> Tensor:
    """Per row the distribution with the lowest target mean, [C, B, K] -> [B, K]; on a tie the last critic's.

    The mean of a projection is the mean of the moved atoms under it, so choosing before projecting
    chooses the same row and projects once.
    """
    means = (probabilities * moved).sum(-1)  # [C, B]
    if probabilities.shape[0] == 2:
        return torch.where((means[0] < means[1]).unsqueeze(-1), probabilities[0], probabilities[1])
    last = probabilities.shape[0] - 1 - means.flip(0).argmin(0)
    return probabilities.gather(0, last.view(1, -1, 1).expand(1, -1, probabilities.shape[-1])).squeeze(0)
