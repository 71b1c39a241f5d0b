"""Algorithm: `update(batch)` performs the gradient steps of one batch and returns metrics and priorities.

An algorithm does not depend on an env, a replay buffer, a clock, a logger, a rank or a process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from troop.core.batch import Experience, State, Trajectory, Transition
from troop.core.env import EnvSpec, Obs
from troop.core.exploration import Exploration
from troop.core.peers import Peers

B = TypeVar("B", contravariant=True)  # the batch type: Transition or Trajectory
CompileMode = bool | Literal["auto"]
"""Whether losses are compiled: from the start, never, or during training if the role finds that it pays."""


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """Result of `Policy.act`: actions, next recurrent state, and per-row extras stored with the rollout."""

    action: Tensor
    state: State = None
    extras: dict[str, Tensor] = field(default_factory=dict)


class Policy(nn.Module):
    """The acting network, including its observation normalizer.

    Acting is row-wise: act(concat(a, b)) equals concat(act(a), act(b)) if each row draws the same random
    numbers; no row depends on its place in the call.
    """

    def initial_state(self, rows: int) -> State:
        """Return the recurrent state of new episodes; None for a feed-forward policy.

        Row i is env i of all `rows` envs of a collector or server, and may differ from that of other envs.
        """
        return None

    def reset_state(self, state: State, started: Tensor) -> State:
        """Return `state` with the envs that start an episode, `started` [rows], as in `initial_state`.

        The rows of `state` are all envs of `initial_state`, in their order.
        """
        if state is None:
            return None

        def reset(initial: Tensor, current: Tensor) -> Tensor:
            mask = started.to(current.device).view(-1, *(1,) * (current.dim() - 1))
            return torch.where(mask, initial, current)

        fresh: State = pytree.tree_map(reset, self.initial_state(len(started)), state)
        return fresh

    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Return actions in [-1, 1] or action indices; `explore` [rows] scales exploration, 0 disables it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Metrics as 0-d tensors, not synchronised with the device, and new priorities of the batch rows."""

    metrics: dict[str, Tensor]
    priority: Tensor | None = None

    def __or__(self, other: UpdateResult) -> UpdateResult:
        """Merge two results; the priority of `other` wins if it has one."""
        priority = self.priority if other.priority is None else other.priority
        return UpdateResult(self.metrics | other.metrics, priority)


class Algorithm(Protocol[B]):
    """A learner over batches of type `B`; `state_dict()` holds its complete state."""

    @property
    def policy(self) -> Policy:
        """The policy trained here, which actors copy."""
        ...

    @property
    def consecutive_skips(self) -> Tensor:
        """Number of consecutive updates skipped for a non-finite loss or gradient; may synchronise."""
        ...

    def update(self, batch: B) -> UpdateResult:
        """Perform the gradient steps of one batch."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue bit-equal: tensors, numbers, nested dicts."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        ...


@runtime_checkable
class KeepsExperience(Protocol):
    """An algorithm with experience of its own, which copies of a learner do not share; optional."""

    own_state: tuple[str, ...]  # keys of `state_dict` that belong to this copy alone


@runtime_checkable
class CompilableAlgorithm(Protocol):
    """An algorithm whose losses can be compiled between two updates; optional, for `compile = "auto"`."""

    @property
    def compile_error(self) -> str | None:
        """Why compilation failed, so that losses are computed without it; None if it did not fail."""
        ...

    def set_compiled(self, compiled: bool) -> None:
        """Compute losses with or without compiled code from the next update on.

        The first updates with compiled code compile it, which takes seconds.
        """
        ...


class AlgorithmConfig(Protocol[B]):
    """A frozen dataclass of hyperparameters that builds the policy and the learner."""

    @property
    def experience(self) -> Experience:
        """The batch specification: n-step transitions, trajectories or sequences."""
        ...

    @property
    def exploration(self) -> Exploration:
        """The schedule of the per-env exploration value passed to `Policy.act`."""
        ...

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Return why this algorithm cannot learn the env, naming alternatives; None if it can."""
        ...

    def policy(self, spec: EnvSpec) -> Policy:
        """Build the policy alone, on the CPU."""
        ...

    def algorithm(self, spec: EnvSpec, peers: Peers = ..., device: str = "cpu") -> Algorithm[B]:
        """Build the learner on `device`."""
        ...


@runtime_checkable
class PrioritizesSequences(Protocol):
    """An algorithm config that computes initial priorities of sequences; optional."""

    def initial_priority(self, sequences: Trajectory) -> Tensor:
        """Return the priorities [B] of new sequences from what the policy returned while acting."""
        ...


@runtime_checkable
class DividesBatches(Protocol):
    """An algorithm config that divides each batch into minibatches; optional."""

    def indivisible_reason(self, streams: int) -> str | None:
        """Return why batches of `streams` env streams cannot be divided, with numbers that would do."""
        ...


@runtime_checkable
class ReusesBatches(Protocol):
    """An algorithm config whose learner may update several times from one batch of trajectories; optional."""

    @property
    def reuses_batches(self) -> bool:
        """Whether these settings allow it."""
        ...


class PartialLearner(Algorithm[Transition], Protocol):
    """One half of an actor-critic whose critics and actor learn on different hosts (PQL).

    The critic learner trains and publishes the critics and holds a lagged copy of the policy; the actor
    learner trains and publishes the policy with its normalizer, holds lagged critics and reads only `obs`.
    """

    @property
    def module(self) -> nn.Module:
        """The module trained and published by this learner."""
        ...

    @property
    def peer_module(self) -> nn.Module:
        """The lagged copy of the other learner's module; never trained here."""
        ...


class SplitAlgorithmConfig(AlgorithmConfig[Transition], Protocol):
    """An algorithm whose critics and actor can learn on different hosts."""

    def unsplittable_reason(self, spec: EnvSpec) -> str | None:
        """Return why these settings cannot be split on this env, naming the cure; None if they can."""
        ...

    def critic_learner(self, spec: EnvSpec, peers: Peers = ..., device: str = "cpu") -> PartialLearner:
        """Build the critic learner on `device`; one call of `update` is one critic update."""
        ...

    def actor_learner(self, spec: EnvSpec, peers: Peers = ..., device: str = "cpu") -> PartialLearner:
        """Build the actor learner on `device`; one call of `update` is one actor update."""
        ...
