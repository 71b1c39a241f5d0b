"""troop suite SUITE --recipes ...: train recipes on a list of tasks and report normalised returns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from troop.cli.budget import add_budget_flags, check_budget_flags, parse_known_flags
from troop.cli.parse import Parser, add_allow_flag, echo
from troop.cli.variants import parse_recipes
from troop.core.errors import BadInput
from troop.suites.registry import SUITES

if TYPE_CHECKING:
    from troop.suites.planning import SuiteArgs

_SUITES = "\n".join(f"  {name:11} {about}" for name, about in SUITES.items())
DESCRIPTION = f"""\
How well do these recipes work on many tasks?

Trains the recipes on every task of a suite with the same budget: seed 1 of all tasks and recipes, then
seed 2, and so on. Each task is a comparison (see `troop compare`) in DIR/TASK with ordinary run directories
DIR/TASK/RECIPE/seedN. Writes to DIR after each run: results.md (tables and notes), results.png (performance
profile, normalised return over training time, a panel per task), results.csv (one line per run),
results.json (everything), suite.json (tasks).

SUITE is one of these, or a comma-separated list of env ids:

{_SUITES}

A return is normalised: 0 is that of random actions, 1 is the published reference of the task. An env
without a reference is normalised by the best return of the report.
"""
EPILOG = """\
Every other flag of `troop train` is passed on, e.g. --envs 64, --device cuda:0, --evaluation.episodes 32. By
default each run is evaluated 20 times. NAME='RECIPE --flag VALUE ...' is a recipe with its own settings.

A recipe that cannot run a task, such as dqn on continuous actions, is left out for that task with a note.

Ctrl-C saves and stops (exit code 3). `troop suite --run DIR` continues: finished runs are kept, stopped and
failed runs are resumed. Recipes, seeds and tasks can be added to a DIR; with --tasks they are added to these
tasks only. Another budget or setting needs another DIR. A failed run does not stop the others; the exit code
is then 4.

Curves of other programs are shown beside the recipes: DIR/TASK/NAME/seedN/curve.json, with
{"name": NAME, "command": TEXT, "points": [[seconds, env_steps, return], ...]}.

  troop suite dmc-12 --recipes fasttd3 sac --minutes 4 --seeds 1 --run runs/dmc
  troop suite classic --recipes dqn rainbow sac --minutes 4 --run runs/classic
  troop suite dmc-12 --tasks CheetahRun-v1 WalkerRun-v1 --recipes td3 --env-steps 100000 --run runs/two
  troop suite Pendulum-v1,MountainCarContinuous-v0 --recipes sac td3 --minutes 2
  troop suite --run runs/dmc --recipes pql --tasks CheetahRun-v1     one more recipe on one task
  troop suite --run runs/dmc --seeds 3                               two more seeds of everything
  troop suite --run runs/dmc --report                                rewrite the report, train nothing
"""
REPLACEMENTS = {
    "--seed": "--seeds N, which runs seeds 1 to N",
    "--target": "--minutes or --env-steps, since all runs use the same budget",
    "--env": "SUITE, which may be a comma-separated list of env ids",
    "--thresholds": "the report, which has the times to 50 and 90 % of the reference",
}


def run(argv: list[str]) -> int:
    """Run the suite; return 0 when all runs are done, 3 when stopped, 4 when some failed."""
    parser = _parser()
    if not argv:
        echo(parser.format_help())
        return 0
    args, path, report_only = _parse_args(parser, argv)
    from troop.cli.compare import make_experiment
    from troop.compare.machine import describe
    from troop.compare.session import Session
    from troop.runs.directory import default_path
    from troop.suites.notes import left_out_notes
    from troop.suites.plan import SuitePlan
    from troop.suites.planning import open_suite
    from troop.suites.report import SuiteReport

    if report_only:
        assert path is not None
        SuiteReport(SuitePlan.read(path), path).show()
        return 0
    path = path or default_path("suite", args.suite or "", args.runs.seeds or 0)
    with open_suite(path, args, make_experiment) as (suite, comparisons):
        recipes = dict.fromkeys(recipe for comparison in comparisons for recipe in comparison.plan.recipes)
        plan = comparisons[0].plan
        tasks = f"{len(comparisons)} task{'' if len(comparisons) == 1 else 's'}"
        echo(f"Training {', '.join(recipes)} on {tasks}, {plan.budget} each, in {path}.")
        for text in left_out_notes(suite):
            echo(text)
        echo(f"Machine: {describe(plan.machine)}.")
        return Session(comparisons, SuiteReport(suite, path)).run()


def _parser() -> Parser:
    parser = Parser("suite", DESCRIPTION, EPILOG)
    parser.usage = (
        "troop suite SUITE --recipes RECIPE|NAME='RECIPE --flag VALUE' ... (--minutes M | --env-steps N)\n"
        "                   [--seeds N] [--tasks ENV ...] [--run DIR] [--report] [--SETTING VALUE]"
    )
    parser.add_argument(
        "--recipes", nargs="+", default=[], metavar="R", help="what to train; see `troop recipes`"
    )
    add_budget_flags(parser)
    add_allow_flag(parser)
    parser.add_argument("--tasks", nargs="+", default=[], metavar="ENV", help="only these tasks of the suite")
    parser.add_argument(
        "--run", type=Path, metavar="DIR", help="directory of the suite (default runs/suite-...)"
    )
    parser.add_argument("--report", action="store_true", help="rewrite the report of DIR and train nothing")
    return parser


def _parse_args(parser: Parser, argv: list[str]) -> tuple[SuiteArgs, Path | None, bool]:
    """Return the arguments, --run and --report; raise BadInput for what needs no heavy imports."""
    words, args, rest = parse_known_flags(parser, argv, REPLACEMENTS)
    check_budget_flags(args)
    if len(words) > 1:
        raise BadInput(
            f"Unexpected argument {words[1]!r}; recipes follow --recipes, see `troop suite --help`."
        )
    if args.report and args.run is None:
        raise BadInput("--report needs --run DIR, the directory of a suite.")
    from troop.compare.planning import CompareArgs
    from troop.suites.planning import SuiteArgs

    recipes, variants, flags = parse_recipes(args.recipes, rest)
    allow = tuple(args.allow)
    runs = CompareArgs(recipes, None, args.minutes, args.env_steps, args.seeds, None, flags, variants, allow)
    return SuiteArgs(words[0] if words else None, tuple(args.tasks), runs), args.run, args.report
