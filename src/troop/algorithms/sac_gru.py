"""SAC with memory, for partially observable tasks: recurrent SAC of Ni et al. 2022 (2110.05038).

SAC (1812.05905) whose actor and critics each read the history through a GRU of their own. It learns from
sequences of a replay, from the recurrent states that were stored with them, after a burn-in (Kapturowski et
al. 2019, R2D2). Deviations from the papers: docs/explanation/algorithms/memory.md.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial

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
from troop.functional import repeated_noise, tanh_normal, td
from troop.nets.activations import Activation
from troop.nets.actors import GaussianActor
from troop.nets.memory import Memory
from troop.nets.network_config import NetworkConfig
from troop.nets.temperature import Temperature

SATURATION_THRESHOLD = 0.95  # |tanh(mean)| from which an output counts in `policy/saturation`

MAX_RETURN = 10.0  # bound of discounted returns with `normalize_rewards`


@dataclass(frozen=True)
class SACGRUConfig:
    """Hyperparameters of Ni et al. 2022 and of SAC; burn-in and priorities as in R2D2."""

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
    policy_delay: int = bounded(1, low=1)
    """Critic updates per update of actor and temperature."""
    alpha_init: float = bounded(1.0, above=0)
    """Initial temperature: the reward that one nat of entropy is worth."""
    alpha_lr: float = bounded(3e-4, low=0)
    """Learning rate of log alpha; 0 keeps the temperature constant."""
    target_entropy_ratio: float = 1.0
    """The target entropy is minus this times the number of action dimensions, for actions in [-1, 1]."""
    log_std_min: float = -5.0
    """Lower end of the log standard deviation."""
    log_std_max: float = 2.0
    """Range of the log standard deviation; it starts in the middle."""
    critics: int = bounded(2, low=1, high=16)
    """Number of Q-networks; they share one memory."""
    noise_repeats: int = bounded(1, low=0, high=10_000)
    """Largest number of steps for which the noise of sampled actions is held, with P(k) proportional to k^-2
    (FlashSAC); 1 draws new noise in every step, which hardly moves a system with inertia; 0: a tenth of the
    time limit, in half of the envs."""
    noise_scale_max: float = bounded(1.0, low=1)
    """Each episode samples its actions with the policy's standard deviation times a factor from
    [1, noise_scale_max], its logarithm drawn uniformly: it explores without entering the targets."""
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
        """The factor of the policy's standard deviation in each env: 1 samples from the policy itself."""
        sampled = PerEpisodeUniform(1.0, self.noise_scale_max, logarithmic=True)
        return RandomStart(sampled, self.random_steps) if self.random_steps else sampled

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
        """Require continuous actions, vectors, log_std_min < log_std_max and burn-in <= overlap < length."""
        if self.log_std_min >= self.log_std_max:
            return f"log_std_min {self.log_std_min:g} is not below log_std_max {self.log_std_max:g}"
        return sequence_reason(self.sequence_length, self.overlap, self.burn_in) or continuous_control_reason(
            spec
        )

    def policy(self, spec: EnvSpec) -> SACGRUPolicy:
        """Build the policy alone, on the CPU."""
        return SACGRUPolicy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> SACGRU:
        """Build the learner."""
        return SACGRU(spec, self, peers, device)


class SACGRUPolicy(MemoryPolicy[GaussianActor]):
    """tanh-Gaussian actor pi(a|h) over the history h, and the temperature for the critics."""

    def __init__(self, spec: EnvSpec, cfg: SACGRUConfig) -> None:
        assert isinstance(spec.action, Continuous)
        make_actor = partial(
            GaussianActor,
            network=cfg.network(cfg.actor_hidden),
            outputs=spec.action.size,
            log_std_min=cfg.log_std_min,
            log_std_max=cfg.log_std_max,
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
        self.action_size = spec.action.size
        self.temperature = Temperature(cfg.alpha_init)

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Return tanh(mean + explore * std * N(0, I)); where `explore` [B] is infinite, random actions.

        Where `explore` is 0, the mean is the averaged actor's.
        """
        exploring = explore > 0
        features, averaged_features, memories = self.advance(obs, state, exploring)
        mean, log_std = self.actor.head(features)
        if averaged_features is not None:
            averaged, _ = self.averaged.head(averaged_features)
            mean = torch.where(exploring.unsqueeze(-1), mean, averaged)
        action = mean.tanh()
        assert state is not None
        held = {"noise": state["noise"]} if "noise" in state else None
        if exploring.any():
            unscaled, held = self.held_noise(held, exploring)
            random = explore.isinf()
            noise = unscaled * torch.where(random, 1.0, explore).unsqueeze(-1)
            sampled = torch.addcmul(mean, log_std.exp(), noise).tanh()
            sampled = torch.where(random.unsqueeze(-1), repeated_noise.uniform(unscaled), sampled)
            action = torch.where(exploring.unsqueeze(-1), sampled, action)
        return PolicyOutput(action, memories | (held or {}))


class SACGRU(LearnerState):
    """Regresses the critics on soft targets; moves the actor up the soft value and learns the temperature."""

    def __init__(self, spec: EnvSpec, cfg: SACGRUConfig, peers: Peers, device: str) -> None:
        self.cfg, self.peers = cfg, peers
        self.policy = cfg.policy(spec).to(device)
        self.actor, self.critic = self.policy.actor, self.policy.critic
        config = cfg.optimizer(device)
        self.optimizer = config.build(self.critic, cfg.critic_lr, peers)
        self.actor_optimizer = config.build(self.actor, cfg.actor_lr, peers, cfg.policy_delay)
        unclipped = dataclasses.replace(config, max_grad_norm=0.0)
        temperature = self.policy.temperature
        self.alpha_optimizer = unclipped.build(temperature, cfg.alpha_lr, peers, cfg.policy_delay)
        self.target_entropy = -cfg.target_entropy_ratio * self.policy.action_size
        self.target_critic = frozen_copy(self.critic)
        self.value_and_grad = value_and_grad(self.critic_loss, self.critic.parameters(), device)
        self.actor_value_and_grad = value_and_grad(self.actor_loss, self.actor.parameters(), device)
        self.updates = 0
        self.saved = {
            name: name for name in ("policy", "target_critic", "actor_optimizer", "alpha_optimizer")
        }
        self.saved["critic_optimizer"] = "optimizer"

    @property
    def consecutive_skips(self) -> Tensor:
        """The larger number of consecutive skipped updates of actor and critics."""
        return torch.maximum(self.optimizer.consecutive_skips, self.actor_optimizer.consecutive_skips)

    @torch.no_grad()
    def target(self, rows: Sequences) -> Tensor:
        """Return y [N] = R + gamma^n (min_i Q'_i(h', a') - alpha log pi(a'|h')), a' ~ pi (eq. 3 and 5)."""
        _, actor_next = rows.features(self.actor.memory, "actor")
        _, critic_next = rows.features(self.target_critic.memory, "critic")
        next_action, log_prob = tanh_normal.sample(*self.actor.head(actor_next))
        next_q = self.target_critic.head(critic_next, next_action).squeeze(-1)  # [C, N]
        soft_value = td.clipped_double(next_q) - self.policy.temperature() * log_prob
        return rows.target(soft_value, self.cfg.n_step)

    def critic_loss(self, batch: Trajectory) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return sum_i mean (Q_i(h, a) - y)^2 over steps, priorities [B] and the mean target value."""
        rows = Sequences.of(self.policy, batch, self.cfg.burn_in)
        y = self.target(rows)
        features, _ = rows.features(self.critic.memory, "critic")
        td_error = self.critic.head(features, rows.action).squeeze(-1) - y  # [C, N]
        priority = rows.priority(td_error.detach().abs().amax(0), self.cfg.priority_eta)
        return rows.weighted_mean(td_error.square()).sum(), (priority, rows.mean(y))

    def actor_loss(self, batch: Trajectory) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return mean(alpha log pi(a|h) - min_i Q_i(h, a)), a ~ pi (eq. 9), mean log pi, saturated share."""
        rows = Sequences.of(self.policy, batch, self.cfg.burn_in)
        features, _ = rows.features(self.actor.memory, "actor")
        with torch.no_grad():  # the history holds the actions that were taken: pi changes only the last one
            critic_features, _ = rows.features(self.critic.memory, "critic")
        mean, log_std = self.actor.head(features)
        action, log_prob = tanh_normal.sample(mean, log_std)
        q = self.critic.head(critic_features, action).squeeze(-1).amin(0)
        loss = rows.mean(self.policy.temperature().detach() * log_prob - q)
        saturation = rows.mean((mean.detach().tanh().abs() > SATURATION_THRESHOLD).float().mean(-1))
        return loss, (rows.mean(log_prob.detach()), saturation)

    def update(self, batch: Trajectory) -> UpdateResult:
        """Perform one critic update and, every `policy_delay` calls, one of actor and temperature."""
        merge_observations(self.policy, batch, self.updates, self.peers)
        grads, loss, (priority, value) = self.value_and_grad(batch)
        skipped = self.optimizer.step(grads, loss)
        metrics = {"loss/critic": loss, "value/mean": value, "count/skipped_updates": skipped}
        self.updates += 1
        if self.updates % self.cfg.policy_delay == 0:
            grads, loss, (log_prob, saturation) = self.actor_value_and_grad(batch)
            metrics["count/skipped_updates"] = skipped + self.actor_optimizer.step(grads, loss)
            if self.policy.average_actor is not None:
                self.policy.average_actor.follow(self.actor)
            metrics |= {"loss/policy": loss, "policy/saturation": saturation}
            metrics |= self.update_temperature(log_prob)
        polyak_update(self.target_critic, self.critic, self.cfg.tau)
        # A non-finite error of one sequence must not enter the replay's priorities.
        priority = priority.nan_to_num(0.0, 0.0, 0.0)
        return UpdateResult(metrics, priority if batch.index is not None else None)

    def update_temperature(self, log_prob: Tensor) -> dict[str, Tensor]:
        """Step log alpha along its gradient H(pi) - target entropy (eq. 18); return the metrics."""
        alpha = self.policy.temperature().detach()
        # d/d(log alpha) of log alpha * (entropy - target): no graph is needed for one scalar.
        gradient = -log_prob - self.target_entropy
        log_alpha = self.policy.temperature.log_alpha.detach()
        self.alpha_optimizer.step([gradient], log_alpha * gradient)
        return {"policy/alpha": alpha, "policy/entropy": -log_prob}
