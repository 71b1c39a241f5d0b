"""Recording: the Watch that writes a run directory and shows the panel."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections import deque
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from troop.core.engine import Counters, Result
from troop.core.errors import SetupProblem, TroopError
from troop.envs.atari_scores import human_normalized
from troop.logs.bottleneck import at_rest, bottleneck
from troop.logs.console import Console
from troop.logs.jsonl import Metrics
from troop.logs.progress import Progress
from troop.logs.tensorboard import TensorBoard
from troop.logs.topology import Group, flow, folded, groups, ratios
from troop.runs import checkpoint, curve
from troop.runs.directory import RunDirectory
from troop.runs.summary import Status, Summary

if TYPE_CHECKING:
    from troop.experiment import Experiment

RATE_WINDOW = 10  # log lines over which rates are averaged


class RunRecorder:
    """Metrics, checkpoints, summary and panel of a run; one signal asks for an end, two are one."""

    def __init__(
        self, experiment: Experiment, directory: RunDirectory, start: Counters | None, quiet: bool
    ) -> None:
        self.experiment, self.directory, self.start = experiment, directory, start
        self.console = Console(stream=open(os.devnull, "w") if quiet else None)  # noqa: SIM115 - lives as long as the run
        self.history: list[float] = []
        self.last: dict[str, float] = {}
        self.evaluation: dict[str, float] = {}
        self.marks: deque[Counters] = deque([start or Counters()], maxlen=RATE_WINDOW)
        self.newest = self.marks[0]
        self.roles: list[Group] = []  # as they last were at work
        self.asked = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        resume = (self.start.env_steps, self.start.updates) if self.start else None
        self.metrics = Metrics(self.directory.metrics, resume=resume, warn=self.note)
        self.tensorboard = TensorBoard(self.directory.path, self.start.env_steps if self.start else None)
        for row in curve.rows(self.directory.path) if self.start else []:
            if isinstance(value := row.get("eval/return_mean"), int | float):
                self.history.append(value)
                self.evaluation = {name: x for name, x in row.items() if name.startswith("eval/")}
        for name in (signal.SIGINT, signal.SIGTERM):
            try:
                self._handlers[name] = signal.signal(name, self._asked)
            except ValueError:  # not the main thread: whoever runs us handles signals
                break
        experiment = self.experiment
        self.console.start(
            f"{experiment.recipe} on {experiment.env.id}", f"seed {experiment.seed}, {self.directory.path}"
        )
        self._summary("running", self.start or Counters()).write(self.directory.path)
        return self

    def __exit__(self, *_: object) -> None:
        self.console.stop()
        self.metrics.close()
        self.tensorboard.close()
        for name, handler in self._handlers.items():
            signal.signal(name, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            os._exit(130)  # asked twice: at once
        self.asked = True

    def stop_requested(self) -> bool:
        """Whether a signal came."""
        return self.asked

    def note(self, text: str) -> None:
        """A line above the panel."""
        self.console.note(text)

    def log(self, counters: Counters, metrics: dict[str, float]) -> None:
        """One line of metrics, and the panel."""
        self.last |= metrics
        self.newest = counters
        before = self.marks[0]
        self.marks.append(counters)
        seconds = max(counters.wall_s - before.wall_s, 1e-9)
        rates = {
            "rate/env_steps_per_s": (counters.env_steps - before.env_steps) / seconds,
            "rate/updates_per_s": (counters.updates - before.updates) / seconds,
        }
        extra = {
            "count/episodes": counters.episodes,
            "count/env_faults": counters.env_faults,
            "count/skipped_updates": counters.skipped_updates,
            "count/restarts": counters.restarts,
            "time/evaluation_s": counters.evaluation_s,
        }
        self.last |= rates
        extra |= ratios(self.last)
        roles = groups(self.last)
        self.roles = self.roles if at_rest(roles) else roles
        progress = self._progress(counters, roles)
        said: dict[str, Any] = {"bottleneck": progress.bottleneck} if progress.bottleneck else {}
        if progress.flow.age_s is not None:
            said["replay/age_s"] = round(progress.flow.age_s, 3)
        self._write(counters, folded(metrics) | rates | extra | said)
        self.console.show(progress)

    def _write(self, counters: Counters, values: dict[str, Any]) -> None:
        for sink in (self.metrics, self.tensorboard):
            sink.write(round(counters.wall_s, 3), counters.env_steps, counters.updates, values)

    def evaluated(self, counters: Counters, metrics: dict[str, float]) -> None:
        """Write an evaluation as its own line, with the human-normalized score of an Atari game."""
        normalized = human_normalized(self.experiment.env.id, metrics["eval/return_mean"])
        if normalized is not None:
            metrics = metrics | {"eval/human_normalized": normalized}
        self.evaluation, self.newest = metrics, counters
        self.history.append(metrics["eval/return_mean"])
        self._write(counters, metrics)
        try:
            self._summary("running", counters).write(self.directory.path)
        except SetupProblem as problem:  # a full disk must not stop training
            self.note(str(problem))
        self.console.show(self._progress(counters, self.roles))

    def save(self, counters: Counters, state: dict[str, Any], last: bool) -> None:
        """A checkpoint; a disk that is full is told and training goes on, unless it is the last."""
        self.newest = counters
        info = {"env_steps": counters.env_steps, "counters": dataclasses.asdict(counters)}
        finite = ("policy", *(name for name in state if name.endswith(".algorithm")))
        try:
            checkpoint.save(self.directory.checkpoints, state, info, keep=2, finite=finite)
        except SetupProblem as problem:
            if last:
                raise
            self.note(f"no checkpoint this time: {problem}")

    def restore(self, nodes: list[str]) -> dict[str, Any] | None:
        """The parts, named `node.part`, of these nodes in the newest valid checkpoint; None without one."""
        loaded = checkpoint.load_parts(self.directory.checkpoints, [f"{node}." for node in nodes])
        if loaded is None:
            return None
        for text in loaded.skipped:
            self.note(f"skipped {text}")
        return loaded.state

    def ended(self, result: Result) -> None:
        """Summary and curve of a run that is done or stopped."""
        counters = result.counters
        self._summary(result.status, counters).write(self.directory.path)
        self.console.show(self._progress(counters, self.roles))
        try:
            curve.plot(self.directory.path, self.directory.path / "curve.png")
        except (TroopError, OSError) as problem:
            self.note(f"no curve.png: {problem}")

    def failed(self, message: str) -> None:
        """Summary of a run that went wrong; never hides why."""
        try:
            self._summary("failed", self.newest, message).write(self.directory.path)
        except (SetupProblem, OSError):
            self.note("summary.json could not be written")

    def _summary(self, status: Status, counters: Counters, message: str | None = None) -> Summary:
        seconds = max(counters.wall_s, 1e-9)
        return Summary(
            status=status,
            return_mean=self.evaluation.get("eval/return_mean"),
            return_std=self.evaluation.get("eval/return_std"),
            episodes=int(self.evaluation.get("eval/episodes", 0)),
            env_steps=counters.env_steps,
            updates=counters.updates,
            wall_s=counters.wall_s,
            env_steps_per_s=counters.env_steps / seconds,
            updates_per_s=counters.updates / seconds,
            target_reached_s=counters.target_reached_s,
            restarts=counters.restarts,
            recipe=self.experiment.recipe,
            env=self.experiment.env.id,
            seed=self.experiment.seed,
            target=self.experiment.until.target,
            evaluation_s=counters.evaluation_s,
            env_faults=counters.env_faults,
            skipped_updates=counters.skipped_updates,
            message=message,
        )

    def _progress(self, counters: Counters, roles: list[Group]) -> Progress:
        until = self.experiment.until
        parts = []
        if until.minutes:
            parts.append(counters.wall_s / (60 * until.minutes))
        if until.env_steps:
            parts.append(counters.env_steps / until.env_steps)
        fraction = min(max(parts), 1.0) if parts else None
        left = counters.wall_s * (1 / fraction - 1) if fraction else None
        flowing = flow(self.last)
        return Progress(
            env_steps=counters.env_steps,
            updates=counters.updates,
            wall_s=counters.wall_s,
            evaluation_s=counters.evaluation_s,
            env_steps_per_s=self.last.get("rate/env_steps_per_s", 0.0),
            updates_per_s=self.last.get("rate/updates_per_s", 0.0),
            return_mean=self.evaluation.get("eval/return_mean"),
            return_std=self.evaluation.get("eval/return_std"),
            human_normalized=self.evaluation.get("eval/human_normalized"),
            best=max(self.history, default=None),
            target=until.target,
            episode_return=self.last.get("train/return"),
            losses={name: value for name, value in self.last.items() if name.startswith(("loss/", "value/"))},
            fraction=fraction,
            seconds_left=left,
            counters={
                "env faults": counters.env_faults,
                "skipped updates": counters.skipped_updates,
                "restarts": counters.restarts,
            },
            flow=flowing,
            roles=roles,
            bottleneck=str(bottleneck(roles, flowing, counters.updates) or ""),
            history=self.history,
        )
