"""IMPALA: Espeholt et al. 2018, "Scalable Distributed Deep-RL with Importance Weighted Actor-Learner ...".

Actors collect trajectories with lagged policies; V-trace corrects for the lag. One trajectory, one gradient
step. docs/explanation/algorithms/impala.md has the deviations from the paper and its codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from troop.algorithms.actor_critic_policy import ActorCriticPolicy, evaluate_trajectory
from troop.algorithms.optim.learner_state import LearnerState
from troop.algorithms.optim.optimizer import OptimizerConfig, OptimizerKind
from troop.algorithms.optim.statistics import merge_batch
from troop.algorithms.optim.value_and_grad import value_and_grad
from troop.algorithms.requirements import action_mask_reason, observation_reason, truncation_reason
from troop.core.algorithm import UpdateResult
from troop.core.batch import Trajectory, TrajectorySpec
from troop.core.config import bounded
from troop.core.env import EnvSpec
from troop.core.exploration import Exploration, LinearSchedule
from troop.core.peers import NO_PEERS, Peers
from troop.functional.gae import with_final_values
from troop.functional.vtrace import vtrace
from troop.nets.activations import Activation
from troop.nets.actor_critic import ActorCriticConfig
from troop.nets.cnn import Torso
from troop.nets.normalizer import Normalizer
from troop.nets.recurrent import Core

RewardClip = Literal["none", "abs_one", "soft_asymmetric"]


@dataclass(frozen=True)
class ImpalaConfig:
    """Hyperparameters; the defaults are those of the paper's Atari experiments (table G.1)."""

    unroll_length: int = bounded(20, low=1, high=100_000)
    """Steps per trajectory."""
    gamma: float = bounded(0.99, low=0, high=1)
    """Discount per step."""
    correction: Literal["vtrace", "none"] = "vtrace"
    """none treats the data as that of the current policy; for experiments."""
    rho_bar: float = bounded(1.0, above=0)
    """Upper bound of the importance weights of TD errors; it decides the fixed point of the values."""
    c_bar: float = bounded(1.0, above=0)
    """Upper bound of the importance weights of traces; it decides the speed of learning."""
    pg_rho_bar: float = bounded(1.0, above=0)
    """Upper bound of the importance weights of the policy gradient."""
    trace_lambda: float = bounded(1.0, low=0, high=1)
    """Multiplies the traces only (remark 2)."""
    baseline_cost: float = bounded(0.5, low=0)
    """Weight of the value loss, which is half the squared error."""
    entropy_cost: float = bounded(0.01, low=0)
    """Weight of the entropy bonus."""
    reduction: Literal["sum", "mean"] = "sum"
    """Losses are summed over steps and envs, as in the paper, or averaged."""
    reward_clip: RewardClip = "none"
    """abs_one clips to [-1, 1]; soft_asymmetric is 5 tanh(r / 5), times 0.3 if negative (DMLab-30)."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of discounted returns, clipped to +-10."""
    normalize_observations: bool = False
    """Normalize vector observations by their running mean and standard deviation, clipped to +-10."""
    optimizer: OptimizerKind = "rmsprop_tf"
    """rmsprop_tf has epsilon inside the square root, as the paper's code; rmsprop is PyTorch's."""
    lr: float = bounded(6e-4, above=0)
    """Learning rate."""
    eps: float = bounded(0.01, above=0)
    """Epsilon of the optimizer."""
    decay: float = bounded(0.99, low=0, below=1)
    """Decay rate of RMSProp's running means."""
    max_grad_norm: float = bounded(40.0, low=0)
    """Clip gradients to this norm; 0 does not clip."""
    anneal_steps: int = bounded(0, low=0)
    """Env steps over which the learning rate falls linearly to 0; 0 keeps it."""
    hidden: tuple[int, ...] = bounded((64, 64), low=1)
    """Widths of the hidden layers of actor and critic, for vectors."""
    activation: Activation = "tanh"
    """Nonlinearity of the hidden layers."""
    core: Core = "none"
    """Recurrent layers give the policy memory."""
    core_size: int = bounded(256, low=1)
    """Width of each recurrent layer."""
    core_layers: int = bounded(1, low=1, high=16)
    """Number of recurrent layers."""
    net: Torso | str = "auto"
    """Torso for images; auto is nature from 36x36 pixels on, else small; impala is the paper's deep one. Or
    your own network as module:function."""
    torso_features: int = bounded(256, low=1)
    """Width of the layer after the torsos."""
    log_std_init: float | None = 0.0
    """Initial log standard deviation of continuous actions, which are in [-1, 1]; None: -0.25
    log(number of actions), so that the noise of many joints does not add up to large motions."""
    compile: bool = False
    """Compile the loss with torch.compile."""

    @property
    def experience(self) -> TrajectorySpec:
        """Trajectories of `length` steps."""
        return TrajectorySpec(self.unroll_length, self.gamma)

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
            self.torso_features,
            self.core_layers,
        )

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Check observations, actions and action masks."""
        return (
            truncation_reason(self.rho_bar, self.c_bar)
            or observation_reason(spec, self.net, False)
            or action_mask_reason(spec)
        )

    def policy(self, spec: EnvSpec) -> ActorCriticPolicy:
        """Build the policy alone, on the CPU."""
        return ActorCriticPolicy(spec, self.network, self.normalize_observations, self.log_std_init)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> Impala:
        """Build the learner."""
        return Impala(spec, self, peers, device)


class Impala(LearnerState):
    """Follows the V-trace policy gradient, one step per batch of trajectories."""

    saved = {"policy": "policy", "optimizer": "optimizer"}  # noqa: RUF012

    def __init__(self, spec: EnvSpec, cfg: ImpalaConfig, peers: Peers, device: str) -> None:
        self.cfg, self.peers, self.device = cfg, peers, device
        self.policy = cfg.policy(spec).to(device)
        self.return_scale = Normalizer(1, eps=1e-4).to(device) if cfg.normalize_rewards else None
        config = OptimizerConfig(
            device, max_grad_norm=cfg.max_grad_norm, kind=cfg.optimizer, eps=cfg.eps, decay=cfg.decay
        )
        self.optimizer = config.build(self.policy, cfg.lr, peers)
        self.value_and_grad = value_and_grad(self.loss, self.policy.parameters(), device, cfg.compile)
        self.updates, self.env_steps = 0, 0

    def loss(self, batch: Trajectory, reward: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the policy gradient, value and entropy losses together, and metrics.

        L = sum_t -log pi(a_t|x_t) A_t + baseline_cost / 2 (v_t - V_t)^2 - entropy_cost H(pi(.|x_t)).
        """
        cfg, distribution = self.cfg, self.policy.distribution
        outputs, values, final_values = evaluate_trajectory(self.policy, batch)
        valid = batch.valid.float()
        log_prob = distribution.log_prob(outputs, batch.action.flatten(0, 1)).view_as(valid)
        log_ratio = log_prob.detach() - batch.extras["log_prob"]
        value = values[:-1]
        with torch.no_grad():
            next_value = with_final_values(values, final_values, batch.final_index)
            v, advantage = vtrace(
                log_ratio if cfg.correction == "vtrace" else torch.zeros_like(log_ratio),
                reward * valid,
                batch.discount,
                value * valid,
                next_value,
                valid * (~batch.ended),
                cfg.rho_bar,
                cfg.c_bar,
                cfg.pg_rho_bar,
                cfg.trace_lambda,
            )
        total = valid.sum().clamp_min(1.0)
        scale = total if cfg.reduction == "mean" else torch.ones_like(total)
        policy_loss = -(log_prob * advantage * valid).sum() / scale
        value_loss = 0.5 * ((v - value).square() * valid).sum() / scale
        entropy = (distribution.entropy(outputs).view_as(valid) * valid).sum()
        loss = policy_loss + cfg.baseline_cost * value_loss - cfg.entropy_cost * entropy / scale
        rho = log_ratio.exp()
        metrics = (
            policy_loss.detach() * scale / total,
            value_loss.detach() * scale / total,
            entropy.detach() / total,
            (log_ratio.abs() * valid).sum() / total,
            ((rho > cfg.rho_bar).float() * valid).sum() / total,
            (v * valid).sum() / total,
        )
        return loss, metrics

    @torch.no_grad()
    def rewards(self, batch: Trajectory) -> Tensor:
        """Return the rewards that are learned from: clipped or scaled."""
        reward = batch.reward
        if self.return_scale is not None:
            returns = batch.extras["episode_return"][batch.valid].unsqueeze(-1)
            merge_batch(self.return_scale, returns, 1, self.peers, "returns")
            reward = (reward * self.return_scale.scale).clamp(-10, 10)
        return clip_rewards(reward, self.cfg.reward_clip)

    def update(self, batch: Trajectory) -> UpdateResult:
        """Make one gradient step, then merge the observation statistics."""
        cfg, normalizer = self.cfg, self.policy.normalizer
        if cfg.anneal_steps:
            self.optimizer.set_learning_rate(cfg.lr * max(0.0, 1 - self.env_steps / cfg.anneal_steps))
        if normalizer is None or normalizer.count:
            grads, loss, metrics = self.value_and_grad(batch, self.rewards(batch))
            skipped = self.optimizer.step(grads, loss)
            names = (
                "loss/policy",
                "loss/critic",
                "policy/entropy",
                "policy/log_ratio",
                "policy/clip_fraction",
            )
            result = dict(zip((*names, "value/mean"), metrics, strict=True)) | {
                "count/skipped_updates": skipped
            }
        else:  # the first batch only initialises the statistics: the policy acted without them
            result = {}
        self.updates += 1
        self.env_steps += round(float(self.peers.mean(batch.valid.sum().float())) * self.peers.size)
        if normalizer is not None:
            x = self.policy.vector({name: x[:-1][batch.valid] for name, x in batch.obs.items()})
            assert x is not None
            merge_batch(normalizer, x, 1, self.peers)
        return UpdateResult(result)

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimizer, statistics and counts."""
        scale = None if self.return_scale is None else self.return_scale.state_dict()
        return super().state_dict() | {"return_scale": scale, "env_steps": self.env_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        super().load_state_dict(state)
        if self.return_scale is not None and state["return_scale"] is not None:
            self.return_scale.load_state_dict(state["return_scale"])
        self.env_steps = int(state["env_steps"])


def clip_rewards(reward: Tensor, mode: RewardClip) -> Tensor:
    """Return rewards clipped as `reward_clip` describes."""
    if mode == "abs_one":
        return reward.clamp(-1, 1)
    if mode == "soft_asymmetric":
        squeezed = 5 * torch.tanh(reward / 5)
        return torch.where(reward < 0, 0.3 * squeezed, squeezed)
    return reward
