"""From what was asked for to a plan: a new one, or an old one with more recipes and seeds."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from troop.compare import run_result
from troop.compare.machine import described, machine, same
from troop.compare.plan import Plan, difference, holds, run_path
from troop.core.errors import BadInput
from troop.experiment import Experiment
from troop.runs import files
from troop.runs.directory import CONFIG, RunDirectory
from troop.runs.lock import Lock

SEEDS = 3


@dataclass(frozen=True)
class CompareArgs:
    """What the user said; None or empty where nothing was said."""

    recipes: tuple[str, ...] = ()
    env: str | None = None
    minutes: float | None = None
    env_steps: int | None = None
    seeds: int | None = None
    thresholds: tuple[float, ...] | None = None
    flags: tuple[str, ...] = ()
    own: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # name -> recipe and flags, where they differ


Make = Callable[[str, CompareArgs], Experiment]


@contextlib.contextmanager
def settled(folder: Path, wish: CompareArgs, make: Make) -> Iterator[Plan]:
    """The plan for `folder`, written there and locked; BadInput before anything changes if it cannot be."""
    new = None if holds(folder) else begun(wish, make, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.disk_problem("create", folder, error) from error
    lock = Lock(folder)
    try:
        if new is not None and holds(folder):
            raise BadInput(f"{folder} was begun by another process just now; choose another --run.")
        plan = new or extended(Plan.read(folder), wish, make, folder)
        plan.write(folder)
        yield plan
    finally:
        lock.release()


def begun(wish: CompareArgs, make: Make, folder: Path) -> Plan:
    """A new plan."""
    if not wish.recipes:
        raise BadInput(f"Which recipes? {folder} holds no comparison to go on with; see `troop recipes`.")
    if not wish.env:
        raise BadInput("On which env? Give --env; see `troop envs`.")
    if wish.minutes is None and wish.env_steps is None:
        raise BadInput("How long? Give --minutes or --env-steps, the budget of each run.")
    made = {recipe: make(recipe, wish) for recipe in wish.recipes}
    return Plan(
        env=wish.env,
        minutes=wish.minutes,
        env_steps=wish.env_steps,
        seeds=wish.seeds or SEEDS,
        flags=wish.flags,
        thresholds=wish.thresholds or (),
        machine=machine(next(iter(made.values())).device),
        recipes={recipe: experiment.to_dict() for recipe, experiment in made.items()},
        own=wish.own,
    )


def extended(plan: Plan, wish: CompareArgs, make: Make, folder: Path) -> Plan:
    """The old plan with what is new in the wish; BadInput if they do not belong together."""
    _same_terms(plan, wish, folder)
    terms = dataclasses.replace(
        wish,
        env=plan.env,
        minutes=plan.minutes,
        env_steps=plan.env_steps,
        flags=(*plan.flags, *wish.flags),  # what is said again wins
        own=plan.own | wish.own,
    )
    for recipe, old in plan.recipes.items():
        if recipe in wish.own or wish.flags not in ((), plan.flags):
            _same_settings(recipe, old, make(recipe, terms), folder)
    added = {recipe: make(recipe, terms).to_dict() for recipe in wish.recipes if recipe not in plan.recipes}
    grown = dataclasses.replace(
        plan,
        seeds=max(plan.seeds, wish.seeds or 1),
        thresholds=plan.thresholds if wish.thresholds is None else wish.thresholds,
        recipes=plan.recipes | added,
        own=terms.own,
    )
    _unmixed(grown, folder)
    _same_machine(grown, folder)
    return grown


def _same_terms(plan: Plan, wish: CompareArgs, folder: Path) -> None:
    if wish.env is not None and wish.env != plan.env:
        raise BadInput(f"--env is {wish.env} but {folder} compares on {plan.env}; choose another --run.")
    for name, flag in (("minutes", "--minutes"), ("env_steps", "--env-steps")):
        asked, had = getattr(wish, name), getattr(plan, name)
        if asked is not None and asked != had:
            said = f"{asked:,}".removesuffix(".0")
            raise BadInput(
                f"{flag} is {said} but each run of {folder} has {plan.budget}, and budgets are not mixed; "
                f"leave {flag} out or choose another --run."
            )


def _same_settings(recipe: str, old: dict[str, Any], new: Experiment, folder: Path) -> None:
    if found := difference(_normal(old), new.to_dict()):
        name, had, asked = found
        raise BadInput(
            f"{name} is {asked} for {recipe} but {folder} was begun with {had}; leave the flag as it was "
            "or choose another --run."
        )


def _unmixed(plan: Plan, folder: Path) -> None:
    """Every run directory must hold what the plan says."""
    for recipe, seed in plan.runs():
        path = run_path(folder, recipe, seed)
        if not (path / CONFIG).exists():
            continue
        wanted = _normal(plan.recipes[recipe]) | {"seed": seed}
        if found := difference(wanted, _normal(RunDirectory.open(path).read_config())):
            name, had, there = found
            raise BadInput(
                f"{path} was run with {name} {there} where the comparison has {had}; move it away "
                "or choose another --run."
            )


def _same_machine(plan: Plan, folder: Path) -> None:
    """Times of two machines do not belong in one table; a comparison that is done may be read anywhere."""
    if all(run.status == "done" for run in run_result.gather(plan, folder)):
        return
    here = machine(next(iter(plan.recipes.values())).get("device", "cpu"))
    if not same(plan.machine, here):
        raise BadInput(
            f"{folder} was begun on {described(plan.machine)} but this is {described(here)}; go on there "
            "or choose another --run."
        )


def _normal(experiment: dict[str, Any]) -> dict[str, Any]:
    """With every field of today's configs, so that a field added since is no difference."""
    return Experiment.from_dict(experiment).to_dict()
