"""APPO: asynchronous PPO, in two kinds.

* behaviour: Petrenko et al. 2020, "Sample Factory" (2006.11751): the ratio is clipped against the policy that
  acted, and V-trace corrects the values for its lag.
* target: Luo et al. 2020, "IMPACT" (1912.00167), RLlib's APPO: ratio and V-trace are taken against a slowly
  updated target network, with a penalty of the KL divergence from it.

docs/explanation/algorithms/appo.md has the deviations from both codes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from troop.algorithms.actor_critic_policy import ActorCriticPolicy, evaluate_trajectory
from troop.algorithms.optim.learner_state import LearnerState
from troop.algorithms.optim.optimizer import OptimizerConfig
from troop.algorithms.optim.statistics import merge_batch
from troop.algorithms.optim.target import copy_parameters, frozen_copy
from troop.algorithms.optim.value_and_grad import value_and_grad
from troop.algorithms.requirements import (
    action_mask_reason,
    minibatch_reason,
    observation_reason,
    truncation_reason,
)
from troop.core.algorithm import UpdateResult
from troop.core.batch import Trajectory, TrajectorySpec
from troop.core.config import bounded
from troop.core.env import Continuous, EnvSpec
from troop.core.exploration import Exploration, LinearSchedule
from troop.core.peers import NO_PEERS, Peers
from troop.functional.distributions import Categorical
from troop.functional.gae import gae, with_final_values
from troop.functional.vtrace import vtrace
from troop.nets.activations import Activation
from troop.nets.actor_critic import ActorCriticConfig
from troop.nets.cnn import Torso
from troop.nets.normalizer import Normalizer
from troop.nets.recurrent import Core

MIN_RATIO, MAX_RATIO = 0.05, 20.0  # bounds of pi / mu before clipping (Sample Factory)
MAX_IMPORTANCE = 2.0  # upper bound of mu / pi_target (IMPACT)
MAX_SYMMETRIC_KL = 30.0  # of a minibatch (Sample Factory)
KL_FACTOR = 2.0  # coefficients change where the KL divergence is off its target by more than this
LR_FACTOR, LR_MIN, LR_MAX = 1.5, 1e-6, 1e-2
KL_COEF_MIN, KL_COEF_MAX = 1e-4, 1e4  # a weight of 0 or infinity could not recover
MAX_LOG_RATIO = 20.0  # of pi / pi_target: its exponential is finite, and so is the gradient of clipped rows


@dataclass(frozen=True)
class APPOConfig:
    """Hyperparameters; the defaults are Sample Factory's."""

    clip_against: Literal["behaviour", "target"] = "behaviour"
    """What the ratio is clipped against: the policy that acted, or a slowly updated target network."""
    rollout_length: int = bounded(32, low=1, high=100_000)
    """Steps per trajectory."""
    epochs: int = bounded(1, low=1, high=1000)
    """Passes over each batch."""
    minibatches: int = bounded(1, low=1)
    """Gradient steps per pass; the env streams of a batch are divided among them."""
    gamma: float = bounded(0.99, low=0, high=1)
    """Discount per step."""
    advantages: Literal["vtrace", "gae"] = "vtrace"
    """vtrace corrects for the lag of the data, in every minibatch with the current policy; gae does not."""
    gae_lambda: float = bounded(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation, and of the traces of V-trace."""
    rho_bar: float = bounded(1.0, above=0)
    """Upper bound of the importance weights of TD errors."""
    c_bar: float = bounded(1.0, above=0)
    """Upper bound of the importance weights of traces."""
    clip: float = bounded(0.1, above=0)
    """behaviour: the ratio is clipped to [1 / (1 + clip), 1 + clip]; target: to 1 +- clip."""
    max_policy_lag: int = bounded(1000, low=0)
    """Rows of policies that are more updates behind than this have no weight in the losses."""
    normalize_advantages: bool = True
    """Normalize advantages to mean 0 and standard deviation 1 in each minibatch."""
    value_clip: float = bounded(1.0, low=0)
    """Above 0: values may move away from those at the start of the update by at most this."""
    value_coef: float = bounded(0.5, low=0)
    """Weight of the value loss, which is half the squared error."""
    entropy_coef: float = bounded(0.003, low=0)
    """Weight of the exploration loss."""
    exploration_loss: Literal["entropy", "symmetric_kl"] = "entropy"
    """entropy: an entropy bonus; symmetric_kl: the symmetric KL divergence from uniformly random actions, at
    most 30, for discrete actions."""
    kl_coef: float = bounded(0.0, low=0)
    """Weight of the KL divergence; behaviour: KL(pi || mu) of the policy from the one that acted; target:
    KL(pi_T || pi) of the target network from the policy."""
    kl_target: float = bounded(0.0, low=0)
    """Above 0: kl_coef adapts after each update, x 1.5 if the divergence is above twice this, x 0.5 if it is
    below half of it."""
    desired_kl: float = bounded(0.0, low=0)
    """Above 0: the learning rate adapts after each minibatch, / 1.5 if KL(pi || mu) is above twice this and
    x 1.5 if it is below half of it; Sample Factory's value is 0.008. Only behaviour."""
    target_update_period: int = bounded(16, low=1)
    """Updates between copies of the policy into the target network; only with the target network."""
    lr: float = bounded(1e-4, above=0)
    """Learning rate of Adam."""
    anneal_steps: int = bounded(0, low=0)
    """Env steps over which the learning rate falls linearly to 0; 0 keeps it."""
    eps: float = bounded(1e-6, above=0)
    """Epsilon of Adam."""
    max_grad_norm: float = bounded(4.0, low=0)
    """Clip gradients to this norm; 0 does not clip."""
    normalize_observations: bool = True
    """Normalize vector observations by their running mean and standard deviation, clipped to +-10."""
    normalize_rewards: bool = True
    """Divide rewards by the running standard deviation of discounted returns, clipped to +-10."""
    hidden: tuple[int, ...] = bounded((64, 64), low=1)
    """Widths of the hidden layers of actor and critic, for vectors."""
    activation: Activation = "tanh"
    """Nonlinearity of the hidden layers."""
    core: Core = "none"
    """Recurrent layers give the policy memory."""
    core_size: int = bounded(512, low=1)
    """Width of each recurrent layer."""
    core_layers: int = bounded(1, low=1, high=16)
    """Number of recurrent layers."""
    net: Torso | str = "auto"
    """Torso for images; auto is nature from 36x36 pixels on, else small. Or your own network as
    module:function."""
    log_std_init: float | None = 0.0
    """Initial log standard deviation of continuous actions, which are in [-1, 1]; None: -0.25
    log(number of actions), so that the noise of many joints does not add up to large motions."""
    compile: bool = False
    """Compile the loss with torch.compile."""

    @property
    def experience(self) -> TrajectorySpec:
        """Trajectories of `length` steps."""
        return TrajectorySpec(self.rollout_length, self.gamma)

    @property
    def reuses_batches(self) -> bool:
        """True: ratios and V-trace correct for the age of a batch, at every use."""
        return self.advantages == "vtrace"

    @property
    def exploration(self) -> Exploration:
        """1: actions are sampled; 0 takes the most probable ones."""
        return LinearSchedule(1.0, 1.0, 0)

    @property
    def network(self) -> ActorCriticConfig:
        """Return the layers."""
        return ActorCriticConfig(
            self.hidden,
            self.activation,
            self.core,
            self.core_size,
            self.net,
            core_layers=self.core_layers,
        )

    @property
    def clip_range(self) -> tuple[float, float]:
        """Return the bounds of the ratio."""
        if self.clip_against == "behaviour":
            return 1 / (1 + self.clip), 1 + self.clip
        return 1 - self.clip, 1 + self.clip

    @property
    def behaviour_kl(self) -> bool:
        """Whether the KL divergence from the policy that acted is needed, and so that policy's outputs."""
        return self.clip_against == "behaviour" and bool(self.kl_coef or self.desired_kl)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Check observations, actions, action masks and the options of KL divergences."""
        if self.exploration_loss == "symmetric_kl" and isinstance(spec.action, Continuous):
            return "--exploration-loss symmetric_kl requires discrete actions; use entropy"
        if self.kl_target and not self.kl_coef:
            return "--kl-target adapts --kl-coef, which is 0"
        if self.desired_kl and self.clip_against == "target":
            return "--desired-kl requires --clip-against behaviour; use --kl-target"
        if self.desired_kl and self.anneal_steps:
            return "--desired-kl and --anneal-steps both set the learning rate; set one of them to 0"
        return (
            truncation_reason(self.rho_bar, self.c_bar)
            or observation_reason(spec, self.net, False)
            or action_mask_reason(spec)
        )

    def indivisible_reason(self, streams: int) -> str | None:
        """Check that the env streams of a batch divide into minibatches."""
        return minibatch_reason(self.minibatches, streams, "env streams", self.rollout_length, streams)

    def policy(self, spec: EnvSpec) -> ActorCriticPolicy:
        """Build the policy alone, on the CPU."""
        return ActorCriticPolicy(
            spec, self.network, self.normalize_observations, self.log_std_init, self.behaviour_kl
        )

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> APPO:
        """Build the learner."""
        return APPO(spec, self, peers, device)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Some env streams of a batch, with what was computed before its first gradient step."""

    trajectory: Trajectory
    reward: Tensor  # [T, B], scaled
    weight: Tensor  # [T, B]: 1 for steps of a recent policy, else 0
    old_value: Tensor  # [T, B]
    old_outputs: Tensor  # [T x B, P] of the policy at the start of the update, or of the target network
    old_log_prob: Tensor  # [T, B] of the same
    kl_coef: Tensor  # []


class APPO(LearnerState):
    """Maximises the clipped surrogate objective over trajectories of lagged policies."""

    saved = {"policy": "policy", "optimizer": "optimizer"}  # noqa: RUF012

    def __init__(self, spec: EnvSpec, cfg: APPOConfig, peers: Peers, device: str) -> None:
        self.cfg, self.peers, self.device = cfg, peers, device
        self.policy = cfg.policy(spec).to(device)
        self.target = frozen_copy(self.policy) if cfg.clip_against == "target" else None
        if self.target is not None:
            self.target.normalizer = self.policy.normalizer  # both read the same inputs
        self.return_scale = Normalizer(1, eps=1e-4).to(device) if cfg.normalize_rewards else None
        config = OptimizerConfig(device, max_grad_norm=cfg.max_grad_norm, eps=cfg.eps)
        self.optimizer = config.build(self.policy, cfg.lr, peers)
        self.value_and_grad = value_and_grad(self.loss, self.policy.parameters(), device, cfg.compile)
        self.updates, self.env_steps, self.lr, self.kl_coef = 0, 0, cfg.lr, cfg.kl_coef

    def loss(self, batch: Minibatch) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return -L_clip + value_coef L_value + entropy_coef L_explore + kl_coef KL, and metrics.

        behaviour: ratio = pi / mu. target: ratio = min(mu / pi_T, 2) pi / mu, which is pi / pi_T if mu is not
        far from the target policy pi_T.
        """
        cfg, distribution, trajectory = self.cfg, self.policy.distribution, batch.trajectory
        outputs, values, final_values = evaluate_trajectory(self.policy, trajectory)
        log_prob = distribution.log_prob(outputs, trajectory.action.flatten(0, 1)).view_as(batch.weight)
        behaviour = trajectory.extras["log_prob"]
        total = batch.weight.sum().clamp_min(1.0)

        def mean(x: Tensor) -> Tensor:
            return (x.view_as(batch.weight) * batch.weight).sum() / total

        log_ratio = log_prob - behaviour
        if cfg.clip_against == "target":
            corrected = batch.old_log_prob - behaviour  # pi_T / mu, for V-trace
            log_importance = (-corrected).clamp_max(math.log(MAX_IMPORTANCE))
            ratio = (log_importance + log_ratio).clamp_max(MAX_LOG_RATIO).exp()
        else:
            corrected = log_ratio.detach()
            ratio = log_ratio.clamp(math.log(MIN_RATIO), math.log(MAX_RATIO)).exp()
        v, advantage = self.targets(batch, corrected, values, final_values)
        if cfg.normalize_advantages:
            deviation = (advantage - mean(advantage)) * batch.weight
            advantage = deviation / (deviation.square().sum() / total).sqrt().clamp_min(1e-7)
        low, high = cfg.clip_range
        policy_loss = -mean(torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage))
        value = values[:-1]
        error = (value - v).square()
        if cfg.value_clip:
            near = batch.old_value + (value - batch.old_value).clamp(-cfg.value_clip, cfg.value_clip)
            error = torch.maximum(error, (near - v).square())
        value_loss, entropy = 0.5 * mean(error), mean(distribution.entropy(outputs))
        exploration = -entropy
        if cfg.exploration_loss == "symmetric_kl" and isinstance(distribution, Categorical):
            exploration = mean(distribution.symmetric_kl_from_uniform(outputs)).clamp_max(MAX_SYMMETRIC_KL)
        if cfg.behaviour_kl:
            kl = mean(distribution.kl(outputs, trajectory.extras["outputs"].flatten(0, 1)))
        else:
            kl = mean(distribution.kl(batch.old_outputs, outputs))
        loss = policy_loss + cfg.value_coef * value_loss + cfg.entropy_coef * exploration + batch.kl_coef * kl
        outside = mean(((ratio < low) | (ratio > high)).float())
        metrics = (policy_loss, value_loss, entropy, kl, outside, mean(log_ratio.abs()), mean(v))
        return loss, tuple(x.detach() for x in metrics)

    @torch.no_grad()
    def targets(
        self, batch: Minibatch, log_ratio: Tensor, values: Tensor, final_values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return value targets and advantages [T, B] by V-trace or GAE."""
        trajectory, cfg = batch.trajectory, self.cfg
        valid = trajectory.valid.float()
        next_value = with_final_values(values, final_values, trajectory.final_index)
        rows = (batch.reward * valid, trajectory.discount, values[:-1] * valid, next_value)
        trace = valid * (~trajectory.ended)
        if cfg.advantages == "gae":
            advantage = gae(*rows, trace, cfg.gae_lambda)
            return advantage + values[:-1], advantage
        return vtrace(log_ratio, *rows, trace, cfg.rho_bar, cfg.c_bar, cfg.rho_bar, cfg.gae_lambda)

    def minibatches(self, batch: Trajectory, reward: Tensor, weight: Tensor) -> Iterator[Minibatch]:
        """Yield the minibatches of all epochs; each epoch has a new permutation of the env streams."""
        streams, count = len(batch), self.cfg.minibatches
        with torch.no_grad():
            outputs, values, _ = evaluate_trajectory(self.policy, batch)
            if self.target is not None:
                outputs, _, _ = evaluate_trajectory(self.target, batch)
            log_prob = self.policy.distribution.log_prob(outputs, batch.action.flatten(0, 1))
        outputs, log_prob = outputs.view(batch.length, streams, -1), log_prob.view(batch.length, streams)
        for _ in range(self.cfg.epochs):
            for index in torch.randperm(streams, device=reward.device).tensor_split(count):
                yield Minibatch(
                    batch.columns(index),
                    reward[:, index],
                    weight[:, index],
                    values[:-1, index],
                    outputs[:, index].flatten(0, 1),
                    log_prob[:, index],
                    torch.tensor(self.kl_coef, device=reward.device),
                )

    def update(self, batch: Trajectory) -> UpdateResult:
        """Make `epochs` passes over the batch, then merge its statistics and update the target network."""
        normalizer, metrics = self.policy.normalizer, {}
        lag = self.updates - batch.extras["version"]
        weight = (batch.valid & (lag <= self.cfg.max_policy_lag)).float()
        if self.cfg.anneal_steps:
            self.lr = self.cfg.lr * max(0.0, 1 - self.env_steps / self.cfg.anneal_steps)
            self.optimizer.set_learning_rate(self.lr)
        if normalizer is None or normalizer.count:
            skipped = torch.zeros(())
            names = ("loss/policy", "loss/critic", "policy/entropy", "policy/kl", "policy/clip_fraction")
            for minibatch in self.minibatches(batch, self.rewards(batch), weight):
                grads, loss, values = self.value_and_grad(minibatch)
                skipped = skipped + self.optimizer.step(grads, loss)
                self._adapt_learning_rate(values[3])
                metrics = dict(zip((*names, "policy/log_ratio", "value/mean"), values, strict=True))
            stale = (batch.valid.float() - weight).sum()
            metrics |= {"count/skipped_updates": skipped, "policy/stale_rows": stale}
            metrics |= self._adapt_kl_coef(metrics["policy/kl"])
            if self.cfg.desired_kl or self.cfg.anneal_steps:
                metrics["policy/learning_rate"] = torch.tensor(self.lr)
        self.updates += 1
        self.env_steps += round(float(self.peers.mean(batch.valid.float().sum())) * self.peers.size)
        if normalizer is not None:
            x = self.policy.vector({name: x[:-1][batch.valid] for name, x in batch.obs.items()})
            assert x is not None
            merge_batch(normalizer, x, 1, self.peers)
        if self.target is not None and self.updates % self.cfg.target_update_period == 0:
            copy_parameters(self.target, self.policy)
        return UpdateResult(metrics)

    def _adapt_learning_rate(self, kl: Tensor) -> None:
        """Change the learning rate if the KL divergence of the last minibatch is far from `desired_kl`."""
        if self.cfg.desired_kl:
            self.lr = adapt_learning_rate(self.lr, float(self.peers.mean(kl)), self.cfg.desired_kl)
            self.optimizer.set_learning_rate(self.lr)

    def _adapt_kl_coef(self, kl: Tensor) -> dict[str, Tensor]:
        """Change the weight of the KL divergence if that of the last minibatch is far from `kl_target`."""
        if not self.cfg.kl_target:
            return {}
        self.kl_coef = adapt_kl_coef(self.kl_coef, float(self.peers.mean(kl)), self.cfg.kl_target)
        return {"policy/kl_coef": torch.tensor(self.kl_coef)}

    @torch.no_grad()
    def rewards(self, batch: Trajectory) -> Tensor:
        """Return the rewards that are learned from."""
        if self.return_scale is None:
            return batch.reward
        returns = batch.extras["episode_return"][batch.valid].unsqueeze(-1)
        merge_batch(self.return_scale, returns, 1, self.peers, "returns")
        return (batch.reward * self.return_scale.scale).clamp(-10, 10)

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimizer, statistics, adapted coefficients and the number of updates."""
        scale = None if self.return_scale is None else self.return_scale.state_dict()
        target = None if self.target is None else self.target.state_dict()
        adapted = {"lr": self.lr, "kl_coef": self.kl_coef, "env_steps": self.env_steps}
        return super().state_dict() | adapted | {"return_scale": scale, "target": target}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        super().load_state_dict(state)
        if self.return_scale is not None and state["return_scale"] is not None:
            self.return_scale.load_state_dict(state["return_scale"])
        if self.target is not None and state["target"] is not None:
            self.target.load_state_dict(state["target"])
        self.env_steps = int(state.get("env_steps", 0))
        if self.cfg.desired_kl:
            self.lr = float(state.get("lr", self.lr))
            self.optimizer.set_learning_rate(self.lr)
        if self.cfg.kl_target:
            self.kl_coef = float(state.get("kl_coef", self.kl_coef))


def adapt_learning_rate(lr: float, kl: float, desired_kl: float) -> float:
    """Return the learning rate after a minibatch with this KL divergence (Sample Factory)."""
    if kl > KL_FACTOR * desired_kl:
        return max(LR_MIN, lr / LR_FACTOR)
    return min(LR_MAX, lr * LR_FACTOR) if kl < desired_kl / KL_FACTOR else lr


def adapt_kl_coef(kl_coef: float, kl: float, kl_target: float) -> float:
    """Return the weight of the KL divergence after an update with this divergence (RLlib)."""
    if kl > KL_FACTOR * kl_target:
        return min(KL_COEF_MAX, 1.5 * kl_coef)
    return max(KL_COEF_MIN, 0.5 * kl_coef) if kl < kl_target / KL_FACTOR else kl_coef
