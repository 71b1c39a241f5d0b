"""Shared by all algorithms: flat parameters, gradients, optimizers, target networks, statistics."""

from troop.algorithms.optim.average import AverageActor
from troop.algorithms.optim.learner_state import ActorCriticState, LearnerState
from troop.algorithms.optim.optimizer import ModuleOptimizer, OptimizerConfig
from troop.algorithms.optim.statistics import merge_batch
from troop.algorithms.optim.target import copy_parameters, frozen_copy, polyak_update
from troop.algorithms.optim.value_and_grad import frozen, value_and_grad

__all__ = [
    "ActorCriticState",
    "AverageActor",
    "LearnerState",
    "ModuleOptimizer",
    "OptimizerConfig",
    "copy_parameters",
    "frozen",
    "frozen_copy",
    "merge_batch",
    "polyak_update",
    "value_and_grad",
]
