"""troop compare RECIPE ...: train several recipes on one env and rank them by time to a threshold."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from troop.cli.budget import add_budget_flags, check_budget_flags, parse_known_flags
from troop.cli.parse import Parser, add_allow_flag, echo
from troop.cli.variants import parse_recipes
from troop.core.errors import BadInput
from troop.core.user_code import absolute_name, is_code_name

if TYPE_CHECKING:
    from troop.compare.planning import CompareArgs
    from troop.experiment import Experiment

DESCRIPTION = """\
Which of these recipes is fastest for my env on this machine?

Trains the recipes one after another with the same budget: seed 1 of each, then seed 2, and so on. Each run
has its own process and an ordinary run directory DIR/RECIPE/seedN. Writes to DIR: results.md (table and
notes), results.png (return against training time and env steps, times to thresholds), results.csv (one line
per run), results.json (everything), compare.json (what is compared).
"""
EPILOG = """\
Every other flag of `troop train` is passed on and must be valid for all recipes, e.g. --envs 64,
--device cuda:0, --engine processes, --episodes 32, --batch-size 512. By default each run is evaluated
20 times.

NAME='RECIPE --flag VALUE ...' compares a recipe with its own settings, under that name.

Ctrl-C saves and stops (exit code 3). `troop compare --run DIR` continues: finished runs are kept, stopped
and failed runs are resumed. Recipes and seeds can be added to a DIR; another budget, env or setting needs
another DIR. A failed run does not stop the others; the exit code is then 4.

  troop compare fasttd3 apex-dpg ddpg td3 --env WalkerWalk-v1 --minutes 5 --seeds 3 --run runs/walker-compared
  troop compare dqn rainbow apex-dqn --env CartPole-v1 --env-steps 20000 --thresholds 200 475 --run runs/cart
  troop compare pql low-noise='pql --std-max 0.1' --env WalkerWalk-v1 --minutes 5
  troop compare --run runs/cart --seeds 5           two more seeds of every recipe
  troop compare c51 --run runs/cart                 one more recipe
"""
REPLACEMENTS = {
    "--seed": "--seeds N, which runs seeds 1 to N",
    "--target": "--thresholds, since all runs use the same budget",
}
EVALUATIONS = 20  # per run, unless a flag sets the interval
INTERVAL_SETTINGS = {"evaluation.seconds", "evaluation.env-steps"}


def run(argv: list[str]) -> int:
    """Run the comparison; return 0 when all runs are done, 3 when stopped, 4 when some failed."""
    parser = _parser()
    if not argv:
        echo(parser.format_help())
        return 0
    args, path = _parse_args(parser, argv)
    from troop.compare import planning
    from troop.compare.machine import describe
    from troop.compare.report import ComparisonReport
    from troop.compare.session import Comparison, Session
    from troop.runs.directory import default_path

    path = path or default_path("compare", args.env or "", args.seeds or planning.DEFAULT_SEEDS)
    with planning.open_plan(path, args, make_experiment) as plan:
        echo(f"Comparing {', '.join(plan.recipes)} on {plan.title}.")
        echo(f"Machine: {describe(plan.machine)}.")
        comparison = Comparison(plan, path)
        return Session([comparison], ComparisonReport(comparison)).run()


def make_experiment(recipe: str, args: CompareArgs) -> Experiment[Any]:
    """Return the checked experiment of one recipe or variant with seed 1; BadInput names the recipe."""
    from troop.cli.train import parse_command

    base, *variant_flags = args.variants.get(recipe, (recipe,))
    flags = ["--env", args.env or "", *args.flags, *variant_flags]
    if args.minutes is not None:
        flags += ["--minutes", str(args.minutes)]
        interval: dict[str, Any] = {"seconds": 60 * args.minutes / EVALUATIONS}
    else:
        steps = args.env_steps or 1
        flags += ["--env-steps", str(steps)]
        interval = {"env_steps": max(1, steps // EVALUATIONS)}
    try:
        command = parse_command([base, *flags])
        experiment = command.experiment
        if not command.settings & INTERVAL_SETTINGS:
            evaluation = dataclasses.replace(experiment.evaluation, **interval)
            experiment = dataclasses.replace(experiment, evaluation=evaluation)
        experiment.check()
        experiment.system.program(experiment.algorithm, experiment.env, experiment.settings())
    except BadInput as error:
        raise type(error)(f"{recipe}: {error}") from error
    return experiment


def _parser() -> Parser:
    parser = Parser("compare", DESCRIPTION, EPILOG)
    parser.usage = (
        "troop compare RECIPE|NAME='RECIPE --flag VALUE' ... --env ID (--minutes M | --env-steps N)\n"
        "                     [--seeds N] [--thresholds R ...] [--run DIR] [--SETTING VALUE]"
    )
    parser.add_argument("--env", metavar="ID", help="the env, as in `troop train`; see `troop envs`")
    add_budget_flags(parser)
    add_allow_flag(parser)
    parser.add_argument(
        "--thresholds",
        type=float,
        nargs="+",
        metavar="R",
        help="returns; the time to reach each is compared (default: 50, 75 and 90 %% of the best return)",
    )
    parser.add_argument(
        "--run", type=Path, metavar="DIR", help="directory of the comparison (default runs/compare-...)"
    )
    return parser


def _parse_args(parser: Parser, argv: list[str]) -> tuple[CompareArgs, Path | None]:
    """Return the arguments and --run; raise BadInput for what can be checked without heavy imports."""
    words, args, rest = parse_known_flags(parser, argv, REPLACEMENTS)
    check_budget_flags(args)
    if not all(math.isfinite(threshold) for threshold in args.thresholds or ()):
        raise BadInput("--thresholds must be finite numbers.")
    from troop.compare.planning import CompareArgs

    recipes, variants, flags = parse_recipes(words, rest)
    env = absolute_name(args.env) if args.env and is_code_name(args.env) else args.env
    thresholds = tuple(args.thresholds) if args.thresholds else None
    parsed = CompareArgs(
        recipes,
        env,
        args.minutes,
        args.env_steps,
        args.seeds,
        thresholds,
        flags,
        variants,
        tuple(args.allow),
    )
    return parsed, args.run
