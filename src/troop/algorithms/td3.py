"""TD3: Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods" (1802.09477).

Three algorithms are settings of this file:

* FastTD3 (Seo et al. 2025, 2505.22642), the defaults: categorical twin critics, no target policy, large
  batches, exploration noise that differs between envs.
* TD3: `atoms=0, target_policy=True, delay_targets=True`.
* DDPG (Lillicrap et al. 2016, 1509.02971): TD3 with `critics=1, policy_noise=0, policy_delay=1`.

The critic learner and the actor learner are two classes: `TD3` composes them on one host, PQL runs each on a
host of its own. Deviations from papers and reference code: docs/explanation/algorithms/fasttd3.md.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor, nn

from troop.algorithms.augmentation import shift_images
from troop.algorithms.optim import (
    ActorCriticState,
    AverageActor,
    LearnerState,
    OptimizerConfig,
    frozen,
    frozen_copy,
    merge_batch,
    polyak_update,
    value_and_grad,
)
from troop.algorithms.requirements import continuous_control_reason, split_images_reason, support_reason
from troop.core.algorithm import CompileMode, Policy, PolicyOutput, UpdateResult
from troop.core.batch import NStep, State, Transition
from troop.core.config import bounded
from troop.core.env import PRIVILEGED, Continuous, EnvSpec, Obs
from troop.core.errors import BadInput
from troop.core.exploration import Exploration, PerEpisodeUniform, RandomStart
from troop.core.peers import NO_PEERS, Peers
from troop.functional import categorical, repeated_noise, td
from troop.functional.clip_gradient import clip_gradient
from troop.nets.activations import Activation
from troop.nets.actors import DeterministicActor
from troop.nets.cnn import Torso
from troop.nets.critics import Critics, QReduction, Reduction
from troop.nets.encoder import ObservationEncoder, Trunk
from troop.nets.network_config import NetworkConfig, NetworkKind
from troop.nets.normalizer import Normalizer

PREACTIVATION_LIMIT = 1.5  # |u| from which `preactivation_penalty` counts
SATURATION_THRESHOLD = 0.95  # |action| from which an output counts in `policy/saturation`


@dataclass(frozen=True)
class TD3Config:
    """FastTD3's hyperparameters (HumanoidBench column); recipes/fast_td3.py has those of other suites."""

    gamma: float = bounded(0.99, low=0, high=1)
    """Discount factor."""
    n_step: int = bounded(1, low=1, high=64)
    """Steps of reward before the bootstrap."""
    tau: float = bounded(0.1, above=0, high=1)
    """Polyak coefficient of the target networks."""
    policy_delay: int = bounded(2, low=1)
    """Critic updates per actor update; PQL has a ratio of its own instead."""
    critics: int = bounded(2, low=1, high=16)
    """Number of Q-networks."""
    atoms: int = bounded(101, low=0, high=4096)
    """Atoms of the categorical critics; 0 for scalar critics."""
    v_min: float = -250.0
    """Lower end of the support of the atoms."""
    v_max: float = 250.0
    """Support of the atoms: cover reward per step / (1 - gamma); values outside are clipped silently."""
    clipped_double_q: bool = True
    """Regress every critic on the lower target; off: each critic on its own target."""
    categorical_min: Literal["lower_mean", "elementwise_min"] = "lower_mean"
    """The lower of categorical targets: the distribution with the lower mean (FastTD3), or the minimum per
    atom with binary cross entropy as loss (PQL-D)."""
    policy_q: Literal["auto", "min", "mean", "first"] = "auto"
    """Reduction of the critics in the actor loss; auto is min with clipped double Q and mean without."""
    policy_noise: float = bounded(0.001, low=0)
    """Standard deviation of target policy smoothing."""
    noise_clip: float = bounded(0.5, low=0)
    """Bound of target policy smoothing."""
    std_min: float = bounded(0.001, low=0)
    """Lower end of the exploration noise."""
    std_max: float = bounded(0.4, low=0)
    """Exploration noise: each env draws its standard deviation from this range at each episode start."""
    std_distribution: Literal["uniform", "log_uniform"] = "uniform"
    """Distribution of that draw; log_uniform: each factor of two is as frequent."""
    noise_repeats: int = bounded(1, low=0, high=10_000)
    """Largest number of steps for which noise is held, P(k) proportional to k^-2 (FlashSAC); 1: new noise in
    every step, which hardly moves a system with inertia; 0: a tenth of an episode, in half of the envs."""
    random_steps: int = bounded(0, low=0)
    """Env steps, over all envs of a collector, with uniformly random actions before the policy acts
    (TD3: 25,000, DDPG: 10,000). Systems that fix the noise of each env (Ape-X, PQL) have none."""
    clip_actions: bool = False
    """Clip noisy actions to [-1, 1] before they are stored; FastTD3's code stores them unclipped."""
    target_policy: bool = False
    """Compute target actions with a Polyak-averaged policy, as TD3 and DDPG do."""
    delay_targets: bool = False
    """Update target networks only together with the actor, as TD3 does."""
    average_tau: float = bounded(0.0, low=0, high=1)
    """Evaluate a Polyak average of the actor, with this coefficient per actor update; 0: the actor itself."""
    bootstrap_on_truncation: bool = True
    """Bootstrap at time limits; off only for tasks whose time limit is part of the task."""
    normalize_observations: bool = True
    """Normalize observations by their running mean and standard deviation."""
    normalize_rewards: bool = False
    """Scale rewards by a running estimate of the return's magnitude, so that returns fit the support."""
    net: NetworkKind = "mlp"
    """mlp, simbav2 as in its paper, simbav2_port as in FastTD3's code, or your own module:function."""
    torso: Torso = "auto"
    """Torso for images; auto is nature from 36x36 pixels on, else small; nips is the smaller one of 2013."""
    image_features: int = bounded(50, low=1)
    """Features to which actor and critics each reduce those of all torsos (DrQ-v2)."""
    random_shift: int = bounded(4, low=0)
    """Pixels by which images are shifted at random in every update (DrQ-v2); 0 for none."""
    actor_hidden: tuple[int, ...] = bounded((512, 256, 128), low=1)
    """Widths of the hidden layers of the actor."""
    critic_hidden: tuple[int, ...] = bounded((1024, 512, 256), low=1)
    """Widths of the hidden layers; SimbaV2 takes one equal width per block."""
    activation: Activation = "relu"
    """Activation function of the MLPs."""
    layer_norm: bool = False
    """LayerNorm before each activation: more stable with small batches and many updates per step."""
    actor_init: float = bounded(0.01, low=0)
    """Standard deviation of the initial weights of the actor's output layer (MLP only)."""
    preactivation_penalty: float = bounded(0.0, low=0)
    """Weight of mean(max(0, |u| - 1.5)^2) in the actor loss, for actions tanh(u): it keeps the actor where
    its gradient does not vanish (tanh 1.5 = 0.905)."""
    actor_lr: float = bounded(3e-4, above=0)
    """Learning rate of the actor."""
    critic_lr: float = bounded(3e-4, above=0)
    """Learning rate of the critics."""
    lr_end: float = bounded(1.0, above=0, high=1)
    """Fraction of the learning rates at the end of the cosine schedule; 1 keeps them constant."""
    lr_updates: int = bounded(200_000, low=1)
    """Critic updates over which the cosine schedule runs."""
    beta2: float = bounded(0.999, low=0, below=1)
    """Adam's decay rate of the second moment."""
    weight_decay: float = bounded(0.1, low=0)
    """Weight decay of AdamW; 0 for none."""
    max_grad_norm: float = bounded(0.0, low=0)
    """Clip gradients to this norm; 0 does not clip."""
    action_gradient_clip: float = bounded(0.0, low=0)
    """Clip each element of dQ/da to this absolute value in the actor loss; 0 does not clip (Ape-X DPG: 1)."""
    actor_carries_critic: bool = False
    """The policy holds the critics and returns values with its actions, from which actors compute initial
    priorities (Ape-X DPG); these are the learner's priorities only where `atoms` is 0."""
    compile: CompileMode = False
    """Compile losses and gradients with torch.compile: half a minute once, then 1.15 to 1.4 times the updates
    of small networks on a CPU; needs a C++ compiler there. auto: during training, if measurements say that it
    pays."""
    amp: bool = False
    """bf16 autocast of targets and losses; only on devices with bf16 units."""

    @property
    def experience(self) -> NStep:
        """n-step transitions, with rewards scaled to the support if `normalize_rewards` is set."""
        bound = min(abs(self.v_min), abs(self.v_max)) if self.atoms else 10.0
        scale = bound if self.normalize_rewards else None
        return NStep(self.n_step, self.gamma, self.bootstrap_on_truncation, scale)

    @property
    def exploration(self) -> Exploration:
        """A standard deviation per env and episode (FastTD3's mixed noise)."""
        noise = PerEpisodeUniform(
            self.std_min, max(self.std_min, self.std_max), self.std_distribution == "log_uniform"
        )
        return RandomStart(noise, self.random_steps) if self.random_steps else noise

    @property
    def q_reduction(self) -> Reduction:
        """The resolved `policy_q`."""
        if self.policy_q != "auto":
            return self.policy_q
        return "min" if self.clipped_double_q else "mean"

    def atom_values(self, device: str = "cpu") -> Tensor | None:
        """Return the support z_1..z_K of the categorical critics; None for scalar critics."""
        return torch.linspace(self.v_min, self.v_max, self.atoms, device=device) if self.atoms else None

    def network(self, hidden: tuple[int, ...]) -> NetworkConfig:
        """Return the architecture of a network with these hidden layers."""
        return NetworkConfig(hidden, self.layer_norm, self.activation, self.net)

    def trunk(self, encoder: ObservationEncoder) -> Trunk:
        """Return a new trunk for the image features of `encoder`."""
        return Trunk(encoder.image_features, self.image_features)

    def optimizer(self, device: str) -> OptimizerConfig:
        """Return the optimizer settings shared by actor and critics."""
        return OptimizerConfig(
            device, self.weight_decay, self.max_grad_norm, self.lr_end, self.lr_updates, beta2=self.beta2
        )

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Require continuous actions, a torso for images, a valid support and std_min <= std_max."""
        if self.std_min > self.std_max:
            return f"std_min {self.std_min:g} is above std_max {self.std_max:g}"
        if self.std_distribution == "log_uniform" and not self.std_min:
            return "--std-distribution log_uniform needs a std_min above 0"
        return (
            continuous_control_reason(spec, self.torso)
            or support_reason(self.atoms, self.v_min, self.v_max, self.normalize_rewards)
            or self.network(self.actor_hidden).unsupported_reason("actor_hidden")
            or self.network(self.critic_hidden).unsupported_reason("critic_hidden")
        )

    def unsplittable_reason(self, spec: EnvSpec) -> str | None:
        """Reject images and a target policy: a separate critic learner uses its lagged copy of the policy."""
        for name in ("target_policy", "delay_targets"):
            if getattr(self, name):
                flag = f"--algorithm.{name.replace('_', '-')}"
                return (
                    f"{flag} is True, but a critic learner on its own host bootstraps from a lagged copy of "
                    f"the policy and does not see actor updates; pass --algorithm.no-{name.replace('_', '-')}"
                )
        return split_images_reason(spec)

    def policy(self, spec: EnvSpec) -> TD3Policy:
        """Build the policy alone, on the CPU."""
        return TD3Policy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> TD3:
        """Build the learner."""
        return TD3(spec, self, peers, device)

    def critic_learner(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> TD3CriticLearner:
        """Build the critic learner alone."""
        return TD3CriticLearner.standalone(self, spec, peers, device)

    def actor_learner(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> TD3ActorLearner:
        """Build the actor learner alone."""
        return TD3ActorLearner.standalone(self, spec, peers, device)


class TD3Policy(Policy):
    """Encoder and normalizer of observations, deterministic actor pi; with `actor_carries_critic` critics."""

    def __init__(self, spec: EnvSpec, cfg: TD3Config) -> None:
        super().__init__()
        assert isinstance(spec.action, Continuous)
        # The critic learner trains the encoder.
        self.encoder = ObservationEncoder(spec.shapes(), cfg.torso, orthogonal=True)
        # One normalizer over all columns serves actor and critics: the actor's columns come first.
        self.normalizer = Normalizer(self.encoder.columns)
        self.normalize = cfg.normalize_observations and self.encoder.columns > 0
        inputs, trunk = self.encoder.features - spec.width(PRIVILEGED), cfg.trunk(self.encoder)
        self.actor = DeterministicActor(
            inputs, cfg.network(cfg.actor_hidden), spec.action.size, cfg.actor_init, trunk
        )
        self.average_actor = AverageActor(self.actor, cfg.average_tau) if cfg.average_tau else None
        self.clip_actions = cfg.clip_actions
        self.held_noise = repeated_noise.HeldNoise(spec.action.size, cfg.noise_repeats, spec.episode_limit)
        self.critic = build_critics(spec, cfg, self.encoder) if cfg.actor_carries_critic else None
        self.value = QReduction(cfg.q_reduction, cfg.atom_values())

    def initial_state(self, rows: int) -> State:
        """Return the state of held noise; None if noise is drawn in every step."""
        return self.held_noise.initial_state(rows)

    def critic_input(self, obs: Obs, skip: tuple[str, ...] = ()) -> Tensor:
        """Return image features and normalized columns of all observations; the actor's come first."""
        normalizer = self.normalizer if self.normalize else None
        features: Tensor = self.encoder(self.encoder.select(obs, normalizer, skip))
        return features

    def actor_input(self, obs: Obs) -> Tensor:
        """Return the columns that acting needs: the actor's, or all if the policy carries the critics."""
        return self.critic_input(obs, (PRIVILEGED,) if self.critic is None else ())

    def forward(self, x: Tensor) -> Tensor:
        """Return pi(x) [B, A] for normalized observations."""
        action: Tensor = self.actor(x[:, : self.actor.inputs])
        return action

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Return pi(s) + explore * N(0, I); `explore` [B] is the standard deviation of each row's noise.

        Where `explore` is infinite, it is uniformly random in [-1, 1]; where it is 0, the averaged actor's.
        """
        x = self.actor_input(obs)
        greedy, exploring = self(x), (explore > 0).unsqueeze(-1)
        if self.average_actor is not None and not exploring.all():
            greedy = torch.where(exploring, greedy, self.average_actor(x[:, : self.actor.inputs]))
        action = greedy
        if exploring.any():
            noise, state = self.held_noise(state, explore > 0)
            action = torch.addcmul(greedy, noise, explore.unsqueeze(-1))
            if (random := explore.isinf()).any():
                action = torch.where(random.unsqueeze(-1), repeated_noise.uniform(noise), action)
        action = action.clamp(-1, 1) if self.clip_actions else action
        if self.critic is None:
            return PolicyOutput(action, state)
        q, value = (self.value(self.critic(x, each)) for each in (action, greedy))
        return PolicyOutput(action, state, {"q": q, "value": value})


def build_critics(spec: EnvSpec, cfg: TD3Config, encoder: ObservationEncoder) -> Critics:
    """Build the critics Q_1..Q_C over (encoded observations, action)."""
    assert isinstance(spec.action, Continuous)
    inputs, trunk = encoder.features + spec.action.size, cfg.trunk(encoder)
    return Critics(inputs, cfg.network(cfg.critic_hidden), cfg.atoms or 1, cfg.critics, trunk)


def build_networks(spec: EnvSpec, cfg: TD3Config, device: str) -> tuple[TD3Policy, Critics]:
    """Build policy and critics in a fixed order: whole and split learners start with equal weights."""
    policy = cfg.policy(spec).to(device)
    return policy, policy.critic or build_critics(spec, cfg, policy.encoder).to(device)


class TD3CriticLearner(LearnerState):
    """Regresses the critics on bootstrapped targets."""

    def __init__(self, cfg: TD3Config, policy: TD3Policy, critic: Critics, peers: Peers, device: str) -> None:
        self.cfg, self.policy, self.critic = cfg, policy, critic
        self.module: nn.Module = critic
        self.peer_module: nn.Module = policy
        self.atoms = cfg.atom_values(device)
        self.elementwise_min = cfg.clipped_double_q and cfg.categorical_min == "elementwise_min"
        trained = nn.ModuleList([critic, policy.encoder])
        self.optimizer = cfg.optimizer(device).build(trained, cfg.critic_lr, peers)
        self.target_critic = frozen_copy(critic)
        self.target_actor: nn.Module = frozen_copy(policy.actor) if cfg.target_policy else policy.actor
        self.value_and_grad = value_and_grad(self.loss, trained.parameters(), device, cfg.compile, cfg.amp)
        self.updates = 0
        self.saved = {name: name for name in ("policy", "critic", "target_critic")}
        self.saved["critic_optimizer"] = "optimizer"
        if cfg.target_policy:
            self.saved["target_actor"] = "target_actor"

    @classmethod
    def standalone(cls, cfg: TD3Config, spec: EnvSpec, peers: Peers, device: str) -> Self:
        """Build a critic learner with a lagged copy of the policy that another host trains."""
        if reason := cfg.unsplittable_reason(spec):
            raise BadInput(f"{reason}.")
        policy, critic = build_networks(spec, cfg, device)
        if policy.critic is critic:  # the policy's own critics are overwritten with each policy received
            critic = copy.deepcopy(critic)
        return cls(cfg, policy.requires_grad_(False), critic, peers, device)

    def update(self, batch: Transition) -> UpdateResult:
        """Perform one critic update and the target update."""
        result = self.update_critic(batch)
        self.update_targets()
        return result

    @torch.no_grad()
    def target(self, batch: Transition, next_obs: Tensor) -> Tensor:
        """Return y: values [C or 1, B], or distributions [C or 1, B, K] (eq. 10 and 15, C51 algorithm 1)."""
        # a' = pi'(s') + clip(N(0, policy_noise), -noise_clip, noise_clip): target policy smoothing, eq. 15.
        next_action: Tensor = self.target_actor(next_obs[:, : self.policy.actor.inputs])
        if self.cfg.policy_noise:
            noise = torch.randn_like(next_action).mul_(self.cfg.policy_noise)
            noise.clamp_(-self.cfg.noise_clip, self.cfg.noise_clip)
            next_action = (next_action + noise).clamp_(-1, 1)
        next_q = self.target_critic(next_obs, next_action).float()  # [C, B, K]
        if self.atoms is None:
            # y = r + gamma^n min_i Q'_i(s', a'): clipped double Q-learning, eq. 10.
            values = next_q.squeeze(-1)
            if self.cfg.clipped_double_q:
                values = td.clipped_double(values).unsqueeze(0)
            return td.target(batch.reward, batch.discount, values)
        # Distributional: shift atoms to r + gamma^n z, select the lower distribution, project it.
        shifted = categorical.bellman_shift(batch.reward, batch.discount, self.atoms)  # [B, K]
        probabilities = next_q.softmax(-1)
        if self.cfg.clipped_double_q and not self.elementwise_min:
            probabilities = categorical.select_lower_mean(probabilities, shifted).unsqueeze(0)
        projected = torch.stack([categorical.project(p, shifted, self.atoms) for p in probabilities])
        return projected.amin(0, keepdim=True) if self.elementwise_min else projected

    def loss(self, batch: Transition) -> tuple[Tensor, tuple[Tensor | None, Tensor]]:
        """Return sum_i mean_b l(Q_i(s, a), y) with row priorities [B] and the mean target value."""
        with torch.no_grad():
            next_obs = self.policy.critic_input(batch.next_obs)
        y = self.target(batch, next_obs)
        q = self.critic(self.policy.critic_input(batch.obs), batch.action)  # [C, B, K]
        if self.atoms is None:
            td_error = q.squeeze(-1).float() - y  # [C, B]
            row_loss, priority, value = td_error.square(), td_error.detach().abs().amax(0), y
        else:
            binary = self.elementwise_min
            row_loss = (categorical.binary_cross_entropy if binary else categorical.cross_entropy)(y, q)
            priority, value = None, categorical.mean(y, self.atoms)
            if batch.index is not None:
                # KL(y || Q): the cross entropy without the target's own entropy, which is large for broad
                # targets and zero after termination.
                entropy = (categorical.binary_entropy if binary else categorical.entropy)(y)
                priority = (row_loss.detach() - entropy).clamp_min_(0).amax(0)
        weighted = row_loss if batch.weight is None else row_loss * batch.weight
        return weighted.mean(-1).sum(), (priority, value.mean())

    def update_critic(self, batch: Transition) -> UpdateResult:
        """Perform one gradient step of all critics."""
        grads, loss, (priority, value) = self.value_and_grad(batch)
        skipped = self.optimizer.step(grads, loss)
        self.critic.nets.project()
        self.updates += 1
        metrics = {"loss/critic": loss, "value/mean": value, "count/skipped_updates": skipped}
        return UpdateResult(metrics, priority if batch.index is not None else None)

    def update_targets(self) -> None:
        """Move the target networks by `tau` towards the online ones."""
        polyak_update(self.target_critic, self.critic, self.cfg.tau)
        if self.cfg.target_policy:
            polyak_update(self.target_actor, self.policy.actor, self.cfg.tau)


class TD3ActorLearner(LearnerState):
    """Moves the actor up the critics' value and owns the statistics of the observation normalizer."""

    def __init__(self, cfg: TD3Config, policy: TD3Policy, critic: Critics, peers: Peers, device: str) -> None:
        self.cfg, self.policy, self.critic, self.peers = cfg, policy, critic, peers
        self.module: nn.Module = policy
        self.peer_module: nn.Module = critic
        self.optimizer = cfg.optimizer(device).build(policy.actor, cfg.actor_lr, peers, cfg.policy_delay)
        # The critics only pass the gradient on, and the encoder learns from the critics' loss alone.
        frozen_modules = nn.ModuleList([critic, policy.encoder])
        self._frozen_parameters = [p for p in frozen_modules.parameters() if p.requires_grad]
        parameters = policy.actor.parameters()
        self.value_and_grad = value_and_grad(self.loss, parameters, device, cfg.compile, cfg.amp)
        self.updates = 0
        self.saved = {"policy": "policy", "critic": "critic", "actor_optimizer": "optimizer"}

    @classmethod
    def standalone(cls, cfg: TD3Config, spec: EnvSpec, peers: Peers, device: str) -> Self:
        """Build an actor learner with lagged copies of the critics that another host trains."""
        if reason := cfg.unsplittable_reason(spec):
            raise BadInput(f"{reason}.")
        policy, critic = build_networks(spec, cfg, device)
        return cls(cfg, policy, critic.requires_grad_(False), peers, device)

    def update(self, batch: Transition) -> UpdateResult:
        """Perform one actor update; reads only `batch.obs`."""
        self.update_normalizer(batch.obs)
        return self.update_actor(batch.obs)

    def update_normalizer(self, obs: Obs) -> None:
        """Merge a batch into the normalizer's statistics; call once per update."""
        if self.policy.normalize and (weight := Normalizer.merge_weight(self.updates)):
            merge_batch(self.policy.normalizer, self.policy.encoder.vector(obs), weight, self.peers)
        self.updates += 1

    def loss(self, obs: Obs) -> tuple[Tensor, tuple[Tensor]]:
        """Return -mean Q(s, pi(s)) (TD3 eq. 1, DDPG eq. 6) and the share of saturated actions."""
        x = self.policy.critic_input(obs)
        u = self.policy.actor.preactivation(x[:, : self.policy.actor.inputs])
        action = u.tanh()
        saturation = (action.detach().abs() > SATURATION_THRESHOLD).float().mean()
        if self.cfg.action_gradient_clip:  # per row: the mean below divides gradients by the batch size
            action = clip_gradient(action, self.cfg.action_gradient_clip / len(action))
        q: Tensor = self.policy.value(self.critic(x, action).float())
        loss = -q.mean()
        if self.cfg.preactivation_penalty:
            excess = (u.float().abs() - PREACTIVATION_LIMIT).clamp_min(0)
            loss = loss + self.cfg.preactivation_penalty * excess.square().mean()
        return loss, (saturation,)

    def update_actor(self, obs: Obs) -> UpdateResult:
        """Perform one gradient step of the actor."""
        with frozen(self._frozen_parameters):
            grads, loss, (saturation,) = self.value_and_grad(obs)
        skipped = self.optimizer.step(grads, loss)
        self.policy.actor.net.project()
        if self.policy.average_actor is not None:
            self.policy.average_actor.follow(self.policy.actor)
        metrics = {"loss/policy": loss, "policy/saturation": saturation, "count/skipped_updates": skipped}
        return UpdateResult(metrics)


class TD3(ActorCriticState):
    """Critic learner and actor learner on one host, sharing policy and critics."""

    def __init__(self, spec: EnvSpec, cfg: TD3Config, peers: Peers, device: str) -> None:
        self.cfg = cfg
        self.policy, self.critic = build_networks(spec, cfg, device)
        self.critic_learner = TD3CriticLearner(cfg, self.policy, self.critic, peers, device)
        self.actor_learner = TD3ActorLearner(cfg, self.policy, self.critic, peers, device)
        self.target_critic = self.critic_learner.target_critic
        self.target_actor = self.critic_learner.target_actor

    def update(self, batch: Transition) -> UpdateResult:
        """Perform one critic update and, every `policy_delay` calls, one actor update (algorithm 1)."""
        batch = shift_images(batch, self.policy.encoder.images, self.cfg.random_shift)
        self.actor_learner.update_normalizer(batch.obs)
        result = self.critic_learner.update_critic(batch)
        actor_due = self.critic_learner.updates % self.cfg.policy_delay == 0
        if actor_due:
            skipped = result.metrics["count/skipped_updates"]
            result |= self.actor_learner.update_actor(batch.obs)
            result.metrics["count/skipped_updates"] += skipped
        if actor_due or not self.cfg.delay_targets:
            self.critic_learner.update_targets()
        return result
