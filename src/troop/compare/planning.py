"""Turn arguments into a plan: a new one, or the stored one extended by recipes and seeds."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from troop.api import require_cluster_allowed, require_folder_allowed
from troop.compare import run_result
from troop.compare.external import check_external
from troop.compare.machine import describe, machine_facts, same_hardware
from troop.compare.plan import ComparisonPlan, contains_comparison, first_difference, run_path
from troop.compare.planned_code import (
    named_clusters,
    named_code,
    named_folders,
    planned_clusters,
    planned_code,
    planned_folders,
)
from troop.core.config_json import encode
from troop.core.errors import BadInput
from troop.core.user_code import require_allowed, split
from troop.envs.gymnasium.user_envs import check_stored_env
from troop.experiment import Experiment
from troop.runs import files
from troop.runs.directory import CONFIG, RunDirectory
from troop.runs.lock import Lock

DEFAULT_SEEDS = 3
# Of an env: they change its speed or what the policy sees, not its episodes and their returns.
NEUTRAL_FIELDS = ("envs", "threads", "slim_assets", "workers", "worker_limit_s", "last_step")


@dataclass(frozen=True)
class CompareArgs:
    """The arguments of `troop compare`; None or empty where an argument is absent."""

    recipes: tuple[str, ...] = ()
    env: str | None = None
    minutes: float | None = None
    env_steps: int | None = None
    seeds: int | None = None
    thresholds: tuple[float, ...] | None = None
    flags: tuple[str, ...] = ()
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)  # name -> base recipe, its own flags
    allow: tuple[str, ...] = ()  # code outside Troop that a stored plan may import


MakeExperiment = Callable[[str, CompareArgs], Experiment[Any]]


@contextlib.contextmanager
def open_plan(folder: Path, args: CompareArgs, make: MakeExperiment) -> Iterator[ComparisonPlan]:
    """Lock `folder`, write its new or extended plan and yield it; raise BadInput before any change."""
    new = None if contains_comparison(folder) else new_plan(args, make, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.disk_problem("create", folder, error) from error
    lock = Lock(folder)
    try:
        if new is not None and contains_comparison(folder):
            raise BadInput(f"Another process just started a comparison in {folder}; choose another --run.")
        plan = new or extend_plan(read_allowed_plan(folder, args), args, make, folder)
        plan.write(folder)
        yield plan
    finally:
        lock.release()


def read_allowed_plan(folder: Path, args: CompareArgs) -> ComparisonPlan:
    """Read the stored plan; BadInput if it needs code, a cluster or a folder that the user does not allow."""
    plan = ComparisonPlan.read(folder)
    commands = (["--env", args.env or ""], args.flags, *args.variants.values())
    named = [name for words in commands for name in named_code(words)]  # by the user, in this command
    clusters = [address for words in commands for address in named_clusters(words)]
    allow = (*args.allow, *named, *(split(name)[0] for name in named))
    require_allowed(planned_code(plan), allow)
    for experiment in plan.recipes.values():
        Experiment.from_dict(experiment, allow)  # of an allowed module only envs, networks and configs
    for name in named_code(["--env", plan.env]):
        check_stored_env(name, allow)
    for address in planned_clusters(plan):
        require_cluster_allowed(address, (*args.allow, *clusters))
    named_here = [path for words in commands for path in named_folders(words)]
    for path in planned_folders(plan):
        require_folder_allowed(path, (*args.allow, *named_here))
    return plan


def new_plan(args: CompareArgs, make: MakeExperiment, folder: Path) -> ComparisonPlan:
    """Return a plan from the arguments; raise BadInput if recipes, env or budget are missing."""
    if not args.recipes:
        raise BadInput(f"No recipe is given and {folder} holds no comparison to resume; see `troop recipes`.")
    if not args.env:
        raise BadInput("--env is missing; see `troop envs`.")
    if args.minutes is None and args.env_steps is None:
        raise BadInput("The budget of each run is missing; give --minutes or --env-steps.")
    experiments = {recipe: make(recipe, args) for recipe in args.recipes}
    _check_evaluation(experiments)
    plan = ComparisonPlan(
        env=args.env,
        minutes=args.minutes,
        env_steps=args.env_steps,
        seeds=args.seeds or DEFAULT_SEEDS,
        flags=args.flags,
        thresholds=args.thresholds or (),
        machine=machine_facts(next(iter(experiments.values())).device),
        recipes={recipe: experiment.to_dict() for recipe, experiment in experiments.items()},
        variants=args.variants,
    )
    check_external(plan, folder)
    return plan


def extend_plan(
    plan: ComparisonPlan, args: CompareArgs, make: MakeExperiment, folder: Path
) -> ComparisonPlan:
    """Return the stored plan plus new recipes, seeds and thresholds; raise BadInput if the two conflict."""
    check_budget(plan, args, folder)
    merged = dataclasses.replace(
        args,
        env=plan.env,
        minutes=plan.minutes,
        env_steps=plan.env_steps,
        flags=(*plan.flags, *args.flags),  # of a repeated flag the last value counts
        variants=plan.variants | args.variants,
    )
    allow = tuple(name for _, name in planned_code(plan))
    for recipe, old in plan.recipes.items():
        if recipe in args.variants or args.flags not in ((), plan.flags):
            _check_settings(recipe, _with_all_fields(old, allow), make(recipe, merged), folder)
    added = {recipe: make(recipe, merged).to_dict() for recipe in args.recipes if recipe not in plan.recipes}
    extended = dataclasses.replace(
        plan,
        seeds=max(plan.seeds, args.seeds or 1),
        thresholds=plan.thresholds if args.thresholds is None else args.thresholds,
        recipes=plan.recipes | added,
        variants=merged.variants,
    )
    allow = tuple(name for _, name in planned_code(extended))
    stored = {recipe: Experiment.from_dict(config, allow) for recipe, config in extended.recipes.items()}
    _check_evaluation(stored)
    _check_run_directories(extended, folder)
    check_external(extended, folder)
    _check_machine(extended, folder)
    return extended


def check_budget(plan: ComparisonPlan, args: CompareArgs, folder: Path) -> None:
    """Raise BadInput if env or budget are given and differ from the plan."""
    if args.env is not None and args.env != plan.env:
        raise BadInput(f"--env is {args.env} but {folder} compares on {plan.env}; choose another --run.")
    for name, flag in (("minutes", "--minutes"), ("env_steps", "--env-steps")):
        new, old = getattr(args, name), getattr(plan, name)
        if new is not None and new != old:
            value = f"{new:,}".removesuffix(".0")
            raise BadInput(
                f"{flag} is {value} but each run of {folder} has {plan.budget}, and all runs need the same "
                f"budget; leave {flag} out or choose another --run."
            )


def _check_settings(recipe: str, old: dict[str, Any], new: Experiment[Any], folder: Path) -> None:
    if difference := first_difference(old, new.to_dict()):
        flag, old_value, new_value = difference
        raise BadInput(
            f"{flag} is {new_value} for {recipe} but {folder} was started with {old_value}; leave the flag "
            "unchanged or choose another --run."
        )


def _check_evaluation(experiments: dict[str, Experiment[Any]]) -> None:
    """Raise BadInput if two recipes are evaluated in different ways: their returns are not comparable."""
    if not experiments:
        raise BadInput("The comparison has no recipes; name at least one.")
    (first, reference), *others = experiments.items()
    for recipe, experiment in others:
        if difference := first_difference(_protocol(reference), _protocol(experiment)):
            flag, first_value, value = difference
            raise BadInput(
                f"{first} is evaluated with {flag} {first_value} and {recipe} with {value}, so that their "
                "returns are not comparable; give both the same."
            )


def _protocol(experiment: Experiment[Any]) -> dict[str, Any]:
    """Return the settings on which the return of an evaluated policy depends."""
    evaluation, env = experiment.evaluation, experiment.env.for_evaluation()
    fields = {name: value for name, value in encode(env).items() if name not in NEUTRAL_FIELDS}
    if "settings" in fields:
        fields["settings"] = sorted(fields["settings"])
    limit = evaluation.step_limit(env.spec)
    return {"env": fields, "evaluation": {"max_episode_steps": limit, "explore": evaluation.explore}}


def _check_run_directories(plan: ComparisonPlan, folder: Path) -> None:
    """Raise BadInput if the config of a run directory differs from the plan."""
    allow = tuple(name for _, name in planned_code(plan))
    for recipe, seed in plan.runs():
        path = run_path(folder, recipe, seed)
        if not (path / CONFIG).exists():
            continue
        planned = _with_all_fields(plan.recipes[recipe], allow) | {"seed": seed}
        found = _with_all_fields(RunDirectory.open(path).read_config(), allow)
        if difference := first_difference(planned, found):
            flag, planned_value, value = difference
            raise BadInput(
                f"{path} was run with {flag} {value} where the comparison has {planned_value}; move it away "
                "or choose another --run."
            )


def _check_machine(plan: ComparisonPlan, folder: Path) -> None:
    """Raise BadInput if runs are left and this machine is another one: their times are not comparable."""
    if all(run.status == "done" for run in run_result.read_runs(plan, folder)):
        return
    here = machine_facts(next(iter(plan.recipes.values())).get("device", "cpu"))
    if not same_hardware(plan.machine, here):
        raise BadInput(
            f"{folder} was started on {describe(plan.machine)} but this machine is {describe(here)}; "
            "continue there or choose another --run."
        )


def _with_all_fields(experiment: dict[str, Any], allow: tuple[str, ...]) -> dict[str, Any]:
    """Add the default of every config field that is newer than the stored experiment."""
    return Experiment.from_dict(experiment, allow).to_dict()
