"""Reference page of files: what runs, comparisons and suites write, and the fields of the JSON files."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path

from troop.core.engine import Counters
from troop.experiment import Experiment
from troop.runs.directory import CHECKPOINTS, CONFIG, METRICS, SUMMARY, VIDEOS
from troop.runs.lock import NAME as LOCK
from troop.runs.summary import Summary
from troop_docs.config_fields import config_fields
from troop_docs.markdown import code, table


@dataclass(frozen=True)
class File:
    """A file by its path pattern; `rare` files are written under special circumstances only."""

    pattern: str
    meaning: str
    rare: bool = False


RUN_FILES = (
    File(
        CONFIG,
        "The whole experiment: env, algorithm, system, engine, limits, seed. Written before the first step.",
    ),
    File(METRICS, "Metrics: one JSON object per line, one line per second and one per evaluation."),
    File(
        SUMMARY, "State of the run in one object. Written at the start, after each evaluation and at the end."
    ),
    File("curve.png", "Learning curve. Written at the end; needs matplotlib."),
    File(
        f"{CHECKPOINTS}/*/manifest.json",
        "Description of a checkpoint: counters, files, sizes, SHA-256 hashes.",
    ),
    File(f"{CHECKPOINTS}/*/*.safetensors", "Tensors of a checkpoint. The newest two checkpoints are kept."),
    File(f"{VIDEOS}/*", "Videos recorded by `troop play`.", rare=True),
    File("policy.onnx", "The policy, written by `troop export` without `--out`.", rare=True),
    File("policy.json", "Inputs and outputs of `policy.onnx`, its checksum.", rare=True),
    File("*tfevents*", "TensorBoard events; needs tensorboard."),
    File(LOCK, "Lock held while a process writes to the directory."),
    File("error.txt", "Traceback of an unexpected failure.", rare=True),
    File("first_fault.json", "The first transition with a NaN or infinite value, as JSON.", rare=True),
)
COMPARE_FILES = (
    File("compare.json", "What is compared: env, budget, flags, machine, experiments, attempts."),
    File("results.md", "The answer in one sentence, the table, the machine, notes."),
    File("results.png", "Return against training time and env steps; times to thresholds."),
    File("results.csv", "One line per run."),
    File("results.json", "All results including the curves."),
    File("*/seed[0-9]*/**", "Run directory of one recipe and seed."),
    File("*/seed[0-9]*/curve.json", "Learning curve of another program; see below.", rare=True),
    File("*/seed[0-9]*.stderr", "Standard error of a run that failed.", rare=True),
    File("*/seed[0-9]*-aside-*/**", "Directory of a start that left no checkpoint.", rare=True),
    File(LOCK, "Lock held while the comparison runs."),
)
SUITE_FILES = (
    File("suite.json", "The suite, its tasks, and why recipes cannot run some of them."),
    File("results.md", "Tables over tasks and per task, references, the machine, notes."),
    File("results.png", "Performance profile, normalised return over training time, a panel per task."),
    File("results.csv", "One line per run."),
    File("results.json", "All results including the curves."),
    File("*/compare.json", "The comparison of one task; the directory holds all files of a comparison."),
    File("*/**", "The other files of the comparison."),
    File(LOCK, "Lock held while the suite runs."),
)
CURVE_FIELDS = (
    ("name", "text", "Name in the report; the name of the directory above `seedN`."),
    ("command", "text", "How the curve was made."),
    (
        "points",
        "list of `[seconds, env_steps, return]`",
        "Evaluations: training seconds, env steps, mean return.",
    ),
)


def page() -> str:
    """Return tables of files and of the fields of the JSON files."""
    headers = ["file", "contents"]
    lines = ["## Run directory\n", table(headers, _rows(RUN_FILES))]
    lines += ["## Comparison directory\n", table(headers, _rows(COMPARE_FILES))]
    lines += ["## Suite directory\n", table(headers, _rows(SUITE_FILES))]
    lines += [
        "## Fields of curve.json\n",
        "Written by other programs, read by `troop compare` and `troop suite`; see "
        "[Test recipes on many tasks](../how-to/suite.md). Seconds and env steps never decrease; other "
        "fields are ignored.\n",
        table(["field", "type", "meaning"], [[code(name), *rest] for name, *rest in CURVE_FIELDS]),
    ]
    fields = ["field", "type", "default", "meaning"]
    lines += [f"## Fields of {SUMMARY}\n", table(fields, _fields(Summary))]
    lines += [
        f"## Fields of {CONFIG}\n",
        "Nested objects have a field `kind` with the name of their config class; see [Flags](flags.md).\n",
        table(fields, _fields(Experiment)),
    ]
    lines += ["## Counters of a checkpoint's manifest\n", table(fields, _fields(Counters))]
    return "\n".join(lines)


def _rows(files: tuple[File, ...]) -> list[list[str]]:
    return [[code(file.pattern), file.meaning] for file in files]


def _fields(kind: type) -> list[list[str]]:
    return [[code(f.name), f.kind, code(f.default), f.help] for f in config_fields(kind)]


def unmatched(directory: Path, files: tuple[File, ...]) -> tuple[list[str], list[str]]:
    """Return files of a directory without a pattern, and patterns without a file that are not rare."""
    names = [p.relative_to(directory).as_posix() for p in sorted(directory.rglob("*")) if p.is_file()]
    unknown = [name for name in names if not any(fnmatch.fnmatch(name, file.pattern) for file in files)]
    missing = [
        file.pattern
        for file in files
        if not file.rare and not any(fnmatch.fnmatch(name, file.pattern) for name in names)
    ]
    return unknown, missing
