"""Compare env steps per second of complete PPO training: Troop, CleanRL, Stable-Baselines3, Sample Factory.

`python benchmarks/peers/ppo.py` runs every library on every task in turn, each in a virtual environment of
its own, `--rounds` times, and prints one table with the medians. It needs only Python's standard library.
README.md describes what is equal and what is not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppo_workload import RESULT, WORKLOADS

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
    only_torch: bool = False  # of the constraints: the library needs other versions of the rest


LIBRARIES = {
    "troop": Library("Troop", (f"{ROOT}[envpool]",), "ppo_troop.py"),
    "cleanrl": Library("CleanRL's structure", ("envpool", "gymnasium"), "ppo_plain.py"),
    "sb3": Library("Stable-Baselines3", ("stable-baselines3", "envpool", "gymnasium[mujoco]"), "ppo_sb3.py"),
    "sample-factory": Library(
        "Sample Factory",
        ("sample-factory==2.1.1", "envpool==1.2.5", "gymnasium[mujoco]<1"),
        "ppo_sample_factory.py",
        only_torch=True,
    ),
}


def create_venv(name: str) -> Path:
    """Create the virtual environment of a library unless it is complete; return its Python interpreter."""
    packages, folder = list(LIBRARIES[name].packages), VENVS / name
    python, stamp = folder / "bin" / "python", folder / "installed.json"
    if stamp.exists() and set(packages) <= set(json.loads(stamp.read_text())):
        return python
    print(f"Installing {', '.join(packages)} in {folder} ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    constraints = CONSTRAINTS
    if LIBRARIES[name].only_torch:
        constraints = folder / "constraints.txt"
        lines = CONSTRAINTS.read_text().splitlines()
        constraints.write_text("\n".join(line for line in lines if line.startswith("torch==")))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    editable = ["--editable"] if name == "troop" else []
    subprocess.run([*pip, "--constraint", str(constraints), "torch", *editable, *packages], check=True)
    stamp.write_text(json.dumps(packages))
    return python


def train(name: str, task: str, seconds: float, verbose: bool) -> dict[str, Any] | None:
    """Train in a child process; return its result, None if it failed."""
    command = [str(create_venv(name)), str(FOLDER / LIBRARIES[name].script), task]
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


def table(tasks: list[str], names: list[str], rates: dict[tuple[str, str], list[float]]) -> str:
    """Return one line per task and library: median env steps per second, and Troop's rate divided by it."""
    rows = [("task", "library", "env steps/s", "Troop is faster by")]
    for task in tasks:
        ours = rates.get((task, "troop"))
        for name in names:
            own = rates.get((task, name))
            rate = f"{statistics.median(own):,.0f}" if own else "-"
            ratio = f"{statistics.median(ours) / statistics.median(own):.2f}" if own and ours else "-"
            rows.append((task, LIBRARIES[name].title, rate, "" if name == "troop" else ratio))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments; argparse ends the program if they are not valid."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tasks", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--libraries", nargs="+", choices=list(LIBRARIES), default=list(LIBRARIES))
    parser.add_argument("--seconds", type=float, default=20.0, help="of a measurement (default 20)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="measurements of each pair, in turn (default 3)"
    )
    parser.add_argument("--verbose", action="store_true", help="show what the libraries print")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Measure all pairs and print the table; return 4 if one failed."""
    args = parse(argv)
    rates: dict[tuple[str, str], list[float]] = {}
    failed = False
    for number in range(1, args.rounds + 1):
        for task in args.tasks:
            for name in args.libraries:
                result = train(name, task, args.seconds, args.verbose)
                if result is None:
                    failed = True
                    continue
                rate = result["env_steps"] / result["seconds"]
                rates.setdefault((task, name), []).append(rate)
                title = f"round {number} of {args.rounds}: {name} on {task}"
                versions = ", ".join(f"{key} {value}" for key, value in result["versions"].items())
                print(f"{title}: {rate:,.0f} env steps/s ({versions})", flush=True)
    print(table(args.tasks, args.libraries, rates))
    return 4 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
