"""The checkpoint of a learner, made of its modules, optimizers and update count, and its compilation."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from troop.algorithms.optim.optimizer import ModuleOptimizer
from troop.algorithms.optim.value_and_grad import LossGradient


class LearnerState:
    """`state_dict`, `load_state_dict` and `consecutive_skips` of a learner with one main optimizer.

    `saved` maps keys of the checkpoint to attributes that have `state_dict` and `load_state_dict`.
    """

    saved: dict[str, str]
    optimizer: ModuleOptimizer
    value_and_grad: LossGradient
    updates: int

    @property
    def consecutive_skips(self) -> Tensor:
        """Number of consecutive updates skipped for a non-finite loss or gradient."""
        return self.optimizer.consecutive_skips

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all saved attributes and the number of updates."""
        state = {key: getattr(self, attribute).state_dict() for key, attribute in self.saved.items()}
        return state | {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        for key, attribute in self.saved.items():
            getattr(self, attribute).load_state_dict(state[key])
        self.updates = int(state["updates"])

    @property
    def compile_error(self) -> str | None:
        """Why compilation failed; None if it did not."""
        return self.value_and_grad.error

    def set_compiled(self, compiled: bool) -> None:
        """Compute the loss with or without compiled code from the next update on."""
        self.value_and_grad.compiled = compiled


class _TwoLearners(Protocol):
    @property
    def critic_learner(self) -> LearnerState:
        """Trains the critics."""
        ...

    @property
    def actor_learner(self) -> LearnerState:
        """Trains the actor."""
        ...


class ActorCriticState:
    """Checkpoint, skipped updates and compilation of a critic learner and an actor learner together."""

    @property
    def consecutive_skips(self: _TwoLearners) -> Tensor:
        """The larger number of consecutive skipped updates of actor and critics."""
        return torch.maximum(self.critic_learner.consecutive_skips, self.actor_learner.consecutive_skips)

    def state_dict(self: _TwoLearners) -> dict[str, Any]:
        """Return the state of both learners; `updates` is that of the critic learner.

        Other entries that they share have the same key.
        """
        return self.actor_learner.state_dict() | self.critic_learner.state_dict()

    def load_state_dict(self: _TwoLearners, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.critic_learner.load_state_dict(state)
        self.actor_learner.load_state_dict(state)

    @property
    def compile_error(self: _TwoLearners) -> str | None:
        """Why compilation failed; None if it did not."""
        return self.critic_learner.compile_error or self.actor_learner.compile_error

    def set_compiled(self: _TwoLearners, compiled: bool) -> None:
        """Compute both losses with or without compiled code from the next update on."""
        self.critic_learner.set_compiled(compiled)
        self.actor_learner.set_compiled(compiled)
