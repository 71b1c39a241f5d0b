"""Sentences that a run prints when it starts: unread observations, and a learning rate that ends early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from troop.experiment import Experiment


def start_notes(experiment: Experiment[Any]) -> list[str]:
    """Return what the user should know before the run."""
    notes = getattr(experiment.algorithm, "notes", None)
    own = notes(experiment.env.spec) if notes else []
    return [*unread_observations(experiment), *own, *annealing_notes(experiment)]


def unread_observations(experiment: Experiment[Any]) -> list[str]:
    """Return a sentence for each observation of the env that the policy and the critics do not read."""
    spec, algorithm = experiment.env.spec, experiment.algorithm
    omitted = [f"the observation '{name}' of {spec.id} is a text and is not read" for name in spec.omitted]
    unread = getattr(algorithm, "unread_observations", None)
    name = type(algorithm).__name__.removesuffix("Config")
    names = unread(spec) if unread else []
    return omitted + [f"{name} does not read the observation '{each}' of {spec.id}" for each in names]


def annealing_notes(experiment: Experiment[Any]) -> list[str]:
    """Return a sentence unless the learning rate is constant or reaches 0 just when the run ends."""
    steps, end = getattr(experiment.algorithm, "anneal_steps", 0), experiment.until.env_steps
    if not steps or end == steps:
        return []
    text = f"the learning rate falls to 0 at {steps:,} env steps (--anneal-steps)"
    if end is None:
        return [text]
    if end > steps:
        return [f"{text}, so that nothing is learned in the {end - steps:,} steps after them"]
    return [f"{text}; at the end of this run, after {end:,}, {1 - end / steps:.0%} of it is left"]
