"""PPO: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", and its special case A2C.

With one epoch, one minibatch and no clipping the gradient is that of A2C (Mnih et al. 2016, synchronous). The
massively parallel variant (Rudin et al. 2022) adapts the learning rate to the KL divergence and clips the
gradients of actor and critic separately. docs/explanation/algorithms/ppo.md has the deviations from the
reference codes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from troop.algorithms.actor_critic_policy import ActorCriticPolicy, evaluate_trajectory
from troop.algorithms.optim.learner_state import LearnerState
from troop.algorithms.optim.optimizer import OptimizerConfig, OptimizerKind
from troop.algorithms.optim.statistics import merge_batch
from troop.algorithms.optim.value_and_grad import value_and_grad
from troop.algorithms.requirements import action_mask_reason, minibatch_reason, observation_reason
from troop.core.algorithm import UpdateResult
from troop.core.batch import State, Trajectory, TrajectorySpec, select_state
from troop.core.config import bounded
from troop.core.env import EnvSpec, Obs
from troop.core.exploration import Exploration, LinearSchedule
from troop.core.peers import NO_PEERS, Peers
from troop.functional.gae import gae, with_final_values
from troop.nets.activations import Activation
from troop.nets.actor_critic import ActorCriticConfig
from troop.nets.cnn import Torso
from troop.nets.normalizer import Normalizer
from troop.nets.recurrent import Core

KL_FACTOR = 2.0  # the learning rate changes where the KL divergence is off its target by more than this
LR_FACTOR = 1.5  # by which it changes
LR_MIN, LR_MAX = 1e-5, 1e-2
LR_MAX_IMAGES = (
    1e-3  # steps of 1e-2 make all units of a convolution negative, from where ReLU has no gradient
)
MAX_LOG_RATIO = 20.0  # of pi / pi_old: its exponential is finite, and so is the gradient of clipped rows


@dataclass(frozen=True)
class PPOConfig:
    """Hyperparameters; the defaults are those of the paper's Atari experiments, for vectors."""

    rollout_length: int = bounded(128, low=1, high=100_000)
    """Vector steps per rollout."""
    epochs: int = bounded(4, low=1, high=1000)
    """Passes over each rollout."""
    minibatches: int = bounded(4, low=1)
    """Gradient steps per epoch; the rows of a rollout are divided among them, with a core its envs."""
    gamma: float = bounded(0.99, low=0, high=1)
    """Discount per step."""
    gae_lambda: float = bounded(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation; 1 is the Monte Carlo return."""
    clip: float = bounded(0.2, low=0)
    """The ratio of new to old probabilities is clipped to 1 +- this; 0 does not clip (A2C)."""
    value_clip: float = bounded(0.0, low=0)
    """Above 0: values may change by at most this in one update, as in OpenAI's code."""
    value_coef: float = bounded(0.5, low=0)
    """Weight of the value loss, which is half the squared error."""
    entropy_coef: float = bounded(0.01, low=0)
    """Weight of the entropy bonus."""
    normalize_advantages: Literal["minibatch", "batch", "none"] = "minibatch"
    """Where advantages are normalized to mean 0 and standard deviation 1."""
    target_kl: float = bounded(0.0, low=0)
    """Above 0: stop the update of a rollout once the KL divergence of a minibatch exceeds this."""
    optimizer: OptimizerKind = "adam"
    """rmsprop_tf has epsilon inside the square root, as TensorFlow does (A2C, A3C)."""
    lr: float = bounded(2.5e-4, above=0)
    """Learning rate."""
    eps: float = bounded(1e-5, above=0)
    """Epsilon of the optimizer."""
    decay: float = bounded(0.99, low=0, below=1)
    """Decay rate of RMSProp's running means."""
    max_grad_norm: float = bounded(0.5, low=0)
    """Clip gradients to this norm; 0 does not clip."""
    separate_grad_clip: bool = False
    """Clip the gradients of actor and critic separately; for networks without shared layers."""
    desired_kl: float = bounded(0.0, low=0)
    """Above 0: adapt the learning rate, so that the KL divergence of an update stays near this."""
    adapt_lr: Literal["minibatch", "update"] = "minibatch"
    """When the learning rate adapts: after each minibatch (Rudin et al. 2022), or once after all of them, so
    that all minibatches of an update count alike."""
    lr_max: float | None = bounded(None, low=LR_MIN)
    """Highest adapted learning rate; None: 1e-2, with images 1e-3."""
    anneal_steps: int = bounded(0, low=0)
    """Env steps over which the learning rate falls linearly to 0; 0 keeps it."""
    anneal_clip: bool = False
    """Let `clip` fall with the learning rate."""
    normalize_observations: bool = True
    """Normalize vector observations by their running mean and standard deviation, clipped to +-10."""
    normalize_rewards: bool = True
    """Divide rewards by the running standard deviation of discounted returns, clipped to +-10."""
    hidden: tuple[int, ...] = bounded((64, 64), low=1)
    """Widths of the hidden layers of actor and critic."""
    activation: Activation = "tanh"
    """Nonlinearity of the hidden layers."""
    core: Core = "none"
    """Recurrent layers give the policy memory; minibatches then are sequences of whole envs."""
    core_size: int = bounded(128, low=1)
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

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Check observations and actions, and that no two settings contradict each other."""
        if self.separate_grad_clip and (self.core != "none" or spec.images):
            return "separate_grad_clip needs an actor and a critic without shared layers"
        if self.desired_kl and self.anneal_steps:
            return "--desired-kl and --anneal-steps both set the learning rate; set one of them to 0"
        if self.anneal_clip and not self.anneal_steps:
            return "--anneal-clip needs --anneal-steps above 0; without them pass --no-anneal-clip"
        return observation_reason(spec, self.net, False) or action_mask_reason(spec)

    def indivisible_reason(self, streams: int) -> str | None:
        """Check that the rows of a rollout, with a core its env streams, divide into minibatches."""
        whole_streams = self.core != "none"
        rows = streams if whole_streams else streams * self.rollout_length
        return minibatch_reason(
            self.minibatches, rows, "env streams" if whole_streams else "rows", self.rollout_length, streams
        )

    def policy(self, spec: EnvSpec) -> ActorCriticPolicy:
        """Build the policy alone, on the CPU."""
        return ActorCriticPolicy(spec, self.network, self.normalize_observations, self.log_std_init)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> PPO:
        """Build the learner."""
        return PPO(spec, self, peers, device)


@dataclass(frozen=True, slots=True)
class RolloutRows:
    """Rows [N, ...] of one rollout with what the update needs; with a core N = T x B and in this order."""

    obs: Obs
    action: Tensor
    log_prob: Tensor  # of the policy that acted
    outputs: Tensor  # of its action distribution, [N, P]
    value: Tensor  # before the update
    advantage: Tensor
    target: Tensor  # of the value
    weight: Tensor  # 1 for steps, 0 for rows that are not
    state: State = None  # [B, ...]
    started: Tensor | None = None  # [T, B]


class PPO(LearnerState):
    """Maximises the clipped surrogate objective over the minibatches of each rollout."""

    saved = {"policy": "policy", "optimizer": "optimizer"}  # noqa: RUF012

    def __init__(self, spec: EnvSpec, cfg: PPOConfig, peers: Peers, device: str) -> None:
        self.cfg, self.peers, self.device = cfg, peers, device
        self.policy = cfg.policy(spec).to(device)
        self.return_scale = Normalizer(1, eps=1e-4).to(device) if cfg.normalize_rewards else None
        config = OptimizerConfig(
            device, max_grad_norm=cfg.max_grad_norm, kind=cfg.optimizer, eps=cfg.eps, decay=cfg.decay
        )
        groups = clip_groups(self.policy) if cfg.separate_grad_clip else []
        self.optimizer = config.build(self.policy, cfg.lr, peers, clip_groups=groups)
        self.value_and_grad = value_and_grad(self.loss, self.policy.parameters(), device, cfg.compile)
        self.lr, self.updates, self.env_steps = cfg.lr, 0, 0
        self.lr_max = cfg.lr_max or (LR_MAX_IMAGES if spec.images else LR_MAX)

    def loss(self, rows: RolloutRows, clip: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return L = -L_clip + c_v L_value - c_e H over the rows, and KL, clip fraction and its three terms.

        L_clip = E min(r A, clip(r, 1 - eps, 1 + eps) A) with r = pi(a|s) / pi_old(a|s) (equation 7).
        """
        cfg, distribution = self.cfg, self.policy.distribution
        outputs, value, _ = self.policy(rows.obs, rows.state, rows.started)
        weight = rows.weight / rows.weight.sum().clamp_min(1.0)

        def mean(x: Tensor) -> Tensor:
            return x @ weight

        advantage = rows.advantage
        log_prob = distribution.log_prob(outputs, rows.action)
        if cfg.clip:
            ratio = (log_prob - rows.log_prob).clamp_max(MAX_LOG_RATIO).exp()
            clipped = ratio.clamp(1 - clip, 1 + clip)
            policy_loss = -mean(torch.minimum(ratio * advantage, clipped * advantage))
            outside = mean(((ratio.detach() - 1).abs() > clip).float())
        else:
            policy_loss, outside = -mean(log_prob * advantage), clip.new_zeros(())
        error = (value - rows.target).square()
        if cfg.value_clip:
            near = rows.value + (value - rows.value).clamp(-cfg.value_clip, cfg.value_clip)
            error = torch.maximum(error, (near - rows.target).square())
        value_loss, fixed = 0.5 * mean(error), outputs.detach()
        entropy = mean(distribution.entropy(outputs if cfg.entropy_coef else fixed))
        loss = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy
        kl = mean(distribution.kl(rows.outputs, fixed))
        return loss, (kl, outside, policy_loss.detach(), value_loss.detach(), entropy.detach())

    @torch.no_grad()
    def prepare(self, batch: Trajectory) -> RolloutRows:
        """Return the rows of the trajectory with values, advantages and value targets."""
        reward = batch.reward
        if self.return_scale is not None:
            returns = batch.extras["episode_return"][batch.valid].unsqueeze(-1)
            merge_batch(self.return_scale, returns, 1, self.peers, "returns")
            reward = (reward * self.return_scale.scale).clamp(-10, 10)
        outputs, values, final_values = evaluate_trajectory(self.policy, batch)
        valid = batch.valid.float()
        next_value = with_final_values(values, final_values, batch.final_index)
        value = values[:-1]
        trace = valid * (~batch.ended)
        advantage = gae(reward * valid, batch.discount, value * valid, next_value, trace, self.cfg.gae_lambda)
        rows = {
            "log_prob": batch.extras["log_prob"],
            "value": value,
            "advantage": advantage,
            "target": advantage + value,
            "weight": valid,
        }
        if self.cfg.normalize_advantages == "batch":
            normalized = normalize(advantage.flatten(), valid.flatten(), self.peers)
            rows["advantage"] = normalized.view_as(advantage)
        flat: dict[str, Any] = {name: x.flatten(0, 1) for name, x in rows.items()}
        obs = {name: x[:-1].flatten(0, 1) for name, x in batch.obs.items()}
        return RolloutRows(obs, batch.action.flatten(0, 1), outputs=outputs, **flat)

    def update(self, batch: Trajectory) -> UpdateResult:
        """Make `epochs` passes over the trajectory in minibatches, then merge its observation statistics.

        The first trajectory only initialises the statistics, if there are any: a policy that acted without
        them would learn from other inputs than those it acted on.
        """
        normalizer = self.policy.normalizer
        if normalizer is not None and not normalizer.count:
            self.merge_observations(batch)
            return UpdateResult({"policy/gradient_steps": torch.zeros(())})
        self.updates += 1
        rows = self.prepare(batch)
        self._anneal()
        clip = torch.tensor(self.cfg.clip * (self.lr_fraction if self.cfg.anneal_clip else 1.0))
        metrics: dict[str, Tensor] = {}
        steps, skipped = 0, torch.zeros(())
        divergence = torch.zeros(())  # of the last minibatch but the first, at which it is 0
        for minibatch in self.minibatches(rows, batch):
            grads, _, (kl, outside, policy_loss, value_loss, entropy) = self.value_and_grad(
                self.with_normalized_advantages(minibatch), clip.to(self.device)
            )
            if self.cfg.target_kl or self.cfg.desired_kl:
                kl = self.peers.mean(kl)  # all copies take the same decision
            divergence = kl if steps else divergence
            stop = bool(self.cfg.target_kl) and bool(kl > self.cfg.target_kl)
            if not stop:
                skipped = skipped + self.optimizer.step(grads, policy_loss + value_loss)
            if self.cfg.adapt_lr == "minibatch":
                self._adapt_learning_rate(divergence)
            if stop:
                break
            steps += 1
            metrics = {
                "loss/policy": policy_loss,
                "loss/critic": value_loss,
                "policy/entropy": entropy,
                "policy/kl": kl,
                "policy/clip_fraction": outside,
            }
        if self.cfg.adapt_lr == "update":
            self._adapt_learning_rate(divergence)
        self.env_steps += round(float(self.peers.mean(rows.weight.sum())) * self.peers.size)
        if normalizer is not None:
            self.merge_observations(batch)
        metrics |= {
            "value/mean": (rows.target * rows.weight).sum() / rows.weight.sum().clamp_min(1.0),
            "value/explained_variance": explained_variance(rows.value, rows.target, rows.weight),
            "policy/learning_rate": torch.tensor(self.lr),
            "policy/gradient_steps": torch.tensor(float(steps)),
            "count/skipped_updates": skipped,
        }
        return UpdateResult(metrics)

    def minibatches(self, rows: RolloutRows, batch: Trajectory) -> Any:  # noqa: ANN401
        """Yield the minibatches of all epochs; each epoch has a new permutation of the rows or envs.

        Their number does not depend on the length of the rollout, which copies of the learner rely on.
        """
        count = self.cfg.minibatches
        for _ in range(self.cfg.epochs):
            if self.policy.net.core is None:
                order = torch.randperm(len(rows.weight), device=rows.weight.device)
                for index in order.tensor_split(count):
                    yield select_rows(rows, index)
            else:
                order = torch.randperm(len(batch), device=rows.weight.device)
                for index in order.tensor_split(count):
                    yield select_streams(rows, batch, index)

    def with_normalized_advantages(self, rows: RolloutRows) -> RolloutRows:
        """Return the minibatch, with normalized advantages if they are normalized per minibatch."""
        if self.cfg.normalize_advantages != "minibatch":
            return rows
        return dataclasses.replace(rows, advantage=normalize(rows.advantage, rows.weight, self.peers))

    @torch.no_grad()
    def merge_observations(self, batch: Trajectory) -> None:
        """Merge the observations of the steps into the running statistics."""
        assert self.policy.normalizer is not None
        x = self.policy.vector({name: x[:-1][batch.valid] for name, x in batch.obs.items()})
        assert x is not None
        merge_batch(self.policy.normalizer, x, 1, self.peers)

    @property
    def lr_fraction(self) -> float:
        """Fraction of the learning rate that is left by annealing."""
        return max(0.0, 1 - self.env_steps / self.cfg.anneal_steps) if self.cfg.anneal_steps else 1.0

    def _anneal(self) -> None:
        if self.cfg.anneal_steps:
            self.lr = self.cfg.lr * self.lr_fraction
            self.optimizer.set_learning_rate(self.lr)

    def _adapt_learning_rate(self, kl: Tensor) -> None:
        """Change the learning rate if the KL divergence of the last minibatch is far from its target."""
        if not self.cfg.desired_kl:
            return
        self.lr = adapt_learning_rate(self.lr, float(kl), self.cfg.desired_kl, self.lr_max)
        self.optimizer.set_learning_rate(self.lr)

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimizer, statistics, learning rate and counts."""
        scale = None if self.return_scale is None else self.return_scale.state_dict()
        return super().state_dict() | {"return_scale": scale, "lr": self.lr, "env_steps": self.env_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        super().load_state_dict(state)
        if self.return_scale is not None and state["return_scale"] is not None:
            self.return_scale.load_state_dict(state["return_scale"])
        self.lr, self.env_steps = float(state["lr"]), int(state["env_steps"])
        self.optimizer.set_learning_rate(self.lr)


def clip_groups(policy: ActorCriticPolicy) -> list[list[int]]:
    """Return the indices of the critic's parameters and of all others, in the order of `parameters()`."""
    names = [name for name, _ in policy.named_parameters()]
    critic = [index for index, name in enumerate(names) if name.startswith("net.critic")]
    return [critic, [index for index in range(len(names)) if index not in critic]]


def adapt_learning_rate(lr: float, kl: float, desired_kl: float, lr_max: float = LR_MAX) -> float:
    """Return the learning rate after a minibatch with this KL divergence (Rudin et al. 2022)."""
    if kl > KL_FACTOR * desired_kl:
        return max(LR_MIN, lr / LR_FACTOR)
    if 0 < kl < desired_kl / KL_FACTOR:
        return min(max(lr, lr_max), lr * LR_FACTOR)
    return lr


def normalize(x: Tensor, weight: Tensor, peers: Peers) -> Tensor:
    """Return (x [N] - mean) / (std + 1e-8) over the rows with weight 1 of all copies of the learner."""
    count, total = (peers.mean(torch.stack((weight.sum(), x @ weight))) * peers.size).unbind()
    count = count.clamp_min(2.0)
    centred = x - total / count
    squares = peers.mean(centred.square() @ weight) * peers.size
    return centred / ((squares / (count - 1)).sqrt() + 1e-8)


def explained_variance(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return 1 - Var(target - value) / Var(target); 1 is a perfect critic, 0 a constant one.

    Rows of weight 0 do not count. 0 if all targets are equal, for instance because there is only one row.
    """
    total = weight.sum().clamp_min(1.0)

    def variance(x: Tensor) -> Tensor:
        mean = (x * weight).sum() / total
        return ((x - mean).square() * weight).sum() / total

    spread = variance(target)
    return torch.where(spread > 0, 1 - variance(target - value) / spread.clamp_min(1e-12), 0.0)


def select_rows(rows: RolloutRows, index: Tensor) -> RolloutRows:
    """Return the rows `index`."""
    names = ("action", "log_prob", "outputs", "value", "advantage", "target", "weight")
    return RolloutRows(
        {name: x.index_select(0, index) for name, x in rows.obs.items()},
        **{name: getattr(rows, name).index_select(0, index) for name in names},
    )


def select_streams(rows: RolloutRows, batch: Trajectory, index: Tensor) -> RolloutRows:
    """Return all steps of the env streams `index`, with the recurrent state before the first."""
    steps, streams = batch.length, len(batch)
    flat = (torch.arange(steps, device=index.device).unsqueeze(1) * streams + index).flatten()
    return dataclasses.replace(
        select_rows(rows, flat),
        state=select_state(batch.state, index),
        started=batch.started[:-1, index],
    )
