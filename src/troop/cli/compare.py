"""troop compare RECIPE ...: which of these is fastest for my env on my machine."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from troop.cli.parse import Parser, say
from troop.cli.variants import INSTEAD, named
from troop.core.errors import BadInput

if TYPE_CHECKING:
    from troop.compare.planning import CompareArgs
    from troop.experiment import Experiment

ABOUT = """\
Which of these recipes is fastest for my env on this machine?

Runs them one after another with the same budget, seed 1 of all, then seed 2, each in a process of its own
and in an ordinary run directory DIR/RECIPE/seedN. Leaves in DIR: results.md (table and notes), results.png
(return against training time and env steps, times to thresholds), results.csv (a line a run), results.json
(everything), compare.json (what is compared).
"""
MORE = """\
Every other flag of `troop train` is handed on and must fit all recipes, e.g. --envs 64, --device cuda:0,
--engine processes, --evaluation.episodes 32. Unless said otherwise there are 20 evaluations a run.

NAME='RECIPE --flag VALUE ...' compares a recipe with settings of its own, under that name.

Ctrl-C saves and stops (exit code 3). `troop compare --run DIR` goes on: what is done is kept, what was
stopped or failed is resumed. Recipes and seeds may be added to a DIR; another budget, env or setting needs
another DIR. A run that fails does not stop the others; the exit code is then 4.

  troop compare fasttd3 apex-dpg ddpg td3 --env WalkerWalk-v1 --minutes 5 --seeds 3 --run runs/walker-compared
  troop compare dqn rainbow apex-dqn --env CartPole-v1 --env-steps 20000 --thresholds 200 475 --run runs/cart
  troop compare pql still='pql --algorithm.std-max 0.1' --env WalkerWalk-v1 --minutes 5
  troop compare --run runs/cart --seeds 5           two seeds more of all
  troop compare c51 --run runs/cart                 one recipe more
"""
EVALUATIONS = 20  # a run, unless the user says how often


def run(argv: list[str]) -> int:
    """Compare; 0 when all runs are done, 3 when stopped, 4 when some failed."""
    parser = _parser()
    if not argv:
        say(parser.format_help())
        return 0
    wish, path = _wish(parser, argv)
    from troop.compare import planning
    from troop.compare.machine import described
    from troop.compare.session import Session
    from troop.runs.directory import default_path

    path = path or default_path("compare", wish.env or "", wish.seeds or planning.SEEDS)
    with planning.settled(path, wish, make) as plan:
        say(f"Comparing {', '.join(plan.recipes)} on {plan.title}.")
        say(f"Machine: {described(plan.machine)}.")
        return Session(plan, path).run()


def make(recipe: str, wish: CompareArgs) -> Experiment:
    """The experiment of one recipe with seed 1, checked; BadInput that names the recipe if it cannot be."""
    from troop.cli.train import wanted

    base, *own = wish.own.get(recipe, (recipe,))
    flags = ["--env", wish.env or "", *wish.flags, *own]
    if wish.minutes is not None:
        flags += ["--minutes", str(wish.minutes)]
        schedule = ["--evaluation.seconds", str(60 * wish.minutes / EVALUATIONS)]
    else:
        steps = wish.env_steps or 1
        flags += ["--env-steps", str(steps)]
        schedule = ["--evaluation.env-steps", str(max(1, steps // EVALUATIONS))]
    given = {word.split("=")[0].replace("_", "-") for word in (*wish.flags, *own)}
    if not given & {"--evaluation.seconds", "--evaluation.env-steps"}:
        flags += schedule
    try:
        made, _ = wanted([base, *flags])
        made.check()
        made.system.program(made.algorithm, made.env, made.setting())
    except BadInput as error:
        raise BadInput(f"{recipe}: {error}") from error
    return made


def _parser() -> Parser:
    parser = Parser("compare", ABOUT)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = MORE
    parser.usage = (
        "troop compare RECIPE|NAME='RECIPE --flag VALUE' ... --env ID (--minutes M | --env-steps N)\n"
        "                     [--seeds N] [--thresholds R ...] [--run DIR] [--any.setting VALUE]"
    )
    parser.add_argument("--env", metavar="ID", help="as in `troop train`; see `troop envs`")
    parser.add_argument("--minutes", type=float, metavar="M", help="training time of each run")
    parser.add_argument("--env-steps", type=int, metavar="N", help="or: env steps of each run")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 1 to N (default 3)")
    parser.add_argument(
        "--thresholds",
        type=float,
        nargs="+",
        metavar="R",
        help="returns whose times are compared (default: 50, 75 and 90 %% of the best found)",
    )
    parser.add_argument("--run", type=Path, metavar="DIR", help="where it is kept (default runs/compare-...)")
    return parser


def _wish(parser: Parser, argv: list[str]) -> tuple[CompareArgs, Path | None]:
    """What was asked for, as far as it can be judged without importing anything."""
    argv = [_dashed(word) for word in argv]
    first = next((place for place, word in enumerate(argv) if word.startswith("-")), len(argv))
    args, rest = parser.parse_known_args(argv[first:])
    for word in rest:
        if (name := word.split("=")[0]) in INSTEAD:
            raise BadInput(f"`troop compare` takes no {name}; use {INSTEAD[name]}.")
    if args.minutes is not None and args.env_steps is not None:
        raise BadInput(
            "--minutes and --env-steps are both given; a comparison has one budget, leave one out."
        )
    if args.minutes is not None and not (args.minutes > 0 and math.isfinite(args.minutes)):
        raise BadInput(f"--minutes is {args.minutes:g}; it must be above 0.")
    if args.env_steps is not None and args.env_steps < 1:
        raise BadInput(f"--env-steps is {args.env_steps}; it must be at least 1.")
    if args.seeds is not None and args.seeds < 1:
        raise BadInput(f"--seeds is {args.seeds}; it must be at least 1.")
    if not all(math.isfinite(threshold) for threshold in args.thresholds or ()):
        raise BadInput("--thresholds must be finite numbers.")
    from troop.compare.planning import CompareArgs

    recipes, own, flags = named(argv[:first], rest)
    thresholds = tuple(args.thresholds) if args.thresholds else None
    wish = CompareArgs(recipes, args.env, args.minutes, args.env_steps, args.seeds, thresholds, flags, own)
    return wish, args.run


def _dashed(word: str) -> str:
    """A flag as the parser knows it; --env_steps is as good as --env-steps."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word
