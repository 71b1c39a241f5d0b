"""troop train RECIPE: from a name to a run directory."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from troop.cli.parse import configured, say, unknown, value_after
from troop.core.errors import BadInput

if TYPE_CHECKING:
    from troop.experiment import Experiment

USAGE = """\
usage: troop train RECIPE [--env ID] [--envs N] [--minutes M | --env-steps N] [--target RETURN]
                   [--seed N] [--device cpu|cuda:0] [--engine inline|processes|ray] [--run DIR]
                   [--any.setting VALUE]

Trains a recipe (see `troop recipes`) on an env (see `troop envs`), shows a live panel, and leaves in DIR:
config.json, metrics.jsonl, summary.json, curve.png, checkpoints/, TensorBoard events.

  --env ID         envpool:ID, gym:ID, toy:ID, my_package.my_module:ID, or a bare ID
  --envs N         how many copies step together
  --minutes M      stop after M minutes of training (evaluation is not counted)
  --env-steps N    stop after N env steps
  --target RETURN  stop at the first evaluation that reaches it
  --engine NAME    inline (one thread, deterministic), processes (one machine) or ray (a cluster)
  --run DIR        where the run is kept (default runs/RECIPE-ENV-SEED-TIME)

`troop train RECIPE --help` shows every setting of that recipe with its value.

  troop train fasttd3 --env WalkerWalk-v1 --minutes 10 --target 900
  troop train fasttd3 --env HalfCheetah-v5 --algorithm.gamma 0.98 --system.schedule.updates-per-step 8
"""


def run(argv: list[str]) -> int:
    """Train; 0 when done, 3 when stopped on request."""
    if not argv or (argv[0].startswith("-") and any(word in ("-h", "--help") for word in argv)):
        say(USAGE)
        return 0
    from troop.runs.directory import default_path

    made, path = wanted(argv)
    path = path or default_path(made.recipe, made.env.id, made.seed)
    return finished(made.run(path), path)


MANY_HOSTS = ("apex", "gorila", "pql")  # recipes that run on processes unless told otherwise begin so


def warm(argv: list[str]) -> None:
    """While this process imports torch, let the fork server of hosts do so too, or let a local Ray start."""
    engine, rest = value_after("--engine", argv)
    if not rest or {"-h", "--help"} & set(argv):
        return
    if engine == "ray" and value_after("--engine.address", argv)[0] in (None, "local"):
        from troop.engines.ray.cluster import BackgroundInit

        with contextlib.suppress(ImportError):  # said in a sentence later
            BackgroundInit("--engine.insecure" in argv)
    many = engine is None and rest[0].startswith(MANY_HOSTS)
    if (many or engine == "processes") and sys.platform == "linux":
        from troop.engines.processes import fork_server

        env, _ = value_after("--env", argv)
        elsewhere = env is not None and ":" in env and not env.startswith("envpool:")
        fork_server.start_fork_server(
            "troop.experiment", *(() if elsewhere else ("troop.envs.envpool.preload",))
        )


def wanted(argv: list[str]) -> tuple[Experiment, Path | None]:
    """The experiment that `troop train ARGV` runs, and where, if that was said."""
    env, rest = value_after("--env", argv)
    envs, rest = value_after("--envs", rest)
    engine, rest = value_after("--engine", rest)
    device, rest = value_after("--device", rest)
    name, rest = _recipe_name(rest)
    from troop import api

    made = api.experiment(name, env, _whole("--envs", envs), device or "cpu", engine)
    chosen = _chosen(made, rest, f"troop train {name}")
    until = api.until(made.until, chosen.minutes, chosen.env_steps, chosen.target)
    parts = {part: getattr(chosen, part) for part in PARTS}
    made = dataclasses.replace(
        made, seed=chosen.seed, deterministic=chosen.deterministic, until=until, **parts
    )
    return made, chosen.run


PARTS = ("env", "algorithm", "system", "evaluation", "engine")


def _recipe_name(argv: list[str]) -> tuple[str, list[str]]:
    if argv and not argv[0].startswith("-"):
        return argv[0], argv[1:]
    from troop.recipes import RECIPES

    for position, word in enumerate(argv):
        if word in RECIPES:
            return word, argv[:position] + argv[position + 1 :]
    raise BadInput("Which recipe? `troop train RECIPE ...`; see `troop recipes`.")


def _whole(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise BadInput(f"{flag} is {text!r}; it must be a whole number.") from None
    if number < 1:
        raise BadInput(f"{flag} is {number}; it must be at least 1.")
    return number


def _chosen(made: Any, argv: list[str], prog: str) -> Any:  # noqa: ANN401 - a class made for this recipe
    """The recipe's settings, changed by flags."""
    import tyro

    from troop.core.config import flags

    def flag(about: str) -> Any:  # noqa: ANN401
        return tyro.conf.arg(help=about)

    plain: list[tuple[str, Any, Any]] = [
        ("seed", Annotated[int, flag("seed of everything random")], made.seed),
        ("minutes", Annotated[float | None, flag("stop after this much training time")], None),
        ("env_steps", Annotated[int | None, flag("stop after this many env steps")], None),
        ("target", Annotated[float | None, flag("stop when an evaluation reaches this return")], None),
        ("run", Annotated[Path | None, flag("where the run is kept")], None),
        ("deterministic", Annotated[bool, flag("no overlap, deterministic kernels")], made.deterministic),
    ]
    parts = [(part, type(getattr(made, part)), getattr(made, part)) for part in PARTS]
    fields = [(name, kind, dataclasses.field(default=value)) for name, kind, value in plain + parts]
    kind = dataclasses.make_dataclass("Train", fields, frozen=True)
    kind.__doc__ = f"{made.recipe} on {made.env.id}, {made.env.envs} envs, {made.device}."
    known = [f"--{name}" for name, _ in flags(kind())]
    for word in argv:
        given = word.split("=")[0]
        if word.startswith("--") and word != "--help" and _spelled(given) not in {_spelled(k) for k in known}:
            raise unknown(word, [*known, "--env", "--envs", "--engine", "--device"], prog)
    about = f"{kind.__doc__} Also: --env ID, --envs N, --device cpu|cuda:0, --engine inline|processes|ray."
    return configured(kind, kind(), argv, prog, about)


def _spelled(flag: str) -> str:
    """A flag without its negation, in one spelling."""
    head, _, last = flag.lstrip("-").replace("_", "-").rpartition(".")
    return f"{head}.{last.removeprefix('no-')}"


def finished(result: Any, path: Path) -> int:  # noqa: ANN401 - a Result
    """Say how it ended and what to do next; the exit code."""
    from troop.logs.progress import duration, number

    counters, evaluation = result.counters, result.evaluation
    said = f"return {number(evaluation['eval/return_mean'])}, " if evaluation else ""
    if result.status == "stopped":
        say(f"Stopped after {counters.env_steps:,} env steps; {said}go on with: troop resume {path}")
        return 3
    reached = counters.target_reached_s
    target = f"target reached after {duration(reached)}, " if reached is not None else ""
    say(f"Done: {target}{said}{counters.env_steps:,} env steps in {duration(counters.wall_s)}. {path}")
    return 0
