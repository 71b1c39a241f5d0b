"""Troop: distributed reinforcement learning for PyTorch."""

import os

# Threads of OpenMP spin for a millisecond after each operation of torch, on cores that a simulator's threads
# need. Let them sleep after some 20 us; libgomp reads this when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

TYPE_CHECKING = False  # type checkers take it as True; importing typing would delay the command
if TYPE_CHECKING:
    from troop.api import (
        TrainedPolicy,
        evaluate,
        export_policy,
        load_policy,
        make_experiment,
        resume,
        train,
    )
    from troop.experiment import Experiment

__version__ = "0.1.0"
__all__ = [
    "Experiment",
    "TrainedPolicy",
    "evaluate",
    "export_policy",
    "load_policy",
    "make_experiment",
    "resume",
    "train",
]


def __getattr__(name: str) -> object:
    """Import on first use, because importing torch would delay `import troop` and `troop --help`."""
    if name == "Experiment":
        from troop.experiment import Experiment

        return Experiment
    if name in __all__:
        from troop import api

        return getattr(api, name)
    raise AttributeError(f"module 'troop' has no attribute {name!r}")
