"""Session: start or resume every run of a plan that is not done, one at a time, each in a child process."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import FrameType

from troop.compare import report, run_result
from troop.compare.machine import background_load
from troop.compare.plan import Attempt, ComparisonPlan, run_path
from troop.core.errors import BadInput
from troop.logs.progress import count, duration, number
from troop.runs import files
from troop.runs.directory import CHECKPOINTS, CONFIG
from troop.runs.summary import Summary

COMMAND = (sys.executable, "-m", "troop.compare.child")


class Session:
    """Executes a plan; of SIGINT or SIGTERM the first lets the child save, the second ends it at once."""

    def __init__(self, plan: ComparisonPlan, folder: Path, command: tuple[str, ...] = COMMAND) -> None:
        self.plan, self.folder, self.command = plan, folder, command
        self.signals = 0  # received so far
        self.child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Return 0 if every run is done, 3 if some are unfinished, 4 if some failed."""
        runs = list(self.plan.runs())
        done = [run for run in runs if run_result.read_run(self.plan, self.folder, *run).status == "done"]
        if done:
            self._print(f"{len(done)} of {len(runs)} runs are done already.")
        with self._signal_handlers():
            for position, (recipe, seed) in enumerate(runs, 1):
                if (recipe, seed) in done:
                    continue
                if self.signals:
                    break
                remaining = sum(run not in done for run in runs[position - 1 :])
                self._run_one(recipe, seed, f"[{position}/{len(runs)}] {recipe} seed {seed}", remaining)
                report.write(self.plan, self.folder)
        return self._report()

    def _report(self) -> int:
        results, texts = report.write(self.plan, self.folder)
        report.show(self.plan, self.folder, results, texts)
        statuses = {run.status for result in results for run in result.runs}
        command = f"troop compare --run {self.folder}"
        if statuses & {"waiting", "unfinished"}:
            self._print(f"Stopped; finished runs are kept. Continue with: {command}")
            return 3
        if "failed" in statuses:
            self._print(f"Some runs failed. Retry them with: {command}")
            return 4
        return 0

    def _run_one(self, recipe: str, seed: int, name: str, remaining: int) -> None:
        """Start or resume one run, wait for it, and store the outcome in the plan."""
        path = run_path(self.folder, recipe, seed)
        resumable = self._prepare(path)
        minutes = self.plan.minutes
        total = (
            f"; at most {duration(60 * minutes * remaining)} for all remaining runs"
            if minutes is not None
            else ""
        )
        self._print(f"{name}: {'resuming' if resumable else 'starting'} ({self.plan.budget}{total})")
        started = datetime.now().isoformat(timespec="milliseconds")
        attempt = Attempt(recipe, seed, started, round(background_load(), 3))
        self._record(attempt)
        code = self._run_child(recipe, seed, path.with_suffix(".stderr"))
        outcome, reason = self._outcome(path, code)
        self._record(dataclasses.replace(attempt, outcome=outcome, reason=reason))
        text = self._result_text(path) if outcome == "done" else f"{outcome}. {reason}".strip()
        self._print(f"{name}: {text}")

    def _prepare(self, path: Path) -> bool:
        """Return whether the run can be resumed; move a run directory without a checkpoint aside."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
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

    def _record(self, attempt: Attempt) -> None:
        self.plan = self.plan.with_attempt(attempt)
        self.plan.write(self.folder)

    def _run_child(self, recipe: str, seed: int, stderr_path: Path) -> int:
        """Run the child in its own process group, which Ctrl-C does not reach; return its exit code."""
        argv = [*self.command, str(self.folder), recipe, str(seed)]
        try:
            stderr = open(stderr_path, "wb")  # noqa: SIM115 - closed below
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
