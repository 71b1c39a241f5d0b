"""C3 Algorithm: `update(batch)` does the gradient steps of one batch and reports; it knows nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from troop.core.batch import Experience, Transition
from troop.core.env import EnvSpec, Obs
from troop.core.exploration import Exploration
from troop.core.peers import Peers

B = TypeVar("B", contravariant=True)
State = Tensor | None


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """What a policy said: the action, its next recurrent state, and whatever should travel with the row."""

    action: Tensor
    state: State = None
    extras: dict[str, Tensor] = field(default_factory=dict)


class Policy(Protocol):
    """An nn.Module, row-wise: act(join(a, b)) == join(act(a), act(b)) where explore is 0."""

    def initial_state(self, rows: int) -> State:
        """Recurrent state of fresh episodes; None if the policy has no memory."""
        ...

    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """Actions in [-1, 1] or choices; `explore` is one number a row, 0 for none."""
        ...


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What an update reports: metrics as 0-d tensors (read only when logged), and priorities if any."""

    metrics: dict[str, Tensor]
    priority: Tensor | None = None

    def __or__(self, other: UpdateResult) -> UpdateResult:
        """Both reports; the right one's priority wins if it has one."""
        priority = self.priority if other.priority is None else other.priority
        return UpdateResult(self.metrics | other.metrics, priority)


class Algorithm(Protocol[B]):
    """Learns from batches; everything it is lives in `state_dict()`."""

    publishes: nn.Module  # what others need: the policy, its normalizer inside

    @property
    def consecutive_skips(self) -> Tensor:
        """How many updates in a row were skipped for a loss that is not finite; reading it may wait."""
        ...

    def update(self, batch: B) -> UpdateResult:
        """The gradient steps of one batch."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if never stopped: tensors, numbers, nested dicts."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        ...


class AlgorithmConfig(Protocol[B]):
    """A frozen dataclass that says what it eats and builds its two things."""

    @property
    def experience(self) -> Experience:
        """Which cut of experience `update` wants."""
        ...

    @property
    def exploration(self) -> Exploration:
        """How widely rows explore."""
        ...

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """Why this env cannot be learned by this algorithm, naming what can; None if it can."""
        ...

    def policy(self, spec: EnvSpec) -> nn.Module:
        """The acting part alone."""
        ...

    def algorithm(self, spec: EnvSpec, peers: Peers = ..., device: str = "cpu") -> Algorithm[B]:
        """The learner, on `device`."""
        ...


class PartialLearner(Algorithm[Transition], Protocol):
    """One half of an algorithm that learns in two places: its own net, by a lagged copy of the other's.

    The critic half publishes the online critics and follows a policy; the policy half publishes the policy,
    of whose normalizer it owns the statistics, follows critics, and reads nothing of a batch but `obs`.
    """

    peer_module: nn.Module  # the other half's net as last heard of: load its weights here; never trained here


class SplitAlgorithmConfig(AlgorithmConfig[Transition], Protocol):
    """An algorithm that can learn its critics in one place and its policy in another."""

    def unsplittable_reason(self) -> str | None:
        """Why these settings cannot be learned in two places, naming the cure; None if they can."""
        ...

    def critic_learner(self, spec: EnvSpec, peers: Peers = ..., device: str = "cpu") -> PartialLearner:
        """What learns the critics, on `device`; one update of it is one of theirs."""
        ...

    def actor_learner(self, spec: EnvSpec, peers: Peers = ..., device: str = "cpu") -> PartialLearner:
        """What learns the policy, on `device`; one update of it is one of the policy's."""
        ...
