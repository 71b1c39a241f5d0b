"""Training of modules, shared by all algorithms: flat parameters, gradients, optimizers, target networks."""

from troop.algorithms.optim.optimizer import ModuleOptimizer, OptimizerConfig
from troop.algorithms.optim.target import copy_parameters, frozen_copy, polyak_update
from troop.algorithms.optim.value_and_grad import value_and_grad

__all__ = [
    "ModuleOptimizer",
    "OptimizerConfig",
    "copy_parameters",
    "frozen_copy",
    "polyak_update",
    "value_and_grad",
]
