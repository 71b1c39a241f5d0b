"""UNREAL: Jaderberg et al. 2016, "Reinforcement Learning with Unsupervised Auxiliary Tasks".

An actor-critic with n-step returns (A3C, or A2C with several envs) whose network also learns three auxiliary
tasks from a small replay: pixel control, reward prediction and value replay.
docs/explanation/algorithms/unreal.md has the deviations from the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from troop.algorithms.actor_critic_policy import ActorCriticPolicy
from troop.algorithms.optim.learner_state import LearnerState
from troop.algorithms.optim.optimizer import OptimizerConfig, OptimizerKind
from troop.algorithms.optim.statistics import merge_batch
from troop.algorithms.optim.value_and_grad import value_and_grad
from troop.algorithms.requirements import action_mask_reason, observation_reason
from troop.algorithms.trajectory_replay import RewardSample, TrajectoryReplay
from troop.core.algorithm import UpdateResult
from troop.core.batch import Trajectory, TrajectorySpec, select_state
from troop.core.config import bounded
from troop.core.env import Discrete, EnvSpec
from troop.core.exploration import Exploration, LinearSchedule
from troop.core.peers import NO_PEERS, Peers
from troop.functional.gae import gae, with_final_values
from troop.functional.pixel_control import cell_grid, pixel_change
from troop.functional.vtrace import vtrace
from troop.nets.activations import Activation
from troop.nets.actor_critic import ActorCriticConfig
from troop.nets.auxiliary_heads import FRAMES, PixelControlHead, RewardPredictionHead
from troop.nets.cnn import TORSOS, Torso, to_unit_range
from troop.nets.normalizer import Normalizer
from troop.nets.recurrent import Core

MAX_ACTIONS = 256  # for which pixel control has a value in each cell
MIN_SIDE = 3  # pixels of an image for pixel control
TERMS = (
    "loss/policy",
    "loss/critic",
    "policy/entropy",
    "value/mean",
    "loss/pixel_control",
    "loss/reward_prediction",
    "loss/value_replay",
)  # of the loss, as metrics


@dataclass(frozen=True)
class UnrealConfig:
    """Hyperparameters; the defaults are those of the paper's Labyrinth experiments (appendix B)."""

    unroll_length: int = bounded(20, low=1, high=100_000)
    """Steps per trajectory."""
    gamma: float = bounded(0.99, low=0, high=1)
    """Discount per step."""
    value_coef: float = bounded(0.5, low=0)
    """Weight of the value loss, which is half the squared error."""
    entropy_coef: float = bounded(0.001, low=0)
    """Weight of the entropy bonus."""
    pixel_control_coef: float = bounded(0.05, low=0)
    """Weight of pixel control, summed over the cells of the image; 0 leaves it out."""
    reward_prediction_coef: float = bounded(1.0, low=0)
    """Weight of reward prediction; 0 leaves it out."""
    value_replay_coef: float = bounded(1.0, low=0)
    """Weight of value replay, which is half the squared error; 0 leaves it out."""
    pixel_control_gamma: float = bounded(0.9, low=0, high=1)
    """Discount of the pseudo-rewards of pixel control."""
    pixel_cells: int = bounded(20, low=MIN_SIDE, high=100)
    """Cells of pixel control along each side of the image; fewer if it has fewer pixels."""
    reward_prediction_hidden: int = bounded(128, low=1)
    """Width of the hidden layer of reward prediction."""
    replay_length: int = bounded(2000, low=1)
    """Newest steps of each env that the auxiliary tasks learn from."""
    reduction: Literal["sum", "mean"] = "sum"
    """Losses are summed over the steps of a batch, as in the paper, or divided by their number."""
    clip_rewards: bool = True
    """Clip rewards to [-1, 1]."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of discounted returns, clipped to +-10."""
    normalize_observations: bool = False
    """Normalize vector observations by their running mean and standard deviation, clipped to +-10."""
    optimizer: OptimizerKind = "rmsprop_tf"
    """rmsprop_tf has epsilon inside the square root, as TensorFlow does."""
    lr: float = bounded(7e-4, above=0)
    """Learning rate."""
    eps: float = bounded(0.1, above=0)
    """Epsilon of the optimizer."""
    decay: float = bounded(0.99, low=0, below=1)
    """Decay rate of RMSProp's running means."""
    max_grad_norm: float = bounded(40.0, low=0)
    """Clip gradients to this norm; 0 does not clip."""
    anneal_steps: int = bounded(0, low=0)
    """Env steps over which the learning rate falls linearly to 0; 0 keeps it."""
    hidden: tuple[int, ...] = bounded((64, 64), low=1)
    """Widths of the hidden layers, for vectors: one before the core, the others after it."""
    activation: Activation = "tanh"
    """Nonlinearity of the hidden layers."""
    core: Core = "lstm"
    """The recurrent layers; with images there may be none."""
    core_size: int = bounded(256, low=1)
    """Width of each recurrent layer."""
    core_layers: int = bounded(1, low=1, high=16)
    """Number of recurrent layers."""
    net: Torso = "auto"
    """Torso for images; auto is nature from 36x36 pixels on, else small; nips is the paper's."""
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
        """Check observations, actions, action masks, and that the auxiliary tasks share layers."""
        if (
            self.core == "none"
            and not spec.images
            and (self.reward_prediction_coef or self.value_replay_coef)
        ):
            return "without images the auxiliary tasks share only the layer before the core; use --core lstm"
        if ":" in self.net:
            return f"net is {self.net}; the auxiliary tasks need a torso of Troop ({', '.join(TORSOS)})"
        return observation_reason(spec, self.net, False) or action_mask_reason(spec)

    def pixel_control_reason(self, spec: EnvSpec) -> str | None:
        """Return why pixel control does not apply to the env; None if it does."""
        if not spec.images:
            return "it has no images"
        if min(spec.obs[spec.images[0]].shape[1:]) < MIN_SIDE:
            return f"its image has less than {MIN_SIDE}x{MIN_SIDE} pixels"
        if not isinstance(spec.action, Discrete) or spec.action.choices > MAX_ACTIONS:
            return f"it has no discrete actions, or more than {MAX_ACTIONS}"
        return None

    def notes(self, spec: EnvSpec) -> list[str]:
        """Return a sentence for the user if pixel control does not apply."""
        reason = self.pixel_control_reason(spec) if self.pixel_control_coef else None
        rest = "reward prediction and value replay are the auxiliary tasks"
        return [f"pixel control does not apply to {spec.id}: {reason}; {rest}"] if reason else []

    def policy(self, spec: EnvSpec) -> ActorCriticPolicy:
        """Build the policy alone, on the CPU."""
        return ActorCriticPolicy(spec, self.network, self.normalize_observations, self.log_std_init)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> Unreal:
        """Build the learner."""
        return Unreal(spec, self, peers, device)


@dataclass(frozen=True, slots=True)
class Unroll:
    """Results of the network on a trajectory of T steps of B streams with K final observations."""

    features: Tensor  # [(T + 1) x B, F], of which policy, value and pixel control are functions
    values: Tensor  # [T + 1, B]
    final_features: Tensor  # [K, F]
    final_values: Tensor  # [K]


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """What the auxiliary tasks learn from in one update."""

    trajectory: Trajectory
    reward: Tensor  # [T, B], clipped or scaled
    rewards: RewardSample | None


class Unreal(LearnerState):
    """Follows the gradient of the actor-critic and of the auxiliary tasks together, one step per batch."""

    saved = {"policy": "policy", "heads": "heads", "optimizer": "optimizer"}  # noqa: RUF012
    own_state = ("replay",)

    def __init__(self, spec: EnvSpec, cfg: UnrealConfig, peers: Peers, device: str) -> None:
        self.cfg, self.peers, self.device = cfg, peers, device
        self.policy = cfg.policy(spec).to(device)
        self.heads = auxiliary_heads(cfg, spec, self.policy).to(device)
        self.image = spec.images[0] if "pixel_control" in self.heads else ""
        self.channels = spec.obs[self.image].frame[0] if self.image else 0
        self.return_scale = Normalizer(1, eps=1e-4).to(device) if cfg.normalize_rewards else None
        uses_replay = bool(len(self.heads) or cfg.value_replay_coef)
        self.replay = (
            TrajectoryReplay(math.ceil(cfg.replay_length / cfg.unroll_length)) if uses_replay else None
        )
        module = nn.ModuleList((self.policy, self.heads))
        config = OptimizerConfig(
            device, max_grad_norm=cfg.max_grad_norm, kind=cfg.optimizer, eps=cfg.eps, decay=cfg.decay
        )
        self.optimizer = config.build(module, cfg.lr, peers)
        self.value_and_grad = value_and_grad(self.loss, module.parameters(), device, cfg.compile)
        self.updates, self.env_steps = 0, 0

    def loss(
        self, batch: Trajectory, reward: Tensor, replay: ReplayBatch | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return L = L_A3C + lambda_PC L_PC + lambda_RP L_RP + lambda_VR L_VR (equation 5), and its terms.

        L_A3C = sum_t -log pi(a_t|s_t) (R_t - V_t) + value_coef / 2 (R_t - V_t)^2 - entropy_coef H(pi(.|s_t)).
        R_t are V-trace targets: the n-step returns if the policy that acted is the current one, as in A3C.
        """
        cfg, distribution = self.cfg, self.policy.distribution
        unroll, valid = unroll_trajectory(self.policy, batch), batch.valid.float()
        obs = {name: x[:-1].flatten(0, 1) for name, x in batch.obs.items()}
        outputs = self.policy.distribution_outputs(unroll.features[: valid.numel()], obs)
        log_prob = distribution.log_prob(outputs, batch.action.flatten(0, 1)).view_as(valid)
        returns, advantage = vtrace_targets(batch, reward, unroll, log_prob.detach())
        value = unroll.values[:-1]
        policy_loss = -(log_prob * advantage * valid).sum()
        value_loss = 0.5 * ((returns - value).square() * valid).sum()
        entropy = (distribution.entropy(outputs).view_as(valid) * valid).sum()
        loss = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy
        auxiliary = () if replay is None else self.auxiliary_losses(replay)
        weights = (cfg.pixel_control_coef, cfg.reward_prediction_coef, cfg.value_replay_coef)
        for weight, term in zip(weights, auxiliary, strict=False):
            loss = loss + weight * term
        total = valid.sum().clamp_min(1.0)
        metrics = (policy_loss, value_loss, entropy, (returns * valid).sum(), *auxiliary)
        return loss / total if cfg.reduction == "mean" else loss, tuple(x.detach() / total for x in metrics)

    def auxiliary_losses(self, replay: ReplayBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses of pixel control, reward prediction and value replay; 0 for those left out."""
        zero = replay.reward.new_zeros(())
        pixel_control = reward_prediction = value_replay = zero
        if self.image or self.cfg.value_replay_coef:
            batch, unroll = replay.trajectory, unroll_trajectory(self.policy, replay.trajectory)
            if self.image:
                pixel_control = self.pixel_control_loss(batch, unroll)
            returns = n_step_returns(batch, replay.reward, unroll)
            value_replay = 0.5 * ((returns - unroll.values[:-1]).square() * batch.valid).sum()
        if "reward_prediction" in self.heads and replay.rewards is not None:
            reward_prediction = self.reward_prediction_loss(replay.rewards)
        return pixel_control, reward_prediction, value_replay

    def pixel_control_loss(self, batch: Trajectory, unroll: Unroll) -> Tensor:
        """Return sum 1/2 (R - Q(s_t, a_t))^2 over steps and cells, with n-step returns R (equation 3)."""
        head, steps = self.heads["pixel_control"], batch.valid.numel()
        q = head(unroll.features)
        action = batch.action.view(-1, 1, 1, 1).expand(-1, 1, *q.shape[2:])
        taken = q[:steps].gather(1, action).view(batch.length, -1)
        with torch.no_grad():
            best = q.amax(1).view(batch.length + 1, -1)
            final = head(unroll.final_features).amax(1)
            returns = self.pixel_control_returns(batch, best, final)
        error = (returns - taken).square().view(*batch.valid.shape, -1)
        loss: Tensor = 0.5 * (error.sum(-1) * batch.valid).sum()
        return loss

    def pixel_control_returns(self, batch: Trajectory, best: Tensor, final: Tensor) -> Tensor:
        """Return R [T, B x cells] from the best values [T + 1, B x cells], final ones [K, rows, columns].

        The frame after a termination is not always recorded; where it is not, the pseudo-reward is 0.
        """
        frames = to_unit_range(batch.obs[self.image][..., -self.channels :, :, :])
        finals = to_unit_range(batch.final_obs[self.image][..., -self.channels :, :, :])
        successors = frames[1:].flatten(0, 1).clone()
        successors[batch.final_index] = finals
        known = ~batch.started[1:].flatten()
        known[batch.final_index] = True
        change = pixel_change(frames[:-1].flatten(0, 1), successors, self.cfg.pixel_cells)
        reward = (change * (known & batch.valid.flatten()).view(-1, 1, 1)).view(batch.length, -1)
        cells = change[0].numel()
        next_best = best[1:].clone()
        next_best.view(-1, cells)[batch.final_index] = final.flatten(1)

        def per_cell(x: Tensor) -> Tensor:
            return x.float().repeat_interleave(cells, 1)

        discount = self.cfg.pixel_control_gamma * per_cell(batch.discount > 0)
        value = best[:-1] * per_cell(batch.valid)
        return gae(reward, discount, value, next_best, per_cell(batch.valid & ~batch.ended), 1.0) + value

    def reward_prediction_loss(self, sample: RewardSample) -> Tensor:
        """Return the cross-entropy of the class of the next reward, from features before the core."""
        flat = {name: x.flatten(0, 1) for name, x in sample.obs.items()}
        features = frame_features(self.policy, flat).view(len(sample.label), FRAMES, -1)
        logits = self.heads["reward_prediction"](features)
        return functional.cross_entropy(logits, sample.label, reduction="sum")

    @torch.no_grad()
    def rewards(self, batch: Trajectory, merge: bool = True) -> Tensor:
        """Return the rewards that are learned from; `merge` adds their returns to the scale, if any."""
        reward = batch.reward
        if self.return_scale is not None:
            if merge:
                returns = batch.extras["episode_return"][batch.valid].unsqueeze(-1)
                merge_batch(self.return_scale, returns, 1, self.peers, "returns")
            reward = (reward * self.return_scale.scale).clamp(-10, 10)
        return reward.clamp(-1, 1) if self.cfg.clip_rewards else reward

    def sample_replay(self, batch: Trajectory) -> ReplayBatch | None:
        """Store the batch; return what the auxiliary tasks learn from, None if there are none."""
        if self.replay is None:
            return None
        self.replay.add(batch)
        trajectory = self.replay.sample()
        rewards = self.replay.sample_rewards(len(batch)) if "reward_prediction" in self.heads else None
        return ReplayBatch(trajectory, self.rewards(trajectory, merge=False), rewards)

    def update(self, batch: Trajectory) -> UpdateResult:
        """Make one gradient step, then merge the observation statistics."""
        cfg, normalizer, metrics = self.cfg, self.policy.normalizer, {}
        if cfg.anneal_steps:
            self.optimizer.set_learning_rate(cfg.lr * max(0.0, 1 - self.env_steps / cfg.anneal_steps))
        if normalizer is None or normalizer.count:  # else the policy acted without statistics
            reward = self.rewards(batch)
            grads, loss, terms = self.value_and_grad(batch, reward, self.sample_replay(batch))
            metrics = dict(zip(TERMS, terms, strict=False))
            metrics["count/skipped_updates"] = self.optimizer.step(grads, loss)
        self.updates += 1
        self.env_steps += round(float(self.peers.mean(batch.valid.sum().float())) * self.peers.size)
        if normalizer is not None:
            x = self.policy.vector({name: x[:-1][batch.valid] for name, x in batch.obs.items()})
            assert x is not None
            merge_batch(normalizer, x, 1, self.peers)
        return UpdateResult(metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimizer, statistics, counts and the replay."""
        scale = None if self.return_scale is None else self.return_scale.state_dict()
        replay = None if self.replay is None else self.replay.state_dict()
        return super().state_dict() | {"return_scale": scale, "env_steps": self.env_steps, "replay": replay}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        super().load_state_dict(state)
        if self.return_scale is not None and state["return_scale"] is not None:
            self.return_scale.load_state_dict(state["return_scale"])
        if self.replay is not None and state["replay"] is not None:
            self.replay.load_state_dict(state["replay"], self.device)
        self.env_steps = int(state["env_steps"])


def auxiliary_heads(cfg: UnrealConfig, spec: EnvSpec, policy: ActorCriticPolicy) -> nn.ModuleDict:
    """Return the heads of the auxiliary tasks that are learned."""
    net, heads = policy.net, nn.ModuleDict()
    if cfg.pixel_control_coef and cfg.pixel_control_reason(spec) is None:
        assert isinstance(spec.action, Discrete)
        _, height, width = spec.obs[spec.images[0]].shape
        cells, _ = cell_grid(height, width, cfg.pixel_cells)
        features = cfg.torso_features if net.core is None else net.core.size
        heads["pixel_control"] = PixelControlHead(features, spec.action.choices, cells)
    if cfg.reward_prediction_coef:
        features = net.encoder.image_features or cfg.hidden[0]
        heads["reward_prediction"] = RewardPredictionHead(features, cfg.reward_prediction_hidden)
    return heads


def frame_features(policy: ActorCriticPolicy, obs: dict[str, Tensor]) -> Tensor:
    """Return features [N, F] of single observations: those of the torsos or, for vectors, of the layer."""
    if policy.net.encoder.images:
        features: Tensor = policy.net.encoder({name: obs[name] for name in policy.net.encoder.images})
        return features
    return policy.net.encode(policy.inputs(obs)[0])


def unroll_trajectory(policy: ActorCriticPolicy, batch: Trajectory) -> Unroll:
    """Return features and values of all observations, from the recurrent state at the first entry."""
    obs = {name: x.flatten(0, 1) for name, x in batch.obs.items()}
    x, privileged = policy.inputs(obs)
    features, states = policy.features(x, batch.state, batch.started)
    values = policy.net.values(features, privileged).view(batch.length + 1, -1)
    final_features, final_values = features[:0], features.new_zeros(0)
    if len(batch.final_index):
        state = select_state(states, batch.final_index)  # after the step that the time limit cut off
        started = torch.zeros(1, len(batch.final_index), dtype=torch.bool, device=values.device)
        x, privileged = policy.inputs(batch.final_obs)
        final_features, _ = policy.features(x, state, started)
        final_values = policy.net.values(final_features, privileged)
    return Unroll(features, values, final_features, final_values)


@torch.no_grad()
def vtrace_targets(
    batch: Trajectory, reward: Tensor, unroll: Unroll, log_prob: Tensor
) -> tuple[Tensor, Tensor]:
    """Return value targets and advantages [T, B], corrected for the lag of the policy that acted."""
    valid = batch.valid.float()
    next_value = with_final_values(unroll.values, unroll.final_values, batch.final_index)
    value, trace = unroll.values[:-1] * valid, valid * ~batch.ended
    log_ratio = log_prob - batch.extras["log_prob"]
    return vtrace(log_ratio, reward * valid, batch.discount, value, next_value, trace)


@torch.no_grad()
def n_step_returns(batch: Trajectory, reward: Tensor, unroll: Unroll) -> Tensor:
    """Return R_t = r_t + gamma R_{t+1} [T, B], from V where the trajectory or an episode is cut off."""
    valid = batch.valid.float()
    next_value = with_final_values(unroll.values, unroll.final_values, batch.final_index)
    value, trace = unroll.values[:-1] * valid, valid * ~batch.ended
    return gae(reward * valid, batch.discount, value, next_value, trace, 1.0) + value
