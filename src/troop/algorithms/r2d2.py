"""R2D2: Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning".

Double Q-learning with a dueling LSTM network over replayed sequences, stored states and burn-in.
docs/explanation/algorithms/r2d2.md has the deviations from the paper and from SEED's code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from troop.algorithms.optim import (
    LearnerState,
    OptimizerConfig,
    copy_parameters,
    frozen_copy,
    value_and_grad,
)
from troop.algorithms.requirements import discrete_control_reason, privileged_names
from troop.core.algorithm import CompileMode, Policy, PolicyOutput, UpdateResult
from troop.core.batch import SequenceSpec, State, Trajectory
from troop.core.config import bounded
from troop.core.env import Discrete, EnvSpec, Obs
from troop.core.exploration import Exploration, LinearSchedule
from troop.core.peers import NO_PEERS, Peers
from troop.functional.sequences import n_step_returns, sequence_priority
from troop.functional.td import epsilon_greedy, greedy, select_action
from troop.functional.value_rescaling import inverse_rescale, rescale
from troop.nets.cnn import Torso
from troop.nets.recurrent import CoreState
from troop.nets.recurrent_q import RecurrentQNetwork


@dataclass(frozen=True)
class R2D2Config:
    """Hyperparameters; the defaults are those of the paper's Atari experiments (table 2)."""

    renamed_fields: ClassVar[dict[str, str]] = {"target_period": "target_update_period"}  # of older runs

    sequence_length: int = bounded(120, low=1, high=10_000)
    """Steps per sequence, including the burn-in: 40 and 80 in the paper."""
    overlap: int = bounded(80, low=0, high=10_000)
    """Steps that a sequence shares with the one before it, including the burn-in; the paper's sequences of 80
    begin every 40 steps."""
    burn_in: int = bounded(40, low=0, high=10_000)
    """First steps of a sequence, which only bring the recurrent states up to date; at most `overlap`."""
    gamma: float = bounded(0.997, low=0, high=1)
    """Discount factor."""
    n_step: int = bounded(5, low=1, high=64)
    """Steps of reward before the bootstrap."""
    eta: float = bounded(0.9, low=0, high=1)
    """Priority of a sequence: eta * largest |TD error| + (1 - eta) * mean |TD error|."""
    rescale_values: bool = True
    """Learn h(Q) with h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, for rewards of any magnitude."""
    target_update_period: int = bounded(2500, low=1)
    """Updates between copies of the online network into the target network."""
    lr: float = bounded(1e-4, above=0)
    """Learning rate of Adam."""
    eps: float = bounded(1e-3, above=0)
    """Epsilon of Adam."""
    max_grad_norm: float = bounded(40.0, low=0)
    """Clip gradients to this norm; 0 does not clip."""
    epsilon_start: float = bounded(1.0, low=0, high=1)
    """Probability of a random action at the start; systems with many actors use a constant for each env."""
    epsilon_end: float = bounded(0.01, low=0, high=1)
    """Probability of a random action after `epsilon_steps`."""
    epsilon_steps: int = bounded(1_000_000, low=0)
    """Env steps, over all envs, in which epsilon decreases linearly from start to end."""
    net: Torso | str = "auto"
    """Torso for images; auto is nature from 36x36 pixels on, else small. Or your own network as
    module:function."""
    features: int = bounded(512, low=1)
    """Width of the layer before the LSTM."""
    core_size: int = bounded(512, low=1)
    """Width of the LSTM."""
    head: int = bounded(512, low=1)
    """Width of the hidden layer of the value and advantage streams."""
    compile: CompileMode = False
    """Compile the loss with torch.compile; auto decides during training whether it pays."""

    @property
    def experience(self) -> SequenceSpec:
        """Overlapping sequences."""
        return SequenceSpec(self.sequence_length, self.overlap, self.burn_in, self.gamma)

    @property
    def exploration(self) -> Exploration:
        """Linearly decreasing epsilon; the ladder of epsilons in systems with a constant for each env."""
        return LinearSchedule(self.epsilon_start, self.epsilon_end, self.epsilon_steps)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Require discrete actions, vector or image observations, and burn-in <= overlap < length."""
        if not self.burn_in <= self.overlap < self.sequence_length:
            return (
                f"the burn-in of {self.burn_in} steps must be at most the overlap, {self.overlap}, and that "
                f"below the length of a sequence, {self.sequence_length}"
            )
        return discrete_control_reason(spec, self.net, False, joins_vectors=True)

    def unread_observations(self, spec: EnvSpec) -> list[str]:
        """Return the names of observations that the network does not read."""
        return privileged_names(spec)

    def policy(self, spec: EnvSpec) -> R2D2Policy:
        """Build the policy alone, on the CPU."""
        return R2D2Policy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> R2D2:
        """Build the learner."""
        return R2D2(spec, self, peers, device)

    def returns(self, batch: Trajectory, next_value: Tensor) -> Tensor:
        """Return h(n-step returns that bootstrap from h^-1(next_value)) of the last steps, as many as it has.

        `next_value` [.., B] are values of their successors.
        """
        last = slice(batch.length - len(next_value), None)
        rows = batch.reward[last], batch.discount[last], batch.ended[last]
        if not self.rescale_values:
            return n_step_returns(*rows, next_value, self.n_step)
        return rescale(n_step_returns(*rows, inverse_rescale(next_value), self.n_step))

    def initial_priority(self, sequences: Trajectory) -> Tensor:
        """Return the priorities [B] of new sequences, from the values that the policy computed while acting.

        The value of a sequence's last observation, on which the policy has not acted, is replaced by that of
        the observation before it.
        """
        q, value, valid = sequences.extras["q"], sequences.extras["value"], sequences.valid
        next_value = value.clone()
        next_value[:-1] = torch.where(valid[1:], value[1:], value[:-1])
        learned = valid.clone()
        learned[: self.burn_in] = False
        return sequence_priority(self.returns(sequences, next_value) - q, learned, self.eta)


class R2D2Policy(Policy):
    """The online network; acts epsilon-greedily."""

    def __init__(self, spec: EnvSpec, cfg: R2D2Config) -> None:
        super().__init__()
        assert isinstance(spec.action, Discrete)
        self.actions = spec.action.choices
        self.q = RecurrentQNetwork(
            spec.shapes(privileged=False), self.actions, cfg.features, cfg.core_size, cfg.head, cfg.net
        )

    def initial_state(self, rows: int) -> State:
        """Return the zero state of the LSTM."""
        return {"core": {**self.q.core.initial_state(rows)}}

    @torch.no_grad()
    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Return epsilon-greedy actions; `explore` [B] is each row's epsilon.

        Extras: Q of the action as `q` and max Q as `value`, from which initial priorities are computed.
        """
        assert state is not None
        inputs = self.q.encoder.select({name: x.unsqueeze(0) for name, x in obs.items()})
        started = torch.zeros(1, len(explore), dtype=torch.bool, device=explore.device)
        q, states = self.q(inputs, state["core"], started)
        value, action = greedy(q[0])
        if bool(explore.any()):
            action = epsilon_greedy(action, self.actions, explore)
        extras = {"q": select_action(q[0], action), "value": value}
        return PolicyOutput(action, {"core": {name: x[0] for name, x in states.items()}}, extras)


class R2D2(LearnerState):
    """Regresses the online network Q on n-step double-Q targets of the target network Q'."""

    saved = {"policy": "policy", "target_q": "target_q", "optimizer": "optimizer"}  # noqa: RUF012

    def __init__(self, spec: EnvSpec, cfg: R2D2Config, peers: Peers, device: str) -> None:
        self.cfg, self.peers = cfg, peers
        self.policy = cfg.policy(spec).to(device)
        self.q = self.policy.q
        optimizer = OptimizerConfig(device, max_grad_norm=cfg.max_grad_norm, kind="adam", eps=cfg.eps)
        self.optimizer = optimizer.build(self.q, cfg.lr, peers)
        self.target_q = frozen_copy(self.q)
        self.value_and_grad = value_and_grad(self.loss, self.q.parameters(), device, cfg.compile)
        self.updates = 0

    @torch.no_grad()
    def burn_in(self, q: RecurrentQNetwork, batch: Trajectory) -> CoreState:
        """Return the state of the network `q` after the burn-in, which begins with the stored state."""
        assert batch.state is not None
        state: CoreState = batch.state["core"]
        if not self.cfg.burn_in:
            return state
        prefix = slice(0, self.cfg.burn_in)
        obs = {name: x[prefix] for name, x in batch.obs.items()}
        _, states = q(q.encoder.select(obs), state, batch.started[prefix])
        return {name: x[-1] for name, x in states.items()}

    def unroll(self, q: RecurrentQNetwork, batch: Trajectory) -> Tensor:
        """Return Q of the observations after the burn-in, [T + 1 - burn_in, B, A]."""
        state, rest = self.burn_in(q, batch), slice(self.cfg.burn_in, None)
        obs = {name: x[rest] for name, x in batch.obs.items()}
        values: Tensor = q(q.encoder.select(obs), state, batch.started[rest])[0]
        return values

    def loss(self, batch: Trajectory) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return mean_b w_b 1/2 sum_t (Q(s_t, a_t) - y_t)^2 over valid steps after the burn-in.

        y_t = h(sum_k gamma^k r_{t+k} + gamma^n h^-1(Q'(s_{t+n}, argmax_a Q(s_{t+n}, a)))). Also returns the
        priorities [B] and the mean target.
        """
        learned = batch.valid[self.cfg.burn_in :]
        q = self.unroll(self.q, batch)
        with torch.no_grad():
            target_q = self.unroll(self.target_q, batch)
            best = q[1:].argmax(-1, keepdim=True)
            y = self.cfg.returns(batch, target_q[1:].gather(-1, best).squeeze(-1))
        action = batch.action[self.cfg.burn_in :]
        td_error = torch.where(learned, q[:-1].gather(-1, action.unsqueeze(-1)).squeeze(-1) - y, 0.0)
        sequence_loss = 0.5 * td_error.square().sum(0)
        weighted = sequence_loss if batch.weight is None else sequence_loss * batch.weight
        priority = sequence_priority(td_error.detach(), learned, self.cfg.eta)
        mean_target = torch.where(learned, y, 0.0).sum() / learned.sum().clamp_min(1)
        return weighted.mean(), (priority, mean_target)

    def update(self, batch: Trajectory) -> UpdateResult:
        """Perform one gradient step, then the target update if it is due."""
        grads, loss, (priority, value) = self.value_and_grad(batch)
        skipped = self.optimizer.step(grads, loss)
        self.updates += 1
        if self.peers.period_elapsed(self.updates, self.cfg.target_update_period):
            copy_parameters(self.target_q, self.q)
        metrics = {"loss/critic": loss, "value/mean": value, "count/skipped_updates": skipped}
        # A non-finite error of one sequence must not enter the replay's priorities.
        return UpdateResult(metrics, priority.nan_to_num(0.0, 0.0, 0.0))
