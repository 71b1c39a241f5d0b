"""Turn arguments into the comparisons of a suite: new ones, or stored ones with more recipes and seeds."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from troop.compare.plan import ComparisonPlan, contains_comparison
from troop.compare.planned_code import named_code
from troop.compare.planning import (
    CompareArgs,
    MakeExperiment,
    check_budget,
    extend_plan,
    new_plan,
    read_allowed_plan,
)
from troop.compare.session import Comparison
from troop.core.config import suggest
from troop.core.errors import BadInput, UnsupportedEnv
from troop.experiment import Experiment
from troop.runs import files
from troop.runs.lock import Lock
from troop.suites.plan import SuitePlan, contains_suite, task_path
from troop.suites.registry import parse_suite


@dataclass(frozen=True)
class SuiteArgs:
    """The arguments of `troop suite`; None or empty where an argument is absent."""

    suite: str | None = None
    tasks: tuple[str, ...] = ()
    runs: CompareArgs = field(default_factory=CompareArgs)  # recipes, budget, seeds, flags; no env


@contextlib.contextmanager
def open_suite(
    folder: Path, args: SuiteArgs, make: MakeExperiment
) -> Iterator[tuple[SuitePlan, list[Comparison]]]:
    """Lock `folder`, write the plans of the selected tasks and yield them; BadInput before any change.

    The selected tasks are those of --tasks, else of SUITE, else all tasks of the directory.
    """
    with contextlib.ExitStack() as stack:
        exists = contains_suite(folder)
        if exists:
            files.reject_links(folder)  # folders of tasks, in which plans and results are written
            _lock(folder, stack)
        suite, plans = plan_suite(SuitePlan.read(folder) if exists else None, args, make, folder)
        if not exists:
            _lock(folder, stack)
        comparisons = []
        for env, plan in plans.items():
            path = task_path(folder, env)
            _lock(path, stack)
            plan.write(path)
            comparisons.append(Comparison(plan, path, f"{env} "))
        suite.write(folder)
        yield suite, comparisons


def _lock(folder: Path, stack: contextlib.ExitStack) -> None:
    """Create `folder` and lock it until the stack closes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.disk_problem("create", folder, error) from error
    stack.callback(Lock(folder).release)


def plan_suite(
    stored: SuitePlan | None, args: SuiteArgs, make: MakeExperiment, folder: Path
) -> tuple[SuitePlan, dict[str, ComparisonPlan]]:
    """Return the suite and the plan of each selected task, without writing them."""
    if stored is None and not args.suite:
        raise BadInput(f"No suite is given and {folder} holds none to continue; see `troop suite --help`.")
    if stored is None and not args.runs.recipes:
        raise BadInput("--recipes is missing; see `troop recipes`.")
    old = _stored_plans(stored, args, folder) if stored else {}
    name, tasks, selected = _select_tasks(stored, args, folder)
    defaults = _defaults(old, args.runs, folder)
    left_out = dict(stored.left_out) if stored else {}
    plans, make = {}, _make_once(make)
    for env in selected:
        plan = old.get(env)
        wanted = args.runs.recipes or (() if plan else defaults.recipes)
        known = plan.recipes if plan else {}
        probe = dataclasses.replace(defaults, env=env)
        reasons = {r: text for r in wanted if r not in known and (text := _unsupported(r, probe, make))}
        runs = tuple(recipe for recipe in wanted if recipe not in reasons)
        if not known and not runs:
            raise BadInput(
                f"No recipe can run {env}: {next(iter(reasons.values()))} Leave it out with --tasks."
            )
        if plan:
            plans[env] = extend_plan(
                plan, dataclasses.replace(args.runs, recipes=runs), make, task_path(folder, env)
            )
        else:
            contains_comparison(task_path(folder, env))
            plans[env] = new_plan(dataclasses.replace(probe, recipes=runs), make, task_path(folder, env))
        if reasons:
            left_out[env] = left_out.get(env, {}) | reasons
    _check_every_recipe_runs(args.runs.recipes, plans, left_out)
    return SuitePlan(name, tasks, left_out), plans


def _stored_plans(stored: SuitePlan, args: SuiteArgs, folder: Path) -> dict[str, ComparisonPlan]:
    """Return the plan of every stored task; BadInput if one needs code that is neither named nor allowed."""
    suite = [word for env in (args.suite or "").split(",") for word in ("--env", env)]
    runs = dataclasses.replace(args.runs, allow=(*args.runs.allow, *named_code(suite)))
    plans = {env: read_allowed_plan(task_path(folder, env), runs) for env in stored.tasks}
    for env, plan in plans.items():
        if plan.env != env:
            raise BadInput(
                f"{task_path(folder, env)} compares on {plan.env}, not on {env}; choose another --run."
            )
    return plans


def _select_tasks(
    stored: SuitePlan | None, args: SuiteArgs, folder: Path
) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """Return the name of the suite, all tasks of the directory after this command, and the selected ones."""
    known = stored.tasks if stored else ()
    name, envs = parse_suite(args.suite) if args.suite else (stored.suite if stored else None, known)
    if stored and name != stored.suite:
        kind = f"the suite {stored.suite}" if stored.suite else "a list of envs"
        raise BadInput(f"SUITE is {args.suite} but {folder} holds {kind}; choose another --run.")
    if stored and stored.suite and args.tasks:
        envs = parse_suite(stored.suite)[1]
    for env in args.tasks:
        if env not in envs:
            similar = suggest(env, envs, 1)
            hint = f"did you mean {similar[0]}?" if similar else f"its tasks are {', '.join(envs)}."
            raise BadInput(f"--tasks names {env}, which is not a task of {name or 'the suite'}; {hint}")
    selected = tuple(env for env in envs if env in args.tasks) if args.tasks else envs
    added = {*known, *selected}
    every = parse_suite(name)[1] if name else (*known, *(env for env in selected if env not in known))
    return name, tuple(env for env in every if env in added), selected


def _defaults(old: dict[str, ComparisonPlan], runs: CompareArgs, folder: Path) -> CompareArgs:
    """Return recipes, budget, seeds and flags of a task that is added: those of the other tasks."""
    if not old:
        return runs
    first = next(iter(old.values()))
    check_budget(first, runs, folder)
    if runs.flags not in ((), first.flags):
        stored = " ".join(first.flags) or "no flags"
        raise BadInput(
            f"{' '.join(runs.flags)} is given but {folder} was started with {stored}; leave the flags out or "
            "choose another --run."
        )
    variants = {name: words for plan in old.values() for name, words in plan.variants.items()}
    return CompareArgs(
        recipes=runs.recipes or tuple(dict.fromkeys(name for plan in old.values() for name in plan.recipes)),
        minutes=first.minutes,
        env_steps=first.env_steps,
        seeds=runs.seeds or first.seeds,
        flags=first.flags,
        variants=variants | runs.variants,
    )


def _make_once(make: MakeExperiment) -> MakeExperiment:
    """Return `make` with a memory: within a command, recipe and env determine the experiment."""
    made: dict[tuple[str, str | None], Experiment[Any]] = {}

    def make_or_recall(recipe: str, args: CompareArgs) -> Experiment[Any]:
        if (recipe, args.env) not in made:
            made[recipe, args.env] = make(recipe, args)
        return made[recipe, args.env]

    return make_or_recall


def _unsupported(recipe: str, args: CompareArgs, make: MakeExperiment) -> str:
    """Return why the recipe cannot learn the env, or an empty text."""
    try:
        make(recipe, args)
    except UnsupportedEnv as error:
        return str(error)
    return ""


def _check_every_recipe_runs(
    recipes: tuple[str, ...], plans: dict[str, ComparisonPlan], left_out: dict[str, dict[str, str]]
) -> None:
    for recipe in recipes:
        if all(recipe not in plan.recipes for plan in plans.values()):
            reason = next(left_out[env][recipe] for env in plans)
            raise BadInput(f"{reason} It can run none of the {len(plans)} tasks; leave it out.")
