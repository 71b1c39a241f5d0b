"""Compare env steps per second of complete training in several libraries, each in its own environment.

Used by ppo.py and appo.py. It needs only Python's standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppo_workload import RESULT

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
CONSTRAINTS = ROOT / "constraints.txt"  # without its exact torch, pip installs CUDA libraries
VENVS = FOLDER / ".venvs"


@dataclass(frozen=True)
class Library:
    """The packages to install, and the script that trains."""

    title: str
    packages: tuple[str, ...]
    script: str
    arguments: tuple[str, ...] = ()
    venv: str = ""  # name of the environment if several entries share one
    only_torch: bool = False  # of the constraints: the library needs other versions of the rest


def create_venv(name: str, library: Library) -> Path:
    """Create the virtual environment of a library unless it is complete; return its Python interpreter."""
    packages, folder = list(library.packages), VENVS / (library.venv or name)
    python, stamp = folder / "bin" / "python", folder / "installed.json"
    if stamp.exists() and set(packages) <= set(json.loads(stamp.read_text())):
        return python
    print(f"Installing {', '.join(packages)} in {folder} ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    constraints = CONSTRAINTS
    if library.only_torch:
        constraints = folder / "constraints.txt"
        lines = CONSTRAINTS.read_text().splitlines()
        constraints.write_text("\n".join(line for line in lines if line.startswith("torch==")))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    editable = ["--editable"] if packages[0].startswith(str(ROOT)) else []
    subprocess.run([*pip, "--constraint", str(constraints), "torch", *editable, *packages], check=True)
    stamp.write_text(json.dumps(packages))
    return python


def train(name: str, library: Library, task: str, seconds: float, verbose: bool) -> dict[str, Any] | None:
    """Train in a child process; return its result, None if it failed."""
    command = [str(create_venv(name, library)), str(FOLDER / library.script), task, *library.arguments]
    command += ["--seconds", f"{seconds:g}", "--threads", str(os.cpu_count() or 1)]
    limit = 10 * seconds + 300  # imports, envs and the warm-up take time too
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"{name} on {task}: no result within {limit:.0f} s", flush=True)
        return None
    output = done.stdout.decode(errors="replace")
    results = [line for line in output.splitlines() if line.startswith(RESULT)]
    if verbose or not results:
        print(output, flush=True)
    if not results:
        print(f"{name} on {task}: failed with exit code {done.returncode}", flush=True)
        return None
    result: dict[str, Any] = json.loads(results[-1].removeprefix(RESULT))
    return result


Rates = dict[tuple[str, str], list[float]]  # env steps/s of the rounds, by task and library


def table(pairs: Sequence[tuple[str, str]], libraries: Mapping[str, Library], rates: Rates) -> str:
    """Return one line per task and library: median env steps/s, and how much faster Troop is."""
    own = [name for name in libraries if name.startswith("troop")]
    rows = [("task", "library", "env steps/s", *(f"{libraries[name].title} is faster by" for name in own))]
    for task, name in pairs:
        rate = statistics.median(rates[task, name]) if (task, name) in rates else None
        ratios = [
            f"{statistics.median(rates[task, ours]) / rate:.2f}"
            if rate and (task, ours) in rates and name not in own
            else ""
            for ours in own
        ]
        rows.append((task, libraries[name].title, f"{rate:,.0f}" if rate else "-", *ratios))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def parse(argv: list[str], libraries: Mapping[str, Library], tasks: Mapping[str, Sequence[str]]) -> Any:  # noqa: ANN401
    """Return the arguments; argparse ends the program if they are not valid."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", choices=list(tasks), default=list(tasks))
    parser.add_argument("--libraries", nargs="+", choices=list(libraries), default=list(libraries))
    parser.add_argument("--seconds", type=float, default=20.0, help="of a measurement (default 20)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="measurements of each pair, in turn (default 3)"
    )
    parser.add_argument("--verbose", action="store_true", help="show what the libraries print")
    return parser.parse_args(argv)


def compare(argv: list[str], libraries: Mapping[str, Library], tasks: Mapping[str, Sequence[str]]) -> int:
    """Measure the libraries of each task in turn and print the table; return 4 if one failed."""
    args = parse(argv, libraries, tasks)
    pairs = [(task, name) for task in args.tasks for name in tasks[task] if name in args.libraries]
    rates: Rates = {}
    failed = False
    for number in range(1, args.rounds + 1):
        for task, name in pairs:
            result = train(name, libraries[name], task, args.seconds, args.verbose)
            if result is None:
                failed = True
                continue
            rate = result["env_steps"] / result["seconds"]
            rates.setdefault((task, name), []).append(rate)
            title = f"round {number} of {args.rounds}: {name} on {task}"
            versions = ", ".join(f"{key} {value}" for key, value in result["versions"].items())
            print(f"{title}: {rate:,.0f} env steps/s ({versions})", flush=True)
    print(table(pairs, libraries, rates))
    return 4 if failed else 0
