"""troop train RECIPE: parse the command line into an experiment and run it."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from troop.cli.env_settings import take_env_settings
from troop.cli.flags import SettingFlags, with_values
from troop.cli.parse import echo, parse_config, value_after
from troop.core.errors import BadInput

if TYPE_CHECKING:
    from troop.core.engine import Result
    from troop.experiment import Experiment

USAGE = """\
usage: troop train RECIPE [--env ID] [--envs N] [--minutes M | --env-steps N] [--target RETURN]
                   [--seed N] [--device cpu|cuda:0] [--engine inline|processes|ray] [--run DIR]
                   [--algorithm MODULE:CONFIG] [--network MODULE:FUNCTION] [--SETTING VALUE]

Trains a recipe (see `troop recipes`) on an env (see `troop envs`), shows a live panel, and writes to DIR:
config.json, metrics.jsonl, summary.json, curve.png, checkpoints/, TensorBoard events.

  --env ID         envpool:ID, gym:ID, toy:ID, my_package.my_module:ID, ./file.py:MyEnv, or an ID alone
  --env.NAME VALUE argument of the constructor of a Gymnasium env, e.g. --env.limit 50 or --env.limit None
  --envs N         number of envs that step together; with actors, the envs of each actor
  --minutes M      stop after M minutes of training (evaluation is not counted)
  --env-steps N    stop after N env steps
  --target RETURN  stop at the first evaluation whose mean return reaches RETURN
  --algorithm A    your own algorithm, my_package.my_module:MyConfig, instead of that of the recipe
  --network F      your own network, my_package.my_module:make_net, a function (shape, outputs) -> nn.Module
  --seed N         seed of all random numbers (default 1)
  --device NAME    device of the learner: cpu or cuda:N (default cpu)
  --engine NAME    inline (one thread, deterministic), processes (one machine) or ray (a cluster)
  --run DIR        directory of the run (default runs/RECIPE-ENV-SEED-TIME)

RECIPE may be your own: my_package.my_module:RECIPE. Every setting of a recipe is a flag. `troop train RECIPE
--help` lists them with their values, by the shortest name that is unique; any longer end of a setting's path
works too: --batch-size is the same flag as --system.schedule.batch-size. Booleans have two flags, e.g.
--overlap and --no-overlap.

  troop train fasttd3 --env WalkerWalk-v1 --minutes 10 --target 900
  troop train fasttd3 --env HalfCheetah-v5 --gamma 0.98 --updates-per-step 8 --batch-size 512
  troop train apex-dqn --env Pong-v5 --actors 8 --minutes 60 --run runs/pong
"""
CONFIGS = ("env", "algorithm", "system", "evaluation", "engine")
# Recipes whose names begin so use the processes engine by default.
MANY_HOSTS = (
    "a3c",
    "apex",
    "appo",
    "dd-ppo",
    "fasttd3-ddp",
    "gorila",
    "impala",
    "monobeast",
    "polybeast",
    "pql",
    "r2d2",
    "seed",
)


@dataclass(frozen=True)
class TrainCommand:
    """A parsed `troop train` command."""

    experiment: Experiment[Any]
    path: Path | None  # of --run
    settings: frozenset[str]  # dotted paths of the settings that flags set


def run(argv: list[str]) -> int:
    """Train; return 0 when the run is done, 3 when it was stopped on request."""
    if not argv or (argv[0].startswith("-") and any(word in ("-h", "--help") for word in argv)):
        echo(USAGE)
        return 0
    from troop.logs.console import Console

    console = Console()
    try:
        if not {"-h", "--help"} & set(argv):
            console.show_stage(_title(argv), "loading libraries")  # before torch, which takes seconds
        command = parse_command(argv)
        from troop.runs.directory import default_path

        experiment = command.experiment
        path = command.path or default_path(experiment.recipe, experiment.env.id, experiment.seed)
        result = experiment.run(path, console=console)
    finally:
        console.discard()
    return report_result(result, path)


def _title(argv: list[str]) -> str:
    env, rest = value_after("--env", argv)
    recipe = rest[0] if rest and not rest[0].startswith("-") else "troop train"
    return f"{recipe} on {env}" if env else recipe


def warm_up(argv: list[str]) -> None:
    """Start the fork server of hosts, or a local Ray, while this process still imports torch."""
    engine, rest = value_after("--engine", argv)
    if not rest or {"-h", "--help"} & set(argv):
        return
    if engine == "ray" and _ray_address(argv) in (None, "local"):
        from troop.engines.ray.cluster import BackgroundInit

        with contextlib.suppress(ImportError):  # the engine reports it later in one sentence
            BackgroundInit(bool({"--engine.insecure", "--insecure"} & set(argv)))
    many = engine is None and rest[0].startswith(MANY_HOSTS)
    if (many or engine == "processes") and sys.platform == "linux":
        from troop.engines.processes import fork_server

        env, _ = value_after("--env", argv)
        other_backend = env is not None and ":" in env and not env.startswith("envpool:")
        preload = () if other_backend else ("troop.envs.envpool.preload",)
        fork_server.start_fork_server("troop.experiment", *preload)


def _ray_address(argv: list[str]) -> str | None:
    return value_after("--engine.address", argv)[0] or value_after("--address", argv)[0]


def parse_command(argv: list[str]) -> TrainCommand:
    """Parse the words after `troop train`; raise BadInput if a name or a value is not valid."""
    env, rest = value_after("--env", argv)
    envs, rest = value_after("--envs", rest)
    engine, rest = value_after("--engine", rest)
    device, rest = value_after("--device", rest)
    algorithm, rest = value_after("--algorithm", rest)
    network, rest = value_after("--network", rest)
    recipe, rest = _recipe_name(rest)
    from troop import api

    experiment = api.make_experiment(
        recipe, env, _parse_count("--envs", envs), device or "cpu", engine, algorithm, network
    )
    env_config, rest = take_env_settings(experiment.env, rest)
    experiment = dataclasses.replace(experiment, env=env_config)
    prog = f"troop train {recipe}"
    configs = {name: getattr(experiment, name) for name in CONFIGS}
    setting_flags = SettingFlags(configs, prog)
    rest, settings = setting_flags.resolve(rest)
    wants_help = bool({"-h", "--help"} & set(rest))
    annotated = {name: setting_flags.annotate(config, name, wants_help) for name, config in configs.items()}
    args = _parse_settings(experiment, annotated, rest, prog)
    until = api.until(experiment.until, args.minutes, args.env_steps, args.target)
    configs = {name: with_values(config, getattr(args, name)) for name, config in configs.items()}
    experiment = dataclasses.replace(
        experiment, seed=args.seed, deterministic=args.deterministic, until=until, **configs
    )
    return TrainCommand(experiment, args.run, frozenset(settings))


def _recipe_name(argv: list[str]) -> tuple[str, list[str]]:
    if argv and not argv[0].startswith("-"):
        return argv[0], argv[1:]
    from troop.recipes import RECIPES

    for index, word in enumerate(argv):
        if word in RECIPES:
            return word, argv[:index] + argv[index + 1 :]
    raise BadInput("No recipe is given; use `troop train RECIPE ...` and see `troop recipes`.")


def _parse_count(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise BadInput(f"{flag} is {text!r}; it must be a whole number.") from None
    if number < 1:
        raise BadInput(f"{flag} is {number}; it must be at least 1.")
    return number


def _parse_settings(experiment: Experiment[Any], configs: dict[str, Any], argv: list[str], prog: str) -> Any:  # noqa: ANN401 - a class made for this recipe
    """The top-level flags and the configs, changed by `argv`."""
    import tyro

    def flag(name: str, kind: Any, default: object, metavar: str | None, text: str) -> tuple[str, Any, Any]:  # noqa: ANN401
        hint = None if default is not None else ""
        spec = tyro.conf.arg(name=name, metavar=metavar, help=text, help_behavior_hint=hint)
        # A trailing underscore keeps --env and --engine apart from the configs of these names.
        field = f"{name}_" if name in configs else name.replace("-", "_")
        return field, Annotated[kind, spec], dataclasses.field(default=default)

    engine = type(experiment.engine).__name__.lower()
    fields = [
        # The caller has already taken the first six out of argv; they are here for --help.
        flag("env", str, experiment.env.id, "ID", "The env to train on; see `troop envs`."),
        flag("algorithm", str, type(experiment.algorithm).__name__, "A", "Your own: my_module:MyConfig."),
        flag("network", str | None, None, "F", "Your own: my_module:make_net."),
        flag("envs", int, experiment.env.envs, "N", "Envs that step together; of each actor, if any."),
        flag("engine", str, engine, "inline|processes|ray", "Where roles run: thread, machine or cluster."),
        flag("device", str, experiment.device, "cpu|cuda:N", "Device of the learner."),
        flag("seed", int, experiment.seed, "N", "Seed of all random numbers."),
        flag("minutes", float | None, None, "M", "Stop after this training time, without evaluation."),
        flag("env-steps", int | None, None, "N", "Stop after this many env steps."),
        flag("target", float | None, None, "RETURN", "Stop when an evaluation reaches this mean return."),
        flag("run", Path | None, None, "DIR", "Directory of the run; by default a new one in runs/."),
        flag("deterministic", bool, experiment.deterministic, None, "No overlap, and deterministic kernels."),
    ]
    fields += [(name, type(config), dataclasses.field(default=config)) for name, config in configs.items()]
    kind = dataclasses.make_dataclass("Train", fields, frozen=True)
    kind.__doc__ = ""
    description = (
        f"{experiment.recipe} on {experiment.env.id}: all flags with their values for this env and device. "
        "Any longer end of a setting's path works too, e.g. --system.replay-capacity."
    )
    return parse_config(kind, kind(), argv, prog, description)


def report_result(result: Result, path: Path) -> int:
    """Print how the run ended and how to continue it; return the exit code."""
    from troop.logs.progress import duration, number

    counters, evaluation = result.counters, result.evaluation
    path = result.directory or path
    score = f"return {number(float(evaluation['eval/return_mean']))}, " if evaluation else ""
    if result.status == "stopped":
        echo(f"Stopped after {counters.env_steps:,} env steps; {score}continue with: troop resume {path}")
        return 3
    reached = counters.target_reached_s
    target = f"target reached after {duration(reached)}, " if reached is not None else ""
    echo(f"Done: {target}{score}{counters.env_steps:,} env steps in {duration(counters.wall_s)}. {path}")
    return 0
