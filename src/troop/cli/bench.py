"""troop bench WHAT: measure parts of Troop and the limit of this machine in one run."""

from __future__ import annotations

import dataclasses
import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from troop.cli.parse import Parser, echo
from troop.core.config import suggest
from troop.core.errors import BadInput

if TYPE_CHECKING:
    from troop.bench.system.parts import BenchArgs
    from troop.bench.table import BenchResult
    from troop.bench.timing import Report

ENGINES = ("processes", "ray")
WITH_PARTS = ("system", "async", "central")
EPILOG = """\
examples:
  troop bench learner --threads 1                    updates per second of each algorithm
  troop bench loop --env Ant-v5                      env steps per second of a complete training loop
  troop bench onpolicy                               advantages, updates and loops of PPO
  troop bench system transport --seconds 3           latency and bandwidth between processes
  troop bench async workers                          workers that average gradients, preemption
  troop bench central inference                      round trip to the inference server of SEED
  troop bench all --json                             everything except system, as JSON lines
"""


def run(argv: list[str]) -> int:
    """Print the machine, then a table of results; `system` prints one table per part."""
    args = _parser().parse(argv)
    if args.threads < 0:
        raise BadInput(f"--threads is {args.threads}; it must be at least 0.")
    if args.parts and args.what not in WITH_PARTS:
        raise BadInput(f"Unexpected argument {args.parts[0]!r}; only `troop bench system` has parts.")
    system_args = _system_args(args) if args.what in WITH_PARTS else None
    from troop.bench.table import format_table
    from troop.compare.machine import describe

    facts = _machine_facts(args)
    echo(json.dumps({"machine": facts}) if args.json else f"Machine: {describe(facts)}; {_threads(facts)}.")
    for results in _measure(args) if system_args is None else _measure_system(args, system_args):
        for result in results if args.json else []:
            echo(json.dumps(dataclasses.asdict(result)))
        if not args.json:
            echo(format_table(results))
    return 0


def _parser() -> Parser:
    parser = Parser(
        "bench",
        "Measure parts of Troop and the limit of this machine in one run. The result is their ratio; the\n"
        "other figures hold for this machine only.",
        EPILOG,
    )
    parser.add_argument(
        "what",
        choices=["learner", "replay", "loop", "actor", "onpolicy", "system", "async", "central", "all"],
        help="what to measure",
    )
    parser.add_argument(
        "parts",
        nargs="*",
        help="parts of system: transport, apex, scaling, ray, start (default: all of these), pql, learning; "
        "of async: impala, buffering, workers, actors (default: all); of central: inference, images, "
        "runners, light, memory (default: all)",
    )
    parser.add_argument(
        "--threads", type=int, default=0, help="torch threads of learner and replay (default: all cores)"
    )
    parser.add_argument(
        "--env", help="env of loop and onpolicy (default HalfCheetah-v5), apex and ray (default Pong-v5)"
    )
    parser.add_argument("--seconds", type=float, help="duration of each measurement of system")
    parser.add_argument(
        "--engines", nargs="+", default=list(ENGINES), choices=ENGINES, help="engines of scaling, start, pql"
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds of learning (default 3)")
    parser.add_argument(
        "--figure", type=Path, default=Path("scaling.png"), help="figure of learning (default scaling.png)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON lines: first the machine, then one object per result"
    )
    return parser


def _machine_facts(args: Namespace) -> dict[str, Any]:
    from troop.compare.machine import machine_facts

    facts = machine_facts("cpu")
    one_thread = args.what in ("actor", *WITH_PARTS)
    return facts | {"torch_threads": 1 if one_thread else args.threads or facts["cores"]}


def _threads(facts: dict[str, Any]) -> str:
    threads = facts["torch_threads"]
    return f"{threads} torch thread{'' if threads == 1 else 's'} per process unless a line states otherwise"


def _measure(args: Namespace) -> Iterator[list[BenchResult]]:
    from troop.logs.status_line import StatusLine

    with StatusLine("loading libraries") as status:
        results = _measure_parts(args, status.update)
    yield results


def _measure_parts(args: Namespace, report: Report) -> list[BenchResult]:
    from troop.bench import atari, learner, loop, on_policy, prioritized, replay

    results: list[BenchResult] = []
    if args.what in ("learner", "all"):
        results += learner.run(args.threads, report=report) + atari.learner(args.threads, report)
    if args.what in ("replay", "all"):
        results += replay.run(args.threads, report) + prioritized.run(args.threads, report)
    if args.what in ("actor", "all"):
        results += atari.actor(report=report)
    if args.what in ("loop", "all"):
        results += loop.run(args.env or "HalfCheetah-v5", report=report)
    if args.what in ("onpolicy", "all"):
        results += on_policy.run(args.threads, args.env if args.what == "onpolicy" else None, report)
    return results


def _system_args(args: Namespace) -> BenchArgs:
    from troop.bench.system.parts import PARTS, BenchArgs

    for name in args.parts:
        if name not in PARTS:
            similar = suggest(name, PARTS, 1)
            hint = f"did you mean {similar[0]!r}?" if similar else f"its parts are {', '.join(PARTS)}."
            raise BadInput(f"`troop bench {args.what}` has no part {name!r}; {hint}")
    system_args = BenchArgs(args.seconds, args.env, tuple(args.engines), args.seeds, args.figure)
    system_args.check()
    return system_args


def _measure_system(options: Namespace, args: BenchArgs) -> Iterator[list[BenchResult]]:
    from troop.bench.system.parts import ASYNC_PARTS, CENTRAL_PARTS, DEFAULT_PARTS, PARTS
    from troop.logs.status_line import StatusLine

    defaults = {"async": ASYNC_PARTS, "central": CENTRAL_PARTS}
    names = options.parts or defaults.get(options.what, DEFAULT_PARTS)
    for number, name in enumerate(names, 1):
        with StatusLine(f"measuring {name}, part {number} of {len(names)}"):
            results = PARTS[name](args)
        yield results
