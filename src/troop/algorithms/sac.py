"""SAC: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (1812.05905).

A stochastic policy maximises return plus entropy; the temperature alpha, the weight of the entropy, is
learned. With categorical critics, each regressed on its own target, this is FastSAC (2512.01996). The critic
learner and the actor learner are two classes: `SAC` composes them on one host, PQL runs each on its own host.
Deviations from papers and reference code: docs/explanation/algorithms/sac.md.
"""

from __future__ import annotations

import copy
import dataclasses
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
from troop.functional import categorical, repeated_noise, tanh_normal, td
from troop.nets.activations import Activation
from troop.nets.actors import GaussianActor
from troop.nets.cnn import Torso
from troop.nets.critics import Critics, QReduction, Reduction
from troop.nets.encoder import ObservationEncoder, Trunk
from troop.nets.network_config import NetworkConfig, NetworkKind
from troop.nets.normalizer import Normalizer
from troop.nets.temperature import Temperature

SATURATION_THRESHOLD = 0.95  # |tanh(mean)| from which an output counts in `policy/saturation`


@dataclass(frozen=True)
class SACConfig:
    """The paper's hyperparameters; recipes/sac.py has those of FastSAC."""

    gamma: float = bounded(0.99, low=0, high=1)
    """Discount factor."""
    n_step: int = bounded(1, low=1, high=64)
    """Steps of reward before the bootstrap."""
    tau: float = bounded(0.005, above=0, high=1)
    """Polyak coefficient of the target critics."""
    policy_delay: int = bounded(1, low=1)
    """Critic updates per actor update; PQL has a ratio of its own instead."""
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
    noise_repeats: int = bounded(1, low=0, high=10_000)
    """Largest number of steps for which the noise of sampled actions is held, with P(k) proportional to k^-2
    (FlashSAC); 1 draws new noise in every step, which hardly moves a system with inertia; 0: a tenth of the
    time limit, in half of the envs."""
    noise_scale_max: float = bounded(1.0, low=1)
    """Each episode samples its actions with the policy's standard deviation times a factor from
    [1, noise_scale_max], its logarithm drawn uniformly: it explores without entering the targets."""
    random_steps: int = bounded(0, low=0)
    """Env steps, over all envs of a collector, with uniformly random actions before the policy acts. Systems
    that fix the exploration of each env (Ape-X, PQL) have none."""
    average_tau: float = bounded(0.0, low=0, high=1)
    """Evaluate a Polyak average of the actor, with this coefficient per actor update; 0: the actor itself."""
    critics: int = bounded(2, low=1, high=16)
    """Number of Q-networks."""
    atoms: int = bounded(0, low=0, high=4096)
    """Atoms of categorical critics; 0 for scalar critics."""
    v_min: float = -250.0
    """Lower end of the support of the atoms."""
    v_max: float = 250.0
    """Support of the atoms: cover reward per step / (1 - gamma); values outside are clipped silently."""
    clipped_double_q: bool = True
    """Regress every critic on the lower target; off: each critic on its own target."""
    categorical_min: Literal["lower_mean", "elementwise_min"] = "lower_mean"
    """The lower of categorical targets: the distribution with the lower mean, or the minimum per atom with
    binary cross entropy as loss (PQL-D)."""
    policy_q: Literal["auto", "min", "mean", "first"] = "auto"
    """Reduction of the critics in the actor loss; auto is min with clipped double Q and mean without."""
    bootstrap_on_truncation: bool = True
    """Bootstrap at time limits; off only for tasks whose time limit is part of the task."""
    normalize_observations: bool = False
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
    actor_hidden: tuple[int, ...] = bounded((256, 256), low=1)
    """Widths of the hidden layers of the actor."""
    critic_hidden: tuple[int, ...] = bounded((256, 256), low=1)
    """Widths of the hidden layers; SimbaV2 takes one equal width per block."""
    activation: Activation = "relu"
    """Activation function of the MLPs."""
    layer_norm: bool = False
    """LayerNorm before each activation: more stable with small batches and many updates per step."""
    actor_init: float = bounded(0.01, low=0)
    """Standard deviation of the initial weights of the actor's output layer (MLP only)."""
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
    weight_decay: float = bounded(0.0, low=0)
    """Weight decay of AdamW; 0 for none."""
    max_grad_norm: float = bounded(0.0, low=0)
    """Clip gradients to this norm; 0 does not clip."""
    actor_carries_critic: bool = False
    """The policy holds the critics and returns values with its actions, from which actors compute initial
    priorities (Ape-X); these are the learner's priorities only where `atoms` is 0."""
    compile: CompileMode = False
    """Compile losses and gradients with torch.compile: half a minute once, then more updates per second with
    small networks on a CPU; needs a C++ compiler there. auto: during training, if measurements say that it
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
        """The factor of the policy's standard deviation in each env: 1 samples from the policy itself."""
        sampled = PerEpisodeUniform(1.0, self.noise_scale_max, logarithmic=True)
        return RandomStart(sampled, self.random_steps) if self.random_steps else sampled

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
        """Require continuous actions, a torso for images, a valid support and log_std_min < log_std_max."""
        if self.log_std_min >= self.log_std_max:
            return f"log_std_min {self.log_std_min:g} is not below log_std_max {self.log_std_max:g}"
        return (
            continuous_control_reason(spec, self.torso)
            or support_reason(self.atoms, self.v_min, self.v_max, self.normalize_rewards)
            or self.network(self.actor_hidden).unsupported_reason("actor_hidden")
            or self.network(self.critic_hidden).unsupported_reason("critic_hidden")
        )

    def unsplittable_reason(self, spec: EnvSpec) -> str | None:
        """Reject images."""
        return split_images_reason(spec)

    def policy(self, spec: EnvSpec) -> SACPolicy:
        """Build the policy alone, on the CPU."""
        return SACPolicy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> SAC:
        """Build the learner."""
        return SAC(spec, self, peers, device)

    def critic_learner(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> SACCriticLearner:
        """Build the critic learner alone."""
        return SACCriticLearner.standalone(self, spec, peers, device)

    def actor_learner(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> SACActorLearner:
        """Build the learner of actor and temperature alone."""
        return SACActorLearner.standalone(self, spec, peers, device)


class SACPolicy(Policy):
    """Encoder and normalizer of observations, tanh-Gaussian actor pi, and the temperature for the critics."""

    def __init__(self, spec: EnvSpec, cfg: SACConfig) -> None:
        super().__init__()
        assert isinstance(spec.action, Continuous)
        # The critic learner trains the encoder.
        self.encoder = ObservationEncoder(spec.shapes(), cfg.torso, orthogonal=True)
        # One normalizer over all columns serves actor and critics: the actor's columns come first.
        self.normalizer = Normalizer(self.encoder.columns)
        self.normalize = cfg.normalize_observations and self.encoder.columns > 0
        self.actor = GaussianActor(
            self.encoder.features - spec.width(PRIVILEGED),
            cfg.network(cfg.actor_hidden),
            spec.action.size,
            cfg.log_std_min,
            cfg.log_std_max,
            cfg.actor_init,
            cfg.trunk(self.encoder),
        )
        self.average_actor = AverageActor(self.actor, cfg.average_tau) if cfg.average_tau else None
        self.action_size = spec.action.size
        self.critic = build_critics(spec, cfg, self.encoder) if cfg.actor_carries_critic else None
        self.value = QReduction(cfg.q_reduction, cfg.atom_values())
        self.temperature = Temperature(cfg.alpha_init)
        self.held_noise = repeated_noise.HeldNoise(spec.action.size, cfg.noise_repeats, spec.episode_limit)

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

    def sample(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return reparameterised actions [B, A] for normalized observations, and log pi [B]."""
        mean, log_std = self.actor(x[:, : self.actor.inputs])
        return tanh_normal.sample(mean.float(), log_std.float())

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Return tanh(mean + explore * std * N(0, I)); where `explore` [B] is infinite, random actions.

        Where `explore` is 0, the mean is the averaged actor's.
        The value returned with an action is the soft one of the sample: Q - alpha log pi.
        """
        x = self.actor_input(obs)
        mean, log_std = self.actor(x[:, : self.actor.inputs])
        exploring, entropy_bonus = explore > 0, torch.zeros_like(explore)
        if self.average_actor is not None and not exploring.all():
            averaged, _ = self.average_actor(x[:, : self.actor.inputs])
            mean = torch.where(exploring.unsqueeze(-1), mean, averaged)
        action = mean.tanh()
        if exploring.any():
            unscaled, state = self.held_noise(state, exploring)
            random = explore.isinf()
            noise = unscaled * torch.where(random, 1.0, explore).unsqueeze(-1)
            u = torch.addcmul(mean, log_std.exp(), noise)
            sampled, log_prob = u.tanh(), tanh_normal.log_prob(u, noise, log_std)
            if random.any():
                sampled = torch.where(random.unsqueeze(-1), repeated_noise.uniform(unscaled), sampled)
            action = torch.where(exploring.unsqueeze(-1), sampled, action)
            entropy_bonus = torch.where(exploring, -self.temperature() * log_prob, entropy_bonus)
        if self.critic is None:
            return PolicyOutput(action, state)
        q = self.value(self.critic(x, action))
        return PolicyOutput(action, state, {"q": q, "value": q + entropy_bonus})


def build_critics(spec: EnvSpec, cfg: SACConfig, encoder: ObservationEncoder) -> Critics:
    """Build the critics Q_1..Q_C over (encoded observations, action)."""
    assert isinstance(spec.action, Continuous)
    inputs, trunk = encoder.features + spec.action.size, cfg.trunk(encoder)
    return Critics(inputs, cfg.network(cfg.critic_hidden), cfg.atoms or 1, cfg.critics, trunk)


def build_networks(spec: EnvSpec, cfg: SACConfig, device: str) -> tuple[SACPolicy, Critics]:
    """Build policy and critics in a fixed order: whole and split learners start with equal weights."""
    policy = cfg.policy(spec).to(device)
    return policy, policy.critic or build_critics(spec, cfg, policy.encoder).to(device)


class SACCriticLearner(LearnerState):
    """Regresses the critics on soft targets."""

    def __init__(self, cfg: SACConfig, policy: SACPolicy, critic: Critics, peers: Peers, device: str) -> None:
        self.cfg, self.policy, self.critic = cfg, policy, critic
        self.module: nn.Module = critic
        self.peer_module: nn.Module = policy
        self.atoms = cfg.atom_values(device)
        self.elementwise_min = cfg.clipped_double_q and cfg.categorical_min == "elementwise_min"
        trained = nn.ModuleList([critic, policy.encoder])
        self.optimizer = cfg.optimizer(device).build(trained, cfg.critic_lr, peers)
        self.target_critic = frozen_copy(critic)
        self.value_and_grad = value_and_grad(self.loss, trained.parameters(), device, cfg.compile, cfg.amp)
        self.updates = 0
        self.saved = {name: name for name in ("policy", "critic", "target_critic")}
        self.saved["critic_optimizer"] = "optimizer"

    @classmethod
    def standalone(cls, cfg: SACConfig, spec: EnvSpec, peers: Peers, device: str) -> Self:
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
        """Return y: values [C or 1, B], or distributions [C or 1, B, K] (eq. 3 and 5)."""
        # V(s') = Q'(s', a') - alpha log pi(a'|s') with a' ~ pi: the entropy term is added to the reward.
        next_action, log_prob = self.policy.sample(next_obs)
        next_q = self.target_critic(next_obs, next_action).float()  # [C, B, K]
        entropy_bonus = -self.policy.temperature() * log_prob
        reward = torch.addcmul(batch.reward, batch.discount, entropy_bonus)
        if self.atoms is None:
            values = next_q.squeeze(-1)
            if self.cfg.clipped_double_q:
                values = td.clipped_double(values).unsqueeze(0)
            return td.target(reward, batch.discount, values)
        # Distributional: shift atoms to r + gamma^n z, select the lower distribution, project it.
        shifted = categorical.bellman_shift(reward, batch.discount, self.atoms)  # [B, K]
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
        """Move the target critics by `tau` towards the online ones."""
        polyak_update(self.target_critic, self.critic, self.cfg.tau)


class SACActorLearner(LearnerState):
    """Moves the actor up the soft value and the temperature towards the target entropy."""

    def __init__(self, cfg: SACConfig, policy: SACPolicy, critic: Critics, peers: Peers, device: str) -> None:
        self.cfg, self.policy, self.critic, self.peers = cfg, policy, critic, peers
        self.module: nn.Module = policy
        self.peer_module: nn.Module = critic
        self.optimizer = cfg.optimizer(device).build(policy.actor, cfg.actor_lr, peers, cfg.policy_delay)
        # No weight decay: it would pull alpha towards 1.
        plain = dataclasses.replace(cfg.optimizer(device), weight_decay=0.0, max_grad_norm=0.0)
        self.alpha_optimizer = plain.build(policy.temperature, cfg.alpha_lr, peers, cfg.policy_delay)
        self.target_entropy = -cfg.target_entropy_ratio * policy.action_size
        # The critics only pass the gradient on, and the encoder learns from the critics' loss alone.
        frozen_modules = nn.ModuleList([critic, policy.encoder])
        self._frozen_parameters = [p for p in frozen_modules.parameters() if p.requires_grad]
        parameters = policy.actor.parameters()
        self.value_and_grad = value_and_grad(self.loss, parameters, device, cfg.compile, cfg.amp)
        self.updates = 0
        self.saved = {"policy": "policy", "critic": "critic", "actor_optimizer": "optimizer"}
        self.saved["alpha_optimizer"] = "alpha_optimizer"

    @classmethod
    def standalone(cls, cfg: SACConfig, spec: EnvSpec, peers: Peers, device: str) -> Self:
        """Build an actor learner with lagged copies of the critics that another host trains."""
        if reason := cfg.unsplittable_reason(spec):
            raise BadInput(f"{reason}.")
        policy, critic = build_networks(spec, cfg, device)
        return cls(cfg, policy, critic.requires_grad_(False), peers, device)

    def update(self, batch: Transition) -> UpdateResult:
        """Perform one update of actor and temperature; reads only `batch.obs`."""
        self.update_normalizer(batch.obs)
        return self.update_actor(batch.obs)

    def update_normalizer(self, obs: Obs) -> None:
        """Merge a batch into the normalizer's statistics; call once per update."""
        if self.policy.normalize and (weight := Normalizer.merge_weight(self.updates)):
            merge_batch(self.policy.normalizer, self.policy.encoder.vector(obs), weight, self.peers)
        self.updates += 1

    def loss(self, obs: Obs) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return mean(alpha log pi(a|s) - Q(s, a)), a ~ pi (eq. 9), log pi [B], saturated share."""
        x = self.policy.critic_input(obs)
        mean, log_std = self.policy.actor(x[:, : self.policy.actor.inputs])
        action, log_prob = tanh_normal.sample(mean.float(), log_std.float())
        saturation = (mean.detach().tanh().abs() > SATURATION_THRESHOLD).float().mean()
        q: Tensor = self.policy.value(self.critic(x, action).float())
        alpha = self.policy.temperature().detach()
        return (alpha * log_prob - q).mean(), (log_prob.detach(), saturation)

    def update_actor(self, obs: Obs) -> UpdateResult:
        """Perform one gradient step of the actor and one of the temperature."""
        with frozen(self._frozen_parameters):
            grads, loss, (log_prob, saturation) = self.value_and_grad(obs)
        skipped = self.optimizer.step(grads, loss)
        self.policy.actor.net.project()
        if self.policy.average_actor is not None:
            self.policy.average_actor.follow(self.policy.actor)
        metrics = {"loss/policy": loss, "policy/saturation": saturation, "count/skipped_updates": skipped}
        return UpdateResult(metrics | self.update_temperature(log_prob))

    def update_temperature(self, log_prob: Tensor) -> dict[str, Tensor]:
        """Step log alpha along its gradient H(pi) - target entropy (eq. 18); return the metrics."""
        entropy, alpha = -log_prob.mean(), self.policy.temperature().detach()
        # d/d(log alpha) of log alpha * (entropy - target): no graph is needed for one scalar.
        gradient = entropy - self.target_entropy
        log_alpha = self.policy.temperature.log_alpha.detach()
        self.alpha_optimizer.step([gradient], log_alpha * gradient)
        return {"policy/alpha": alpha, "policy/entropy": entropy}


class SAC(ActorCriticState):
    """Critic learner and actor learner on one host, sharing policy and critics."""

    def __init__(self, spec: EnvSpec, cfg: SACConfig, peers: Peers, device: str) -> None:
        self.cfg = cfg
        self.policy, self.critic = build_networks(spec, cfg, device)
        self.critic_learner = SACCriticLearner(cfg, self.policy, self.critic, peers, device)
        self.actor_learner = SACActorLearner(cfg, self.policy, self.critic, peers, device)
        self.target_critic = self.critic_learner.target_critic

    def update(self, batch: Transition) -> UpdateResult:
        """Perform one critic update and, on every `policy_delay`-th call, one of actor and temperature."""
        batch = shift_images(batch, self.policy.encoder.images, self.cfg.random_shift)
        self.actor_learner.update_normalizer(batch.obs)
        result = self.critic_learner.update_critic(batch)
        if self.critic_learner.updates % self.cfg.policy_delay == 0:
            skipped = result.metrics["count/skipped_updates"]
            result |= self.actor_learner.update_actor(batch.obs)
            result.metrics["count/skipped_updates"] += skipped
        self.critic_learner.update_targets()
        return result
