"""C51: Bellemare, Dabney, Munos 2017, "A Distributional Perspective on Reinforcement Learning" (1707.06887).

DQN whose network outputs a categorical distribution over returns per action. Deviations from paper and
reference code: docs/explanation/algorithms/c51.md. Double, dueling, noisy and n-step variants: rainbow.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from troop.algorithms.optim import (
    LearnerState,
    OptimizerConfig,
    copy_parameters,
    frozen_copy,
    merge_batch,
    polyak_update,
    value_and_grad,
)
from troop.algorithms.requirements import discrete_control_reason, privileged_names, support_reason
from troop.core.algorithm import CompileMode, Policy, PolicyOutput, UpdateResult
from troop.core.batch import NStep, State, Transition
from troop.core.config import bounded
from troop.core.env import Discrete, EnvSpec, Obs
from troop.core.exploration import Exploration, LinearSchedule
from troop.core.peers import NO_PEERS, Peers
from troop.functional import categorical, td
from troop.functional.epsilon_greedy import EpsilonGreedy
from troop.functional.repeated_noise import longest_repeat
from troop.nets.cnn import Torso
from troop.nets.encoder import Inputs
from troop.nets.normalizer import Normalizer
from troop.nets.q_network import QNetwork


@dataclass(frozen=True)
class C51Config:
    """The paper's Atari hyperparameters, in env steps and updates instead of emulator frames."""

    renamed_fields: ClassVar[dict[str, str]] = {"target_period": "target_update_period"}  # of older runs

    gamma: float = bounded(0.99, low=0, high=1)
    """Discount factor."""
    n_step: int = bounded(1, low=1, high=64)
    """Steps of reward before the bootstrap; the paper has 1."""
    atoms: int = bounded(51, low=2, high=4096)
    """Atoms of the return distribution."""
    v_min: float = -10.0
    """Lower end of the support of the atoms."""
    v_max: float = 10.0
    """Support of the atoms: cover all returns; values outside are clipped to its ends."""
    normalize_rewards: bool = False
    """Scale rewards by a running estimate of the return's magnitude, so that returns fit the support."""
    target_update_period: int = bounded(2500, low=1)
    """Updates between copies of the online network into the target network, if `tau` is 0."""
    tau: float = bounded(0.0, low=0, high=1)
    """Above 0: Polyak coefficient of the target network, applied at every update instead of copies."""
    optimizer: Literal["adam", "rmsprop", "rmsprop_tf"] = "adam"
    """rmsprop_tf has epsilon inside the square root, as TensorFlow does."""
    lr: float = bounded(2.5e-4, above=0)
    """Learning rate."""
    eps: float = bounded(0.01 / 32, above=0)
    """Epsilon of the optimizer."""
    decay: float = bounded(0.95, low=0, below=1)
    """Decay rate of RMSProp's running means."""
    centered: bool = True
    """RMSProp divides by the standard deviation of the gradient instead of its root mean square."""
    max_grad_norm: float = bounded(0.0, low=0)
    """Clip gradients to this norm; 0 does not clip."""
    weight_decay: float = bounded(0.0, low=0)
    """Weight decay of the optimizer; 0 for none."""
    epsilon_start: float = bounded(1.0, low=0, high=1)
    """Probability of a random action at the start."""
    epsilon_end: float = bounded(0.01, low=0, high=1)
    """Probability of a random action after `epsilon_steps`."""
    epsilon_steps: int = bounded(1_000_000, low=0)
    """Env steps, over all envs, in which epsilon decreases linearly from start to end; in Gorila updates of
    all learners."""
    epsilon_delay: int = bounded(0, low=0)
    """Env steps, over all envs, before epsilon begins to decrease; in Gorila updates of all learners."""
    epsilon_repeats: int = bounded(1, low=0, high=10_000)
    """Largest number of steps for which a random action is repeated, with P(k) proportional to k^-2
    (temporally-extended epsilon-greedy); 1 never repeats it; 0: the time limit."""
    net: Torso | str = "auto"
    """Torso for images; auto is nature from 36x36 pixels on, else small; nips is the one of 2013. Or your own
    network as module:function."""
    hidden: tuple[int, ...] = bounded((512,), low=1)
    """Widths of the hidden layers after the torso."""
    layer_norm: bool = False
    """LayerNorm in the hidden layers after the torso: more stable with small networks and large steps."""
    bootstrap_on_truncation: bool = True
    """Bootstrap at time limits; off only for tasks whose time limit is part of the task."""
    normalize_observations: bool = False
    """Normalize vector observations by their running mean and standard deviation."""

    compile: CompileMode = False
    """Compile the loss with torch.compile; auto decides during training whether it pays."""

    @property
    def experience(self) -> NStep:
        """n-step transitions, with rewards scaled to the support if `normalize_rewards` is set."""
        bound = min(abs(self.v_min), abs(self.v_max)) if self.normalize_rewards else None
        return NStep(self.n_step, self.gamma, self.bootstrap_on_truncation, bound)

    @property
    def exploration(self) -> Exploration:
        """Linearly decreasing epsilon."""
        return LinearSchedule(self.epsilon_start, self.epsilon_end, self.epsilon_steps, self.epsilon_delay)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Require discrete actions, vector or image observations, and a valid support."""
        return support_reason(
            self.atoms, self.v_min, self.v_max, self.normalize_rewards
        ) or discrete_control_reason(spec, self.net, self.normalize_observations)

    def unread_observations(self, spec: EnvSpec) -> list[str]:
        """Return the names of observations that the network does not read."""
        return privileged_names(spec)

    def policy(self, spec: EnvSpec) -> C51Policy:
        """Build the policy alone, on the CPU."""
        return C51Policy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> C51:
        """Build the learner."""
        return C51(spec, self, peers, device)


class C51Policy(Policy):
    """The online network, its support and its observation normalizer, if any; acts epsilon-greedily on means.

    It returns no values with its actions: actors could compute |TD error| from them, while the learner's
    priorities are KL divergences, on another scale. New rows enter the replay with the maximum priority.
    """

    support: Tensor

    def __init__(self, spec: EnvSpec, cfg: C51Config) -> None:
        super().__init__()
        assert isinstance(spec.action, Discrete)
        self.epsilon_greedy = EpsilonGreedy(
            spec.action.choices, longest_repeat(cfg.epsilon_repeats, spec.episode_limit, 1.0)
        )
        self.q = QNetwork(
            spec.shapes(privileged=False),
            spec.action.choices,
            cfg.hidden,
            cfg.net,
            cfg.atoms,
            layer_norm=cfg.layer_norm,
        )
        self.normalizer = Normalizer(self.q.encoder.columns) if cfg.normalize_observations else None
        support = torch.linspace(cfg.v_min, cfg.v_max, cfg.atoms)
        self.register_buffer("support", support, persistent=False)

    def initial_state(self, rows: int) -> State:
        """Return the state of repeated random actions; None if they are not repeated."""
        return self.epsilon_greedy.initial_state(rows)

    def network_input(self, obs: Obs) -> Inputs:
        """Return images and vectors as the network takes them, vectors normalized if enabled."""
        return self.q.encoder.select(obs, self.normalizer)

    def values(self, logits: Tensor) -> Tensor:
        """Return Q [B, A], the means of the distributions with logits [B, A, K]."""
        return categorical.mean(logits.softmax(-1), self.support)

    def forward(self, x: Inputs) -> Tensor:
        """Return Q(x, .) [B, A] for normalized observations."""
        return self.values(self.q(x))

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Return epsilon-greedy actions; `explore` [B] is each row's epsilon."""
        action = self(self.network_input(obs)).argmax(1)
        if explore.any():
            action, state = self.epsilon_greedy(action, explore, state)
        return PolicyOutput(action, state)


class C51(LearnerState):
    """Minimises the cross entropy between projected target distributions and those of the online network."""

    saved = {"policy": "policy", "target_q": "target_q", "optimizer": "optimizer"}  # noqa: RUF012

    def __init__(self, spec: EnvSpec, cfg: C51Config, peers: Peers, device: str) -> None:
        self.cfg, self.peers = cfg, peers
        self.policy = cfg.policy(spec).to(device)
        self.q = self.policy.q
        optimizer = OptimizerConfig(
            device,
            cfg.weight_decay,
            cfg.max_grad_norm,
            kind=cfg.optimizer,
            eps=cfg.eps,
            decay=cfg.decay,
            centered=cfg.centered,
        )
        self.optimizer = optimizer.build(self.q, cfg.lr, peers)
        self.target_q = frozen_copy(self.q)
        self.value_and_grad = value_and_grad(self.loss, self.q.parameters(), device, cfg.compile)
        self.updates = 0

    @torch.no_grad()
    def target(self, batch: Transition, next_obs: Inputs) -> Tensor:
        """Return T Z'(s', a*) projected onto the support [B, K], a* = argmax_a E Z'(s', a) (algorithm 1)."""
        support = self.policy.support
        next_logits = self.target_q(next_obs)  # [B, A, K]
        best = self.policy.values(next_logits).argmax(1)
        probabilities = td.select_action(next_logits, best).softmax(-1)
        shifted = categorical.bellman_shift(batch.reward, batch.discount, support)
        return categorical.project(probabilities, shifted, support)

    def loss(self, batch: Transition) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return mean_b w_b H(target, Z(s, a)), priorities KL(target || Z(s, a)) [B] and mean target value.

        The KL divergence is the cross entropy minus the target's own entropy, which is large for broad
        targets and almost zero after termination; the cross entropy itself would underrate terminal rows.
        """
        target = self.target(batch, self.policy.network_input(batch.next_obs))
        logits = td.select_action(self.q(self.policy.network_input(batch.obs)), batch.action)  # [B, K]
        row_loss = categorical.cross_entropy(target, logits)
        divergence = (row_loss.detach() - categorical.entropy(target)).clamp_min_(0)
        weighted = row_loss if batch.weight is None else row_loss * batch.weight
        return weighted.mean(), (divergence, categorical.mean(target, self.policy.support).mean())

    def update(self, batch: Transition) -> UpdateResult:
        """Perform one gradient step, then the target update if it is due."""
        if self.policy.normalizer is not None and (weight := Normalizer.merge_weight(self.updates)):
            merge_batch(self.policy.normalizer, self.q.encoder.vector(batch.obs), weight, self.peers)
        grads, loss, (divergence, value) = self.value_and_grad(batch)
        skipped = self.optimizer.step(grads, loss)
        self.updates += 1
        if self.cfg.tau:
            polyak_update(self.target_q, self.q, self.cfg.tau)
        elif self.peers.period_elapsed(self.updates, self.cfg.target_update_period):
            copy_parameters(self.target_q, self.q)
        metrics = {"loss/critic": loss, "value/mean": value, "count/skipped_updates": skipped}
        # A non-finite error of one row must not enter the replay's priorities.
        priority = divergence.nan_to_num(0.0, 0.0, 0.0) if batch.index is not None else None
        return UpdateResult(metrics, priority)
