"""Session: every run that is not done yet, one after another, each in a process of its own."""

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
from troop.compare.machine import busy
from troop.compare.plan import Attempt, Plan, run_path
from troop.core.errors import BadInput
from troop.logs.progress import count, duration, number
from troop.runs import files
from troop.runs.directory import CHECKPOINTS, CONFIG
from troop.runs.summary import Summary

COMMAND = (sys.executable, "-m", "troop.compare.child")


class Session:
    """One go at a plan; a signal ends it after the child has saved, a second one at once."""

    def __init__(self, plan: Plan, folder: Path, command: tuple[str, ...] = COMMAND) -> None:
        self.plan, self.folder, self.command = plan, folder, command
        self.asked = 0
        self.child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """0 if every run is done, 3 if some are not finished, 4 if some failed."""
        runs = list(self.plan.runs())
        done = [run for run in runs if run_result.read(self.plan, self.folder, *run).status == "done"]
        if done:
            self._say(f"{len(done)} of {len(runs)} runs are done already.")
        with self._listening():
            for position, (recipe, seed) in enumerate(runs, 1):
                if (recipe, seed) in done:
                    continue
                if self.asked:
                    break
                left = sum(run not in done for run in runs[position - 1 :])
                self._one(recipe, seed, f"[{position}/{len(runs)}] {recipe} seed {seed}", left)
                report.write(self.plan, self.folder)
        return self._ended()

    def _ended(self) -> int:
        found, told = report.write(self.plan, self.folder)
        report.show(self.plan, self.folder, found, told)
        statuses = {run.status for standing in found for run in standing.runs}
        again = f"troop compare --run {self.folder}"
        if statuses & {"waiting", "unfinished"}:
            self._say(f"Stopped; what is done is kept. Go on with: {again}")
            return 3
        if "failed" in statuses:
            self._say(f"Some runs failed. To try them again: {again}")
            return 4
        return 0

    def _one(self, recipe: str, seed: int, name: str, left: int) -> None:
        """Run or resume one, and write down how it ended."""
        path = run_path(self.folder, recipe, seed)
        again = self._prepared(path)
        minutes = self.plan.minutes
        rest = (
            f"; {duration(60 * minutes * left)} at most for all that are left" if minutes is not None else ""
        )
        self._say(f"{name}: {'goes on' if again else 'begins'} ({self.plan.budget}{rest})")
        started = datetime.now().isoformat(timespec="milliseconds")
        attempt = Attempt(recipe, seed, started, round(busy(), 3))
        self._note(attempt)
        code = self._wait(recipe, seed, path.with_suffix(".stderr"))
        outcome, reason = self._outcome(path, code)
        self._note(dataclasses.replace(attempt, outcome=outcome, reason=reason))
        self._say(f"{name}: {self._told(path) if outcome == 'done' else f'{outcome}. {reason}'.strip()}")

    def _prepared(self, path: Path) -> bool:
        """Whether there is something to go on with; a start that left no checkpoint is moved aside."""
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

    def _note(self, attempt: Attempt) -> None:
        self.plan = self.plan.noted(attempt)
        self.plan.write(self.folder)

    def _wait(self, recipe: str, seed: int, errors: Path) -> int:
        """The exit code of the child. Its own process group: a Ctrl-C reaches it through us, and once."""
        argv = [*self.command, str(self.folder), recipe, str(seed)]
        try:
            stderr = open(errors, "wb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise files.disk_problem("write", errors, error) from error
        with stderr:
            self.child = subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=stderr, process_group=0)
            if self.asked:  # while it was being started
                self._let_go()
            try:
                return self.child.wait()
            finally:
                self._let_go()
                self.child = None

    def _outcome(self, path: Path, code: int) -> tuple[str, str]:
        """How a run ended, and why if it failed."""
        errors = path.with_suffix(".stderr")
        stopped = self.asked and code not in (2, 4, 5)  # whatever an interrupted start ends with
        if code == 0 or stopped:
            errors.unlink(missing_ok=True)
            return ("done" if code == 0 else "stopped"), ""
        if code == 3:
            return "stopped", "Somebody else stopped it."
        with contextlib.suppress(BadInput):
            summary = Summary.read(path)
            if summary.status == "failed" and summary.message:
                return "failed", summary.message
        said = errors.read_text(errors="replace").strip().splitlines()
        if said and said[-1].startswith("troop: "):
            return "failed", said[-1].removeprefix("troop: ")
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return "failed", f"Its process was ended by {name}; if that was for want of memory, lower --envs."
        return "failed", f"Its process ended with exit code {code}; see {errors}."

    def _told(self, path: Path) -> str:
        """A run that is done, in a line."""
        found = Summary.read(path)
        return (
            f"return {number(found.return_mean)} after {count(found.env_steps)} env steps "
            f"in {duration(found.wall_s)}"
        )

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        handlers = {name: signal.signal(name, self._asked) for name in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for name, handler in handlers.items():
                signal.signal(name, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1
        if self.child is None:
            return
        if self.asked == 1:
            self._let_go()
        elif self.asked == 2:
            self.child.send_signal(signal.SIGINT)  # the second for the child too: it ends at once
        else:
            self.child.kill()

    def _let_go(self) -> None:
        """The child stops when its standard input closes."""
        if self.child is not None and self.child.stdin is not None:
            self.child.stdin.close()

    def _say(self, text: str) -> None:
        print(text, flush=True)
