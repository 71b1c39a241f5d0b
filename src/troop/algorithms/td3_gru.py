"""TD3 with memory, for partially observable tasks: recurrent TD3 of Ni et al. 2022 (2110.05038).

TD3 (1802.09477) whose actor and critics each read the history through a GRU of their own. It learns from
sequences of a replay, from the recurrent states that were stored with them, after a burn-in (Kapturowski et
al. 2019, R2D2). Deviations from the papers: docs/explanation/algorithms/memory.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from troop.algorithms.memory_policy import MemoryPolicy, Sequences, merge_observations
from troop.algorithms.optim import (
    LearnerState,
    OptimizerConfig,
    frozen_copy,
    polyak_update,
    value_and_grad,
)
from troop.algorithms.requirements import continuous_control_reason, sequence_reason
from troop.core.algorithm import PolicyOutput, UpdateResult
from troop.core.batch import SequenceSpec, State, Trajectory
from troop.core.config import bounded
from troop.core.env import Continuous, EnvSpec, Obs
from troop.core.exploration import Exploration, PerEpisodeUniform, RandomStart
from troop.core.peers import NO_PEERS, Peers
from troop.functional import repeated_noise, td
from troop.nets.activations import Activation
from troop.nets.actors import DeterministicActor
from troop.nets.memory import Memory
from troop.nets.network_config import NetworkConfig

PREACTIVATION_LIMIT = 1.5  # |u| from which `preactivation_penalty` counts
SATURATION_THRESHOLD = 0.95  # |action| from which an output counts in `policy/saturation`

MAX_RETURN = 10.0  # bound of discounted returns with `normalize_rewards`


@dataclass(frozen=True)
class TD3GRUConfig:
    """Hyperparameters of Ni et al. 2022 and of TD3; burn-in and priorities as in R2D2."""

    gamma: float = bounded(0.99, low=0, high=1)
    """Discount factor."""
    n_step: int = bounded(1, low=1, high=64)
    """Steps of reward before the bootstrap; fewer at the end of a sequence."""
    sequence_length: int = bounded(64, low=1, high=100_000)
    """Steps of a sequence, burn-in included."""
    burn_in: int = bounded(16, low=0)
    """First steps of a sequence, which only bring the recurrent states up to date."""
    overlap: int = bounded(32, low=0)
    """Steps that a sequence has in common with the next one; at least the burn-in."""
    tau: float = bounded(0.005, above=0, high=1)
    """Polyak coefficient of the target networks."""
    policy_delay: int = bounded(2, low=1)
    """Critic updates per update of actor and targets."""
    critics: int = bounded(2, low=1, high=16)
    """Number of Q-networks; they share one memory."""
    policy_noise: float = bounded(0.2, low=0)
    """Standard deviation of target policy smoothing."""
    noise_clip: float = bounded(0.5, low=0)
    """Bound of target policy smoothing."""
    std_min: float = bounded(0.1, low=0)
    """Lower end of the exploration noise."""
    std_max: float = bounded(0.1, low=0)
    """Exploration noise: each env draws its standard deviation from this range at each episode start."""
    std_distribution: Literal["uniform", "log_uniform"] = "uniform"
    """Distribution of that draw; log_uniform: each factor of two is as frequent."""
    noise_repeats: int = bounded(1, low=0, high=10_000)
    """Largest number of steps for which noise is held, P(k) proportional to k^-2 (FlashSAC); 1: new noise in
    every step, which hardly moves a system with inertia; 0: a tenth of an episode, in half of the envs."""
    random_steps: int = bounded(0, low=0)
    """Env steps, over all envs of a collector, with uniformly random actions before the policy acts."""
    average_tau: float = bounded(0.0, low=0, high=1)
    """Evaluate a Polyak average of the actor, with this coefficient per actor update; 0: the actor itself."""
    priority_eta: float = bounded(0.9, low=0, high=1)
    """Priority of a sequence: this times the largest absolute TD error plus the rest times their mean."""
    normalize_observations: bool = False
    """Normalize observations by their running mean and standard deviation."""
    normalize_rewards: bool = False
    """Scale rewards by a running estimate of the return's magnitude: discounted returns are at most 10."""
    embedding: int = bounded(64, low=1)
    """Width of the layer before a GRU; actor and critics also read it directly."""
    core_size: int = bounded(128, low=1)
    """Width of a GRU."""
    input_shortcut: bool = False
    """Actor and critics also read the inputs of their memory themselves, without a layer in between."""
    actor_hidden: tuple[int, ...] = bounded((256, 256), low=1)
    """Widths of the hidden layers of the actor after its GRU."""
    critic_hidden: tuple[int, ...] = bounded((256, 256), low=1)
    """Widths of the hidden layers of the critics after their GRU."""
    activation: Activation = "relu"
    """Activation function of the hidden layers."""
    layer_norm: bool = False
    """LayerNorm before each activation: more stable with small batches and many updates per step."""
    actor_init: float = bounded(0.01, low=0)
    """Standard deviation of the initial weights of the actor's output layer."""
    preactivation_penalty: float = bounded(0.0, low=0)
    """Weight of mean(max(0, |u| - 1.5)^2) in the actor loss, for actions tanh(u): it keeps the actor where
    its gradient does not vanish (tanh 1.5 = 0.905)."""
    actor_lr: float = bounded(3e-4, above=0)
    """Learning rate of the actor."""
    critic_lr: float = bounded(3e-4, above=0)
    """Learning rate of the critics."""
    max_grad_norm: float = bounded(0.0, low=0)
    """Clip gradients to this norm; 0 does not clip."""

    @property
    def experience(self) -> SequenceSpec:
        """Sequences of `length` steps, with scaled rewards if `normalize_rewards` is set."""
        scale = MAX_RETURN if self.normalize_rewards else None
        return SequenceSpec(self.sequence_length, self.overlap, self.burn_in, self.gamma, scale)

    @property
    def exploration(self) -> Exploration:
        """A standard deviation per env and episode."""
        noise = PerEpisodeUniform(
            self.std_min, max(self.std_min, self.std_max), self.std_distribution == "log_uniform"
        )
        return RandomStart(noise, self.random_steps) if self.random_steps else noise

    @property
    def memory(self) -> partial[Memory]:
        """Build the memory of actor or critics from the number of its inputs."""
        return partial(Memory, embedding=self.embedding, size=self.core_size, shortcut=self.input_shortcut)

    def network(self, hidden: tuple[int, ...]) -> NetworkConfig:
        """Return the architecture of a network with these hidden layers."""
        return NetworkConfig(hidden, self.layer_norm, self.activation)

    def optimizer(self, device: str) -> OptimizerConfig:
        """Return the optimizer settings shared by actor and critics."""
        return OptimizerConfig(device, max_grad_norm=self.max_grad_norm)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Require continuous actions, vectors, std_min <= std_max and burn-in <= overlap < length."""
        if self.std_min > self.std_max:
            return f"std_min {self.std_min:g} is above std_max {self.std_max:g}"
        if self.std_distribution == "log_uniform" and not self.std_min:
            return "--std-distribution log_uniform needs a std_min above 0"
        return sequence_reason(self.sequence_length, self.overlap, self.burn_in) or continuous_control_reason(
            spec
        )

    def policy(self, spec: EnvSpec) -> TD3GRUPolicy:
        """Build the policy alone, on the CPU."""
        return TD3GRUPolicy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> TD3GRU:
        """Build the learner."""
        return TD3GRU(spec, self, peers, device)


class TD3GRUPolicy(MemoryPolicy[DeterministicActor]):
    """Deterministic actor pi(h) over the history h."""

    def __init__(self, spec: EnvSpec, cfg: TD3GRUConfig) -> None:
        assert isinstance(spec.action, Continuous)
        make_actor = partial(
            DeterministicActor,
            network=cfg.network(cfg.actor_hidden),
            outputs=spec.action.size,
            output_std=cfg.actor_init,
        )
        super().__init__(
            spec,
            cfg.memory,
            make_actor,
            cfg.network(cfg.critic_hidden),
            cfg.critics,
            cfg.noise_repeats,
            cfg.normalize_observations,
            cfg.average_tau,
        )

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Return clip(pi(h) + explore * N(0, I), -1, 1); `explore` [B] is each row's standard deviation.

        Where `explore` is infinite, the action is uniformly random in [-1, 1]; where it is 0, the averaged
        actor's.
        """
        exploring = explore > 0
        features, averaged_features, memories = self.advance(obs, state, exploring)
        action: Tensor = self.actor.head(features)
        if averaged_features is not None:
            averaged = self.averaged.head(averaged_features)
            action = torch.where(exploring.unsqueeze(-1), action, averaged)
        assert state is not None
        held = {"noise": state["noise"]} if "noise" in state else None
        if exploring.any():
            noise, held = self.held_noise(held, exploring)
            noisy = torch.addcmul(action, noise, explore.unsqueeze(-1)).clamp(-1, 1)
            random = explore.isinf().unsqueeze(-1)
            action = torch.where(random, repeated_noise.uniform(noise), noisy)
        return PolicyOutput(action, memories | (held or {}))


class TD3GRU(LearnerState):
    """Regresses the critics on bootstrapped targets and moves the actor up the value of the first critic."""

    def __init__(self, spec: EnvSpec, cfg: TD3GRUConfig, peers: Peers, device: str) -> None:
        self.cfg, self.peers = cfg, peers
        self.policy = cfg.policy(spec).to(device)
        self.actor, self.critic = self.policy.actor, self.policy.critic
        self.optimizer = cfg.optimizer(device).build(self.critic, cfg.critic_lr, peers)
        self.actor_optimizer = cfg.optimizer(device).build(self.actor, cfg.actor_lr, peers, cfg.policy_delay)
        self.target_actor, self.target_critic = frozen_copy(self.actor), frozen_copy(self.critic)
        self.value_and_grad = value_and_grad(self.critic_loss, self.critic.parameters(), device)
        self.actor_value_and_grad = value_and_grad(self.actor_loss, self.actor.parameters(), device)
        self.updates = 0
        self.saved = {name: name for name in ("policy", "target_actor", "target_critic", "actor_optimizer")}
        self.saved["critic_optimizer"] = "optimizer"

    @property
    def consecutive_skips(self) -> Tensor:
        """The larger number of consecutive skipped updates of actor and critics."""
        return torch.maximum(self.optimizer.consecutive_skips, self.actor_optimizer.consecutive_skips)

    @torch.no_grad()
    def target(self, rows: Sequences) -> Tensor:
        """Return y [N] = R + gamma^n min_i Q'_i(h', a') (TD3 eq. 10), with the histories h' of successors."""
        _, actor_next = rows.features(self.target_actor.memory, "actor")
        _, critic_next = rows.features(self.target_critic.memory, "critic")
        # a' = pi'(h') + clip(N(0, policy_noise), -noise_clip, noise_clip): target policy smoothing, eq. 15.
        next_action = self.target_actor.head(actor_next)
        noise = torch.randn_like(next_action).mul_(self.cfg.policy_noise)
        next_action = (next_action + noise.clamp_(-self.cfg.noise_clip, self.cfg.noise_clip)).clamp_(-1, 1)
        next_q = self.target_critic.head(critic_next, next_action).squeeze(-1)  # [C, N]
        return rows.target(td.clipped_double(next_q), self.cfg.n_step)

    def critic_loss(self, batch: Trajectory) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return sum_i mean (Q_i(h, a) - y)^2 over steps, priorities [B] and the mean target value."""
        rows = Sequences.of(self.policy, batch, self.cfg.burn_in)
        y = self.target(rows)
        features, _ = rows.features(self.critic.memory, "critic")
        td_error = self.critic.head(features, rows.action).squeeze(-1) - y  # [C, N]
        priority = rows.priority(td_error.detach().abs().amax(0), self.cfg.priority_eta)
        return rows.weighted_mean(td_error.square()).sum(), (priority, rows.mean(y))

    def actor_loss(self, batch: Trajectory) -> tuple[Tensor, tuple[Tensor]]:
        """Return -mean Q_1(h, pi(h)) over steps (TD3 algorithm 1) and the share of saturated actions."""
        rows = Sequences.of(self.policy, batch, self.cfg.burn_in)
        features, _ = rows.features(self.actor.memory, "actor")
        with torch.no_grad():  # the history holds the actions that were taken: pi changes only the last one
            critic_features, _ = rows.features(self.critic.memory, "critic")
        u = self.actor.head.preactivation(features)
        action = u.tanh()
        q = self.critic.head(critic_features, action)[0].squeeze(-1)
        excess = (u.abs() - PREACTIVATION_LIMIT).clamp_min(0).square().mean(-1)
        saturation = rows.mean((action.detach().abs() > SATURATION_THRESHOLD).float().mean(-1))
        return rows.mean(self.cfg.preactivation_penalty * excess - q), (saturation,)

    def update(self, batch: Trajectory) -> UpdateResult:
        """Perform one critic update and, every `policy_delay` calls, one of actor and targets."""
        merge_observations(self.policy, batch, self.updates, self.peers)
        grads, loss, (priority, value) = self.value_and_grad(batch)
        skipped = self.optimizer.step(grads, loss)
        metrics = {"loss/critic": loss, "value/mean": value, "count/skipped_updates": skipped}
        self.updates += 1
        if self.updates % self.cfg.policy_delay == 0:
            grads, loss, (saturation,) = self.actor_value_and_grad(batch)
            metrics["count/skipped_updates"] = skipped + self.actor_optimizer.step(grads, loss)
            metrics |= {"loss/policy": loss, "policy/saturation": saturation}
            if self.policy.average_actor is not None:
                self.policy.average_actor.follow(self.actor)
            polyak_update(self.target_critic, self.critic, self.cfg.tau)
            polyak_update(self.target_actor, self.actor, self.cfg.tau)
        # A non-finite error of one sequence must not enter the replay's priorities.
        priority = priority.nan_to_num(0.0, 0.0, 0.0)
        return UpdateResult(metrics, priority if batch.index is not None else None)
