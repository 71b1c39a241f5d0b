"""FlashSAC: Kim et al. 2026 (2604.04539).

SAC for many parallel envs and few updates: residual networks with BatchNorm whose weights have constant
length, categorical critics on a fixed support to which rewards are scaled, a target entropy stated as the
standard deviation of actions, and exploration noise that is held for several steps. The critic learner and
the actor learner are two classes: `FlashSAC` composes them on one host, PQL runs each on its own host.
Deviations from paper and reference code: docs/explanation/algorithms/flashsac.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from troop.algorithms.optim import (
    ActorCriticState,
    LearnerState,
    OptimizerConfig,
    frozen,
    frozen_copy,
    polyak_update,
    value_and_grad,
)
from troop.algorithms.requirements import continuous_control_reason
from troop.core.algorithm import CompileMode, Policy, PolicyOutput, UpdateResult
from troop.core.batch import NStep, State, Transition
from troop.core.config import bounded
from troop.core.env import OBS, PRIVILEGED, Continuous, EnvSpec, Obs
from troop.core.exploration import Exploration, PerEpisodeUniform, RandomStart
from troop.core.peers import NO_PEERS, Peers
from troop.functional import categorical, repeated_noise, tanh_normal
from troop.nets.critics import QReduction
from troop.nets.flash import FlashNetwork
from troop.nets.temperature import Temperature

SATURATION_THRESHOLD = 0.95  # |tanh(mean)| from which an output counts in `policy/saturation`
Statistics = tuple[Tensor, Tensor]  # mean and variance of a batch in all normalized columns of a network


@dataclass(frozen=True)
class FlashSACConfig:
    """The paper's hyperparameters; recipes/flash_sac.py has gamma and n of each suite."""

    local_statistics: ClassVar[str] = "running statistics of BatchNorm"  # not shared by copies of a learner

    gamma: float = bounded(0.99, low=0, high=1)
    """Discount factor."""
    n_step: int = bounded(1, low=1, high=64)
    """Steps of reward before the bootstrap."""
    tau: float = bounded(0.01, above=0, high=1)
    """Polyak coefficient of the target critics."""
    policy_delay: int = bounded(2, low=1)
    """Critic updates per actor update; PQL has a ratio of its own instead."""
    alpha_init: float = bounded(0.01, above=0)
    """Initial temperature: the scaled reward that one nat of entropy is worth."""
    alpha_min: float = bounded(0.0, low=0)
    """Lower bound of the temperature; 0 for none, as in the paper. With 1e-4 it recovers sooner after a long
    time with more entropy than the target."""
    alpha_lr: float = bounded(3e-4, low=0)
    """Learning rate of log alpha; 0 keeps the temperature constant."""
    target_std: float = bounded(0.15, above=0)
    """The target entropy is that of a Gaussian of this standard deviation in each action dimension."""
    log_std_min: float = -10.0
    """Lower end of the log standard deviation."""
    log_std_max: float = 2.0
    """Upper end of the log standard deviation."""
    noise_exponent: float = bounded(2.0, low=0)
    """Exploration noise is held for k steps with a probability proportional to k^-noise_exponent."""
    noise_repeats: int = bounded(16, low=0, high=10_000)
    """Largest number of steps for which exploration noise is held; 1 draws new noise in every step; 0: a
    tenth of the time limit, in half of the envs."""
    shared_repeats: bool = False
    """All envs of a collector draw new noise in the same step, as in the authors' code; off: each env has its
    own number of steps."""
    random_steps: int = bounded(0, low=0)
    """Env steps, over all envs of a collector, with uniformly random actions before the policy acts. Systems
    that fix the exploration of each env (Ape-X, PQL) have none."""
    critics: int = bounded(2, low=2, high=16)
    """Number of Q-networks."""
    atoms: int = bounded(101, low=2, high=4096)
    """Atoms of the categorical critics."""
    v_max: float = bounded(5.0, above=0)
    """The atoms cover -v_max to v_max; rewards are scaled so that returns fit."""
    normalize_rewards: bool = True
    """Divide rewards by a running estimate of the return's magnitude, so that returns fit the support."""
    bootstrap_on_truncation: bool = True
    """Bootstrap at time limits; off only for tasks whose time limit is part of the task."""
    actor_width: int = bounded(128, low=1)
    """Features of the actor's residual blocks; each block has 4 times as many inside."""
    critic_width: int = bounded(256, low=1)
    """Features of the critics' residual blocks."""
    blocks: int = bounded(2, low=1, high=32)
    """Residual blocks of each network."""
    batch_norm_momentum: float = bounded(0.01, above=0, high=1)
    """Weight of a new batch in the running statistics; 0.05 for runs of less than 5,000 updates."""
    input_clip: float = bounded(10.0, low=0)
    """Clip normalized inputs to this magnitude, so that an observation that was constant so far is not
    amplified up to 316 times when it changes; 0 does not clip, as in the paper."""
    actor_init: float = bounded(0.0, low=0)
    """Standard deviation of the initial weights of the policy's mean, whose rows are then not longer than 1;
    0: rows of length 1, as in the paper."""
    std_init: float = bounded(0.4, above=0)
    """Initial standard deviation before tanh in every state, if actor_init is not 0."""
    actor_lr: float = bounded(3e-4, above=0)
    """Learning rate of the actor."""
    critic_lr: float = bounded(3e-4, above=0)
    """Learning rate of the critics."""
    lr_end: float = bounded(0.5, above=0, high=1)
    """Fraction of the learning rates at the end of the cosine schedule; 1 keeps them constant."""
    lr_updates: int = bounded(97_500, low=1)
    """Critic updates over which the cosine schedule runs."""
    compile: CompileMode = False
    """Compile losses and gradients with torch.compile: half a minute once, then more updates per second;
    needs a C++ compiler on a CPU. auto: during training, if measurements say that it pays."""
    amp: bool = False
    """bf16 autocast of targets and losses; only on devices with bf16 units."""

    @property
    def experience(self) -> NStep:
        """n-step transitions, with rewards scaled to the support."""
        scale = self.v_max if self.normalize_rewards else None
        return NStep(self.n_step, self.gamma, self.bootstrap_on_truncation, scale)

    @property
    def exploration(self) -> Exploration:
        """1 for every env: actions are sampled from the policy, whose own standard deviation explores."""
        sampled = PerEpisodeUniform(1.0, 1.0)
        return RandomStart(sampled, self.random_steps) if self.random_steps else sampled

    def target_entropy(self, action_size: int) -> float:
        """Return the entropy of `action_size` Gaussians of standard deviation `target_std`, in nats."""
        return 0.5 * action_size * math.log(2 * math.pi * math.e * self.target_std**2)

    def atom_values(self, device: str = "cpu") -> Tensor:
        """Return the support z_1..z_K of the categorical critics."""
        return torch.linspace(-self.v_max, self.v_max, self.atoms, device=device)

    def optimizer(self, device: str) -> OptimizerConfig:
        """Return the optimizer settings of actor, critics and temperature."""
        return OptimizerConfig(device, lr_end=self.lr_end, lr_updates=self.lr_updates)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Require continuous actions, vector observations, and an initial log std inside its range."""
        if self.log_std_min >= self.log_std_max:
            return f"log_std_min {self.log_std_min:g} is not below log_std_max {self.log_std_max:g}"
        if self.actor_init and not self.log_std_min < math.log(self.std_init) < self.log_std_max:
            low, high = math.exp(self.log_std_min), math.exp(self.log_std_max)
            return f"std_init is {self.std_init:g}; log_std_min and log_std_max allow {low:.3g} to {high:.3g}"
        return continuous_control_reason(spec)

    def unread_observations(self, spec: EnvSpec) -> list[str]:
        """Return the names of observations that actor and critics do not read."""
        return [name for name in spec.obs if name not in (OBS, PRIVILEGED)]

    def unsplittable_reason(self, spec: EnvSpec) -> str | None:
        """Return None: every FlashSAC can be split."""
        return None

    def policy(self, spec: EnvSpec) -> FlashSACPolicy:
        """Build the policy alone, on the CPU."""
        return FlashSACPolicy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> FlashSAC:
        """Build the learner."""
        return FlashSAC(spec, self, peers, device)

    def critic_learner(
        self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu"
    ) -> FlashSACCriticLearner:
        """Build the critic learner alone."""
        return FlashSACCriticLearner.standalone(self, spec, peers, device)

    def actor_learner(
        self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu"
    ) -> FlashSACActorLearner:
        """Build the learner of actor and temperature alone."""
        return FlashSACActorLearner.standalone(self, spec, peers, device)


class FlashSACPolicy(Policy):
    """Tanh-Gaussian actor pi, whose recurrent state is the held noise, and the temperature."""

    def __init__(self, spec: EnvSpec, cfg: FlashSACConfig) -> None:
        super().__init__()
        assert isinstance(spec.action, Continuous)
        self.action_size = spec.action.size
        self.log_std_min, self.log_std_max = cfg.log_std_min, cfg.log_std_max
        self.actor = FlashNetwork(
            spec.width(),
            cfg.actor_width,
            cfg.blocks,
            self.action_size,
            heads=2,
            momentum=cfg.batch_norm_momentum,
            input_clip=cfg.input_clip,
            output_std=cfg.actor_init,
        )
        if cfg.actor_init:  # the other head has zero weights: its bias alone decides the standard deviation
            position = (math.log(cfg.std_init) - cfg.log_std_min) / (cfg.log_std_max - cfg.log_std_min)
            nn.init.constant_(self.actor.output_bias[self.action_size :], math.atanh(2 * position - 1))
        self.temperature = Temperature(cfg.alpha_init)
        self.held_noise = repeated_noise.HeldNoise(
            self.action_size, cfg.noise_repeats, spec.episode_limit, cfg.noise_exponent, cfg.shared_repeats
        )

    def initial_state(self, rows: int) -> State:
        """Return the state of the held noise before its first step, [rows, action + 1]."""
        return self.held_noise.initial_state(rows)

    def gaussian(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation before tanh, [B, A] each, of outputs [B, 2 A] of the net."""
        mean, unbounded = outputs.float().chunk(2, -1)
        half_range = 0.5 * (self.log_std_max - self.log_std_min)
        return mean, self.log_std_min + half_range * (unbounded.tanh() + 1)

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [B, A] and log pi [B] with fresh noise and the running statistics."""
        return tanh_normal.sample(*self.gaussian(self.actor(obs[:, : self.actor.inputs])))

    def sample_train(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor, Tensor, Statistics]:
        """Return actions, log pi and tanh(mean) for `obs` [B, o], and the statistics of both arguments.

        Both, since the critics learn from both. `next_obs` may have no rows.
        """
        x = torch.cat((obs, next_obs))[:, : self.actor.inputs]
        outputs, statistics = self.actor.forward_train(x, slice(0, len(obs)))
        mean, log_std = self.gaussian(outputs)
        return *tanh_normal.sample(mean, log_std), mean.detach().tanh(), statistics

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Return samples with held noise, tanh(mean) where `explore` [B] is 0, random ones where infinite.

        Where `explore` is 0 the state stays as it is. None stands for the initial state.
        """
        mean, log_std = self.gaussian(self.actor(obs[OBS]))
        action = mean.tanh()
        if not explore.any():
            return PolicyOutput(action, state)
        exploring = explore > 0
        noise, state = self.held_noise(self.initial_state(len(mean)) if state is None else state, exploring)
        sampled = torch.addcmul(mean, log_std.exp(), noise).tanh_()
        if (random := explore.isinf()).any():
            sampled = torch.where(random.unsqueeze(-1), torch.rand_like(sampled) * 2 - 1, sampled)
        return PolicyOutput(torch.where(exploring.unsqueeze(-1), sampled, action), state)


def full_obs(obs: Obs) -> Tensor:
    """Concatenate the observations of policy and critics, [B, obs + privileged]."""
    return torch.cat((obs[OBS], obs[PRIVILEGED]), -1) if PRIVILEGED in obs else obs[OBS]


def build_critics(spec: EnvSpec, cfg: FlashSACConfig) -> FlashNetwork:
    """Build the critics Q_1..Q_C over (observation, privileged observation, action)."""
    assert isinstance(spec.action, Continuous)
    return FlashNetwork(
        spec.width(OBS) + spec.width(PRIVILEGED) + spec.action.size,
        cfg.critic_width,
        cfg.blocks,
        cfg.atoms,
        copies=cfg.critics,
        momentum=cfg.batch_norm_momentum,
        input_clip=cfg.input_clip,
    )


def build_networks(spec: EnvSpec, cfg: FlashSACConfig, device: str) -> tuple[FlashSACPolicy, FlashNetwork]:
    """Build policy and critics in a fixed order: whole and split learners start with equal weights."""
    return cfg.policy(spec).to(device), build_critics(spec, cfg).to(device)


class FlashSACCriticLearner(LearnerState):
    """Regresses the critics on soft categorical targets."""

    def __init__(
        self, cfg: FlashSACConfig, policy: FlashSACPolicy, critic: FlashNetwork, peers: Peers, device: str
    ) -> None:
        self.cfg, self.policy, self.critic = cfg, policy, critic
        self.module: nn.Module = critic
        self.peer_module: nn.Module = policy
        self.atoms = cfg.atom_values(device)
        self.optimizer = cfg.optimizer(device).build(critic, cfg.critic_lr, peers)
        self.target_critic = frozen_copy(critic)
        self.value_and_grad = value_and_grad(self.loss, critic.parameters(), device, cfg.compile, cfg.amp)
        self.updates = 0
        self.saved = {name: name for name in ("policy", "critic", "target_critic")}
        self.saved["critic_optimizer"] = "optimizer"

    @classmethod
    def standalone(cls, cfg: FlashSACConfig, spec: EnvSpec, peers: Peers, device: str) -> Self:
        """Build a critic learner with a lagged copy of the policy that another host trains."""
        policy, critic = build_networks(spec, cfg, device)
        return cls(cfg, policy.requires_grad_(False), critic, peers, device)

    def update(self, batch: Transition) -> UpdateResult:
        """Perform one critic update and the target update."""
        result = self.update_critic(batch)
        self.update_targets()
        return result

    def target(self, batch: Transition, next_q: Tensor, log_prob: Tensor) -> Tensor:
        """Return the target distributions [B, K] of target logits [C, B, K] and log pi(a'|s') [B]."""
        # V(s') = Q'(s', a') - alpha log pi(a'|s'): the entropy term is added to the reward.
        entropy_bonus = -self.policy.temperature() * log_prob
        reward = torch.addcmul(batch.reward, batch.discount, entropy_bonus)
        shifted = categorical.bellman_shift(reward, batch.discount, self.atoms)  # [B, K]
        # The whole distribution of the critic with the lower mean, before shifting and clipping.
        lower = categorical.select_lower_mean(next_q.float().softmax(-1), self.atoms)
        return categorical.project(lower, shifted, self.atoms)

    def loss(self, batch: Transition) -> tuple[Tensor, tuple[Tensor | None, Tensor, Statistics]]:
        """Return the mean cross entropy of critics and rows, with priorities [B], mean target, statistics.

        Online and target critics both normalize with the statistics of (s, a) and (s', a') together: target
        actions that no batch contains would shift statistics of (s, a) alone.
        """
        rows, next_obs = len(batch.reward), full_obs(batch.next_obs)
        with torch.no_grad():
            next_action, log_prob = self.policy.sample(next_obs)
            pairs = torch.cat((full_obs(batch.obs), batch.action), -1)
            x = torch.cat((pairs, torch.cat((next_obs, next_action), -1)))
            next_q, _ = self.target_critic.forward_train(x, slice(rows, None))
            y = self.target(batch, next_q, log_prob)
        q, statistics = self.critic.forward_train(x, slice(0, rows))  # [C, B, K]
        row_loss = categorical.cross_entropy(y.unsqueeze(0), q)
        priority = None
        if batch.index is not None:
            # KL(y || Q): the cross entropy without the target's own entropy.
            priority = (row_loss.detach() - categorical.entropy(y)).clamp_min_(0).amax(0)
        weighted = row_loss if batch.weight is None else row_loss * batch.weight
        return weighted.mean(), (priority, categorical.mean(y, self.atoms).mean(), statistics)

    def update_critic(self, batch: Transition) -> UpdateResult:
        """Perform one gradient step of all critics."""
        grads, loss, (priority, value, statistics) = self.value_and_grad(batch)
        skipped = self.optimizer.step(grads, loss)
        self.critic.project()
        self.critic.update_statistics(*statistics)
        self.updates += 1
        metrics = {"loss/critic": loss, "value/mean": value, "count/skipped_updates": skipped}
        return UpdateResult(metrics, priority if batch.index is not None else None)

    def update_targets(self) -> None:
        """Move the target critics by `tau` towards the online ones; their weights are not projected."""
        polyak_update(self.target_critic, self.critic, self.cfg.tau)


class FlashSACActorLearner(LearnerState):
    """Moves the actor up the soft value and the temperature towards the target entropy."""

    def __init__(
        self, cfg: FlashSACConfig, policy: FlashSACPolicy, critic: FlashNetwork, peers: Peers, device: str
    ) -> None:
        self.cfg, self.policy, self.critic = cfg, policy, critic
        self.module: nn.Module = policy
        self.peer_module: nn.Module = critic
        self.value = QReduction("min", cfg.atom_values(device))
        self.optimizer = cfg.optimizer(device).build(policy.actor, cfg.actor_lr, peers, cfg.policy_delay)
        self.alpha_optimizer = cfg.optimizer(device).build(
            policy.temperature, cfg.alpha_lr, peers, cfg.policy_delay
        )
        self.target_entropy = cfg.target_entropy(policy.action_size)
        self._critic_parameters = [p for p in critic.parameters() if p.requires_grad]
        parameters = policy.actor.parameters()
        self.value_and_grad = value_and_grad(self.loss, parameters, device, cfg.compile, cfg.amp)
        self.updates = 0
        self.saved = {"policy": "policy", "critic": "critic", "actor_optimizer": "optimizer"}
        self.saved["alpha_optimizer"] = "alpha_optimizer"

    @classmethod
    def standalone(cls, cfg: FlashSACConfig, spec: EnvSpec, peers: Peers, device: str) -> Self:
        """Build an actor learner with lagged copies of the critics that another host trains."""
        policy, critic = build_networks(spec, cfg, device)
        return cls(cfg, policy, critic.requires_grad_(False), peers, device)

    def update(self, batch: Transition) -> UpdateResult:
        """Perform one update of actor and temperature; reads `batch.obs`, and `next_obs` if there are any."""
        return self.update_actor(batch)

    def loss(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Statistics]]:
        """Return mean(alpha log pi(a|s) - min_i Q_i(s, a)), with log pi [B], tanh(mean) and statistics.

        The critics normalize with their running statistics.
        """
        action, log_prob, mean, statistics = self.policy.sample_train(obs, next_obs)
        q: Tensor = self.value(self.critic(torch.cat((obs, action), -1)))
        alpha = self.policy.temperature().detach()
        return (alpha * log_prob - q).mean(), (log_prob.detach(), mean, statistics)

    def update_actor(self, batch: Transition) -> UpdateResult:
        """Perform one gradient step of the actor and one of the temperature."""
        obs = full_obs(batch.obs)
        next_obs = full_obs(batch.next_obs) if batch.next_obs else obs[:0]
        with frozen(self._critic_parameters):  # the critics only pass the gradient on
            grads, loss, (log_prob, mean, statistics) = self.value_and_grad(obs, next_obs)
        skipped = self.optimizer.step(grads, loss)
        self.policy.actor.project()
        self.policy.actor.update_statistics(*statistics)
        self.updates += 1
        metrics = {"loss/policy": loss, "count/skipped_updates": skipped}
        metrics["policy/saturation"] = (mean.abs() > SATURATION_THRESHOLD).float().mean()
        return UpdateResult(metrics | self.update_temperature(log_prob))

    @torch.no_grad()
    def update_temperature(self, log_prob: Tensor) -> dict[str, Tensor]:
        """Step log alpha along the gradient of alpha (H(pi) - target entropy); return the metrics."""
        entropy, alpha = -log_prob.mean(), self.policy.temperature()
        loss = alpha * (entropy - self.target_entropy)  # its own derivative with respect to log alpha
        self.alpha_optimizer.step([loss], loss)
        if self.cfg.alpha_min:
            self.policy.temperature.log_alpha.clamp_(min=math.log(self.cfg.alpha_min))
        return {"policy/alpha": alpha, "policy/entropy": entropy}


class FlashSAC(ActorCriticState):
    """Critic learner and actor learner on one host, sharing policy and critics."""

    def __init__(self, spec: EnvSpec, cfg: FlashSACConfig, peers: Peers, device: str) -> None:
        self.cfg = cfg
        self.policy, self.critic = build_networks(spec, cfg, device)
        self.critic_learner = FlashSACCriticLearner(cfg, self.policy, self.critic, peers, device)
        self.actor_learner = FlashSACActorLearner(cfg, self.policy, self.critic, peers, device)
        self.target_critic = self.critic_learner.target_critic

    def update(self, batch: Transition) -> UpdateResult:
        """Perform one critic update and, before it, on every `policy_delay`-th call, one actor update.

        The first call updates both. The targets of the critics use the new policy and temperature.
        """
        actor_result = None
        if self.critic_learner.updates % self.cfg.policy_delay == 0:
            actor_result = self.actor_learner.update_actor(batch)
        result = self.critic_learner.update(batch)
        if actor_result is not None:
            skipped = actor_result.metrics["count/skipped_updates"]
            result = actor_result | result
            result.metrics["count/skipped_updates"] = result.metrics["count/skipped_updates"] + skipped
        return result
