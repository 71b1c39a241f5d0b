"""LearnerState: the checkpoint of a learner, made of its modules, optimizers and update count."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from troop.algorithms.optim.optimizer import ModuleOptimizer


class LearnerState:
    """`state_dict`, `load_state_dict` and `consecutive_skips` of a learner with one main optimizer.

    `saved` maps keys of the checkpoint to attributes that have `state_dict` and `load_state_dict`.
    """

    saved: dict[str, str]
    optimizer: ModuleOptimizer
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
