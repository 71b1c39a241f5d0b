"""Session: start or resume every run of some plans that is not done, one at a time, in a child process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Protocol

from troop.compare.machine import background_load
from troop.compare.plan import Attempt, ComparisonPlan, run_path
from troop.compare.planned_code import planned_code
from troop.compare.run_result import RunStatus, read_run
from troop.core.errors import BadInput
from troop.logs.progress import count, duration, number
from troop.runs import files
from troop.runs.directory import CHECKPOINTS, CONFIG
from troop.runs.summary import Summary

COMMAND = (sys.executable, "-m", "troop.compare.child")


@dataclass(eq=False)
class Comparison:
    """A plan and its directory; the plan grows with each attempt."""

    plan: ComparisonPlan
    folder: Path
    prefix: str = ""  # of the names of its runs in messages

    def record(self, attempt: Attempt) -> None:
        """Add the attempt to the plan, or replace it, and store the plan."""
        self.plan = self.plan.with_attempt(attempt)
        self.plan.write(self.folder)


class SessionReport(Protocol):
    """Writes the results of a session."""

    command: str  # that continues the session

    def write(self, comparison: Comparison) -> None:
        """Rewrite the result files after a run of `comparison`."""
        ...

    def show(self) -> None:
        """Rewrite all result files and print the results."""
        ...


class Session:
    """Executes plans; of SIGINT or SIGTERM the first lets the child save, the second ends it at once."""

    def __init__(
        self, comparisons: list[Comparison], report: SessionReport, command: tuple[str, ...] = COMMAND
    ) -> None:
        self.comparisons, self.report, self.command = comparisons, report, command
        self.signals = 0  # received so far
        self.child: subprocess.Popen[bytes] | None = None

    def runs(self) -> list[tuple[Comparison, str, int]]:
        """Return every run, seed by seed, so that a session stopped early has all tasks and recipes."""
        seeds = range(1, 1 + max(comparison.plan.seeds for comparison in self.comparisons))
        return [
            (comparison, recipe, seed)
            for seed in seeds
            for comparison in self.comparisons
            for recipe in comparison.plan.recipes
            if seed <= comparison.plan.seeds
        ]

    def run(self) -> int:
        """Return 0 if every run is done, 3 if some are unfinished, 4 if some failed."""
        runs = self.runs()
        left = [run for run in runs if self._status(*run) != "done"]
        if len(left) < len(runs):
            self._print(f"{len(runs) - len(left)} of {len(runs)} runs are done already.")
        with self._signal_handlers():
            for index, run in enumerate(left):
                if self.signals:
                    break
                comparison, recipe, seed = run
                position = f"[{runs.index(run) + 1}/{len(runs)}]"
                name = f"{position} {comparison.prefix}{recipe} seed {seed}"
                self._run_one(comparison, recipe, seed, name, len(left) - index)
                self.report.write(comparison)
        self.report.show()
        return self._exit_code({self._status(*run) for run in runs})

    def _status(self, comparison: Comparison, recipe: str, seed: int) -> RunStatus:
        return read_run(comparison.plan, comparison.folder, recipe, seed).status

    def _exit_code(self, statuses: set[RunStatus]) -> int:
        if statuses & {"waiting", "unfinished"}:
            self._print(f"Stopped; finished runs are kept. Continue with: {self.report.command}")
            return 3
        if "failed" in statuses:
            self._print(f"Some runs failed. Retry them with: {self.report.command}")
            return 4
        return 0

    def _run_one(self, comparison: Comparison, recipe: str, seed: int, name: str, left: int) -> None:
        """Start or resume one run, wait for it, and store the outcome in the plan."""
        plan, path = comparison.plan, run_path(comparison.folder, recipe, seed)
        resumable = self._prepare(path)
        total = ""
        if plan.minutes is not None:
            total = f"; at most {duration(60 * plan.minutes * left)} for all remaining runs"
        self._print(f"{name}: {'resuming' if resumable else 'starting'} ({plan.budget}{total})")
        started = datetime.now().isoformat(timespec="milliseconds")
        attempt = Attempt(recipe, seed, started, round(background_load(), 3))
        comparison.record(attempt)
        allow = dict.fromkeys(name for _, name in planned_code(plan))  # checked when the plan was opened
        argv = [*self.command, *allow, str(comparison.folder), recipe, str(seed)]
        code = self._run_child(argv, path.with_suffix(".stderr"))
        outcome, reason = self._outcome(path, code)
        comparison.record(dataclasses.replace(attempt, outcome=outcome, reason=reason))
        text = self._result_text(path) if outcome == "done" else f"{outcome}. {reason}".strip()
        self._print(f"{name}: {text}")

    def _prepare(self, path: Path) -> bool:
        """Return whether the run can be resumed; move a run directory without a checkpoint aside."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink() or path.parent.is_symlink():
                raise BadInput(f"{path} is a link out of the comparison; remove it.")
            if not (path / CONFIG).exists():
                return False
            if any((path / CHECKPOINTS).glob("ckpt-*/manifest.json")):
                return True
            number = 1
            while (aside := path.with_name(f"{path.name}-aside-{number}")).exists():
                number += 1
            path.rename(aside)
        except OSError as error:
            raise files.disk_problem("prepare", path, error) from error
        return False

    def _run_child(self, argv: list[str], stderr_path: Path) -> int:
        """Run the child in its own process group, which Ctrl-C does not reach; return its exit code."""
        try:
            stderr_path.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            stderr = open(os.open(stderr_path, flags, 0o644), "wb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise files.disk_problem("write", stderr_path, error) from error
        with stderr:
            self.child = subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=stderr, process_group=0)
            if self.signals:  # received while the child was being started
                self._request_stop()
            try:
                return self.child.wait()
            finally:
                self._request_stop()
                self.child = None

    def _outcome(self, path: Path, code: int) -> tuple[str, str]:
        """Return how the run ended, and the reason if it failed."""
        stderr_path = path.with_suffix(".stderr")
        stopped = self.signals and code not in (2, 4, 5)  # an interrupted start may exit with any other code
        if code == 0 or stopped:
            stderr_path.unlink(missing_ok=True)
            return ("done" if code == 0 else "stopped"), ""
        if code == 3:
            return "stopped", "Another process stopped the run."
        with contextlib.suppress(BadInput):
            summary = Summary.read(path)
            if summary.status == "failed" and summary.message:
                return "failed", summary.message
        lines = stderr_path.read_text(errors="replace").strip().splitlines()
        if lines and lines[-1].startswith("troop: "):
            return "failed", lines[-1].removeprefix("troop: ")
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return "failed", f"Its process was ended by {name}; if memory ran out, lower --envs."
        return "failed", f"Its process ended with exit code {code}; see {stderr_path}."

    def _result_text(self, path: Path) -> str:
        summary = Summary.read(path)
        return (
            f"return {number(summary.return_mean)} after {count(summary.env_steps)} env steps "
            f"in {duration(summary.wall_s)}"
        )

    @contextlib.contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        previous = {name: signal.signal(name, self._on_signal) for name in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for name, handler in previous.items():
                signal.signal(name, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signals += 1
        if self.child is None:
            return
        if self.signals == 1:
            self._request_stop()
        elif self.signals == 2:
            self.child.send_signal(signal.SIGINT)  # the second one for the child, too: it exits at once
        else:
            self.child.kill()

    def _request_stop(self) -> None:
        """Close the child's standard input, upon which it saves a checkpoint and exits."""
        if self.child is not None and self.child.stdin is not None:
            self.child.stdin.close()

    def _print(self, text: str) -> None:
        print(text, flush=True)
