"""RunRecorder: the RunObserver that writes the files of a run directory and shows the panel."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from troop.core.engine import Counters, Result
from troop.core.errors import SetupProblem, TroopError
from troop.core.program import Program, references
from troop.engines.stop_signals import StopSignals
from troop.envs.atari_scores import human_normalized
from troop.logs.bottleneck import bottleneck, paused, split_bottleneck, time_split
from troop.logs.console import Console
from troop.logs.flow import Flow, ratio_metrics, read_flow
from troop.logs.jsonl import MetricsWriter
from troop.logs.memory_growth import MemoryGrowth
from troop.logs.process_usage import ProcessUsage
from troop.logs.progress import Progress
from troop.logs.saturation import SaturationMonitor
from troop.logs.tensorboard import TensorBoard
from troop.logs.topology import NodeSpec, RatioSpec, RoleGroup, Topology, fold_groups, groups
from troop.runs import checkpoint, curve, files
from troop.runs.directory import RunDirectory
from troop.runs.summary import Status, Summary

if TYPE_CHECKING:
    from troop.experiment import Experiment

RATE_WINDOW = 10  # log lines over which rates are averaged
SPLIT_WINDOW = 60  # log lines over which the shares of time are averaged; evaluations are rare


def describe(program: Program) -> Topology:
    """The nodes, calls and ratios of a program as plain data for the panel."""
    nodes = [
        NodeSpec(name, node.kind, tuple(ref.name for ref in references(node.build)))
        for name, node in program.nodes.items()
    ]
    ratios = [
        RatioSpec(ratio.name, ratio.numerator, ratio.denominator, ratio.unit, ratio.target)
        for ratio in program.ratios
    ]
    return Topology(tuple(nodes), tuple(ratios))


class RunRecorder:
    """Writes metrics, checkpoints and the summary of a run and shows its panel.

    The first SIGINT, SIGTERM, SIGHUP or SIGUSR1 requests a resumable stop; the second exits at once.
    """

    def __init__(
        self,
        experiment: Experiment[Any],
        program: Program,
        directory: RunDirectory,
        start: Counters | None,
        quiet: bool,
        console: Console | None = None,
    ) -> None:
        self.experiment, self.directory, self.start = experiment, directory, start
        self.topology = describe(program)
        stream = open(os.devnull, "w") if quiet else None  # noqa: SIM115 - open until the run ends
        self.console = console or Console(stream)
        self.return_history: list[float] = []
        self.latest_metrics: dict[str, float] = {}
        self.evaluation: dict[str, float] = {}
        self.recent_counters: deque[Counters] = deque([start or Counters()], maxlen=SPLIT_WINDOW)
        self.newest_counters = self.recent_counters[0]
        self.saturation = SaturationMonitor(experiment.algorithm)
        self.memory_growth, self.usage = MemoryGrowth(), ProcessUsage()
        self.working_roles: list[RoleGroup] = []  # as of the last line in which they were not paused
        self._stalled_s = 0  # seconds without a step, if there was none for long
        self._signals = StopSignals(self._exit_at_once)

    def __enter__(self) -> Self:
        resume = (self.start.env_steps, self.start.updates) if self.start else None
        self.metrics = MetricsWriter(self.directory.metrics, resume=resume, warn=self.note)
        resume_at = self.start.env_steps if self.start else None
        self.tensorboard = TensorBoard(self.directory.path, resume_at, self.note)
        for row in curve.read_rows(self.directory.path) if self.start else []:
            values = {name: files.finite_number(row[name]) for name in row if name.startswith("eval/")}
            if (value := values.get("eval/return_mean")) is not None:
                self.return_history.append(value)
                self.evaluation = {name: x for name, x in values.items() if x is not None}
        self._signals.__enter__()
        experiment = self.experiment
        self.console.start(
            f"{experiment.recipe} on {experiment.env.id}",
            f"seed {experiment.seed}, {self.directory.path}",
            "building envs, networks and replay",
        )
        self._summary("running", self.start or Counters()).write(self.directory.path)
        return self

    def __exit__(self, *_: object) -> None:
        self.console.stop()
        self.metrics.close()
        self.tensorboard.close()
        self._signals.__exit__()

    def _exit_at_once(self) -> None:
        """Exit without waiting for a checkpoint."""
        with contextlib.suppress(Exception):
            message = "ended by a second signal; the last checkpoint can be resumed"
            self._summary("stopped", self.newest_counters, message).write(self.directory.path)
        os._exit(130)

    def stop_requested(self) -> bool:
        """Whether a signal requested a stop."""
        return self._signals.requested()

    def note(self, text: str) -> None:
        """Print a line above the panel."""
        self.console.note(text)

    def write_file(self, name: str, text: str) -> None:
        """Write the first faulty transition of an env, unless there is such a file, and note its path."""
        path = self.directory.path / name
        if re.fullmatch(r"[a-z_]+\.json", name) and not path.exists():
            try:
                files.write_text(path, text)
                self.note(f"an env returned NaN or infinity; the first such transition is in {path}")
            except SetupProblem as problem:
                self.note(str(problem))

    def report_stall(self, seconds: float, text: str) -> None:
        """Print `text` and show on the panel that there was no step for `seconds`."""
        self._stalled_s = int(seconds)
        if text:
            self.note(text)
        self.console.show(self._progress(self.newest_counters, self.working_roles))

    def exit_process(self, end: Result | TroopError) -> None:
        """Write the summary of a run whose thread does not return, end all child processes, and exit."""
        if isinstance(end, TroopError):
            self.record_failure(str(end))
            code, line = end.exit_code, f"troop: {end}"
        else:
            self._write_summary(end.status, end.counters)
            code, line = (
                3 if end.status == "stopped" else 0,
                f"Ended; continue with: troop resume {self.directory.path}",
            )
        self.metrics.close()
        self.console.stop()
        import psutil

        print(line, file=sys.stderr, flush=True)
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
        os._exit(code)

    def log(self, counters: Counters, metrics: dict[str, float]) -> None:
        """Write one line of metrics and draw the panel."""
        self._stalled_s = 0
        self.newest_counters = counters
        before = list(self.recent_counters)[-RATE_WINDOW:][0]
        self.recent_counters.append(counters)
        seconds = max(counters.wall_s - before.wall_s, 1e-9)
        rates = {
            "rate/env_steps_per_s": (counters.env_steps - before.env_steps) / seconds,
            "rate/updates_per_s": (counters.updates - before.updates) / seconds,
        }
        rates |= {f"process/{name}": value for name, value in self.usage.read().items()}
        self.latest_metrics |= metrics | rates
        warnings = [self.saturation.update(metrics), *self.memory_growth.update(metrics | rates)]
        for warning in filter(None, warnings):
            self.note(warning)
        flow = read_flow(self.latest_metrics, self.topology)
        roles = groups(self.latest_metrics, self.topology)
        self.working_roles = self.working_roles if paused(roles) else roles
        progress = self._progress(counters, roles, flow)
        derived: dict[str, Any] = ratio_metrics(flow)
        if progress.bottleneck:
            derived["bottleneck"] = progress.bottleneck
        if flow.sample_age_s is not None:
            derived["replay/sample_age_s"] = round(flow.sample_age_s, 3)
        self._write(counters, fold_groups(metrics) | rates | _counter_metrics(counters) | derived)
        self.console.show(progress)

    def _write(self, counters: Counters, values: dict[str, Any]) -> None:
        for writer in (self.metrics, self.tensorboard):
            writer.write(round(counters.wall_s, 3), counters.env_steps, counters.updates, values)

    def log_evaluation(self, counters: Counters, metrics: dict[str, float]) -> None:
        """Write an evaluation as its own line, with the human-normalized score of an Atari game."""
        normalized = human_normalized(self.experiment.env.id, metrics["eval/return_mean"])
        if normalized is not None:
            metrics = metrics | {"eval/human_normalized": normalized}
        self.evaluation, self.newest_counters = metrics, counters
        self.return_history.append(metrics["eval/return_mean"])
        self._write(counters, metrics)
        self._write_summary("running", counters)
        self.console.show(self._progress(counters, self.working_roles))

    def save(self, counters: Counters, state: dict[str, Any], last: bool) -> None:
        """Write a checkpoint; if the disk is full, only a `last` checkpoint raises SetupProblem."""
        self.newest_counters = counters
        self._follow_directory()
        value = self.evaluation.get("eval/return_mean", math.nan)
        info = {
            "env_steps": counters.env_steps,
            "counters": dataclasses.asdict(counters),
            "return_mean": value if math.isfinite(value) else None,
        }
        finite = ("policy", *(name for name in state if name.endswith(".algorithm")))
        try:
            checkpoint.save(self.directory.checkpoints, state, info, keep=2, finite=finite)
        except SetupProblem as problem:
            if last:
                raise
            self.note(f"no checkpoint was written: {problem}")

    def _follow_directory(self) -> None:
        """Find the run directory again if it was renamed, and create it again if it was removed."""
        try:
            text = self.directory.follow(self.experiment.to_dict())
        except TroopError as problem:
            text = str(problem)
        if not text:
            return
        self.note(text)
        if not self.metrics.is_in(self.directory.path):
            self.metrics.close()
            self.metrics = MetricsWriter(self.directory.metrics, warn=self.note)
            self.tensorboard.close()
            self.tensorboard = TensorBoard(self.directory.path, warn=self.note)

    def restore(self, nodes: list[str]) -> dict[str, Any] | None:
        """The parts, named `node.part`, of these nodes in the newest valid checkpoint; None without one."""
        loaded = checkpoint.load_parts(self.directory.checkpoints, [f"{node}." for node in nodes])
        if loaded is None:
            return None
        for text in loaded.skipped:
            self.note(f"skipped {text}")
        return loaded.state

    def record_end(self, result: Result) -> None:
        """Write the summary and the learning curve of a run that is done or stopped."""
        counters = result.counters
        self._follow_directory()
        self._summary(result.status, counters).write(self.directory.path)
        self.console.show(self._progress(counters, self.working_roles))
        try:
            curve.plot(self.directory.path, self.directory.path / "curve.png")
        except Exception as problem:  # matplotlib may raise anything, e.g. for the name of a recipe
            self.note(f"no curve.png: {problem}")

    def record_failure(self, message: str, status: Status = "failed") -> None:
        """Write the summary of a run that ended early."""
        self._write_summary(status, self.newest_counters, message)

    def _write_summary(self, status: Status, counters: Counters, message: str | None = None) -> None:
        """Write the summary; a full disk is only noted, because it must not stop training."""
        try:
            self._summary(status, counters, message).write(self.directory.path)
        except (SetupProblem, OSError) as problem:
            self.note(f"summary.json was not written: {problem}")

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

    def _progress(self, counters: Counters, roles: list[RoleGroup], flow: Flow | None = None) -> Progress:
        until = self.experiment.until
        fractions = []
        if until.minutes:
            fractions.append(counters.wall_s / (60 * until.minutes))
        if until.env_steps:
            fractions.append(counters.env_steps / until.env_steps)
        fraction = min(max(fractions), 1.0) if fractions else None
        metrics = self.latest_metrics
        flow = flow or read_flow(metrics, self.topology)
        split = {} if roles else self._time_split(counters)
        limiting = split_bottleneck(split, counters.updates) or bottleneck(roles, flow, counters.updates)
        return Progress(
            env_steps=counters.env_steps,
            updates=counters.updates,
            wall_s=counters.wall_s,
            evaluation_s=counters.evaluation_s,
            env_steps_per_s=metrics.get("rate/env_steps_per_s", 0.0),
            updates_per_s=metrics.get("rate/updates_per_s", 0.0),
            return_mean=self.evaluation.get("eval/return_mean"),
            return_std=self.evaluation.get("eval/return_std"),
            human_normalized=self.evaluation.get("eval/human_normalized"),
            best=max(self.return_history, default=None),
            target=until.target,
            episode_return=metrics.get("train/return"),
            losses={name: value for name, value in metrics.items() if name.startswith(("loss/", "value/"))},
            fraction=fraction,
            seconds_left=self._seconds_left(counters, fraction),
            counters={
                "env faults": counters.env_faults,
                "skipped updates": counters.skipped_updates,
                "restarts": counters.restarts,
                "seconds without a step": self._stalled_s,
            },
            flow=flow,
            roles=roles,
            split=split,
            bottleneck=str(limiting or ""),
            cpu=metrics.get("process/cpu"),
            memory_bytes=metrics.get("process/memory_bytes"),
            growing=sorted(self.memory_growth.growing),
            history=self.return_history,
        )

    def _time_split(self, counters: Counters) -> dict[str, float]:
        """The shares of time since the oldest recent counters, of an engine that runs in one thread."""
        old = self.recent_counters[0]
        evaluation_s = counters.evaluation_s - old.evaluation_s
        return time_split(
            counters.act_s - old.act_s,
            counters.env_s - old.env_s,
            counters.learn_s - old.learn_s,
            evaluation_s,
            counters.wall_s - old.wall_s + evaluation_s,
        )

    def _seconds_left(self, counters: Counters, fraction: float | None) -> float | None:
        """Seconds until the end: training at the present rate and the evaluations that are still due.

        An evaluation takes as long as the mean of those so far; engines that evaluate while they train
        count only the time in which training waits.
        """
        if not fraction:
            return None
        training_s = counters.wall_s * (1 / fraction - 1)
        evaluations = len(self.return_history)
        if not evaluations or fraction >= 1:
            return training_s
        schedule = self.experiment.evaluation
        if schedule.env_steps:
            due = counters.env_steps * (1 / fraction - 1) / schedule.env_steps
        else:
            due = training_s / schedule.seconds
        return training_s + math.ceil(due) * counters.evaluation_s / evaluations


def _counter_metrics(counters: Counters) -> dict[str, float]:
    return {
        "count/episodes": counters.episodes,
        "count/env_faults": counters.env_faults,
        "count/skipped_updates": counters.skipped_updates,
        "count/restarts": counters.restarts,
        "time/evaluation_s": counters.evaluation_s,
        "time/act_s": round(counters.act_s, 3),
        "time/env_s": round(counters.env_s, 3),
        "time/learn_s": round(counters.learn_s, 3),
    }
