"""Experiment: env, algorithm, system and engine of one run, checked before any process starts."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from troop import algorithms, engines, envs, systems
from troop.core.algorithm import AlgorithmConfig
from troop.core.config import check, decode, encode
from troop.core.devices import check_bf16, check_compiler, check_device
from troop.core.engine import Checkpoint, Counters, Engine, Result, Until
from troop.core.env import EnvConfig
from troop.core.errors import BadInput, SetupProblem, TrainingFault, TroopError
from troop.core.program import Program
from troop.core.system import Evaluation, RunSettings, System
from troop.replay.prioritized import PriorityConfig
from troop.roles.learner import LearnerConfig
from troop.roles.parameter_server import AdaGradConfig
from troop.roles.server_peers import OutlierConfig
from troop.roles.trainer import UpdateSchedule
from troop.run_recorder import RunRecorder
from troop.runs.checkpoint import load_newest
from troop.runs.directory import RunDirectory, default_path

B = TypeVar("B")  # the batch type: Transition

CONFIG_CLASSES: dict[str, type] = {
    config.__name__: config
    for config in (
        envs.EnvPool,
        envs.Gymnasium,
        envs.Toy,
        algorithms.TD3Config,
        algorithms.DQNConfig,
        algorithms.C51Config,
        algorithms.RainbowConfig,
        algorithms.SACConfig,
        systems.Sync,
        systems.Apex,
        systems.Gorila,
        systems.PQL,
        PriorityConfig,
        UpdateSchedule,
        LearnerConfig,
        AdaGradConfig,
        OutlierConfig,
        engines.Inline,
        engines.Processes,
        engines.Ray,
        Until,
        Evaluation,
    )
}
FIELD_TYPES: dict[str, type | tuple[type, ...]] = {
    "env": (envs.EnvPool, envs.Gymnasium, envs.Toy),
    "algorithm": (
        algorithms.TD3Config,
        algorithms.SACConfig,
        algorithms.DQNConfig,
        algorithms.C51Config,
        algorithms.RainbowConfig,
    ),
    "system": (systems.Sync, systems.Apex, systems.Gorila, systems.PQL),
    "engine": (engines.Inline, engines.Processes, engines.Ray),
    "until": Until,
    "evaluation": Evaluation,
    "seed": int,
    "device": str,
    "deterministic": bool,
    "recipe": str,
}


@dataclass(frozen=True)
class Experiment(Generic[B]):
    """The complete configuration of a run; equal experiments on the same CPU give equal runs.

    `B` is the batch type that the system provides and the algorithm learns from.
    """

    env: EnvConfig
    algorithm: AlgorithmConfig[B]
    system: System[B]
    engine: Engine = field(default_factory=engines.Inline)
    until: Until = field(default_factory=Until)
    evaluation: Evaluation = field(default_factory=Evaluation)
    seed: int = 1
    device: str = "cpu"
    deterministic: bool = False
    recipe: str = ""

    def check(self) -> None:
        """Raise BadInput, naming the flag, if this experiment cannot run on this machine."""
        for name in ("env", "algorithm", "system", "engine", "evaluation"):
            check(getattr(self, name), f"{name}.")
        check(self.until)
        if not 0 <= self.seed < 2**31:
            raise BadInput(f"--seed is {self.seed}; it must be at least 0 and below {2**31}.")
        if self.until == Until():
            raise BadInput("The run has no end; give --minutes, --env-steps or --target.")
        check_device(self.device)
        if getattr(self.algorithm, "amp", False):
            check_bf16(self.device)
        if getattr(self.algorithm, "compile", False):
            check_compiler(self.device)
        if reason := self.algorithm.unsupported_reason(self.env.spec):
            raise BadInput(f"{reason}.")

    def settings(self) -> RunSettings:
        """Return the settings that the system needs besides algorithm and env."""
        return RunSettings(self.seed, self.device, self.evaluation, self.deterministic)

    def program(self) -> Program:
        """Return the roles, not built yet; raise BadInput or SetupProblem if they cannot run."""
        self.check()
        program = self.system.program(self.algorithm, self.env, self.settings())
        self.engine.check(program)
        return program

    def run(self, path: Path | str | None = None, quiet: bool = False) -> Result:
        """Train in a new run directory, at a default path if `path` is None."""
        program = self.program()
        path = Path(path) if path is not None else default_path(self.recipe or "run", self.env.id, self.seed)
        with RunDirectory.create(path) as directory:
            directory.write_config(self.to_dict())
            return self._run(program, directory, None, quiet)

    def resume(self, directory: RunDirectory, quiet: bool = False) -> Result:
        """Continue from the newest valid checkpoint of a locked run directory."""
        program = self.program()
        loaded = load_newest(directory.checkpoints)
        if loaded is None:
            raise BadInput(f"{directory.path} has no checkpoint yet; start a new run with `troop train`.")
        names = {field.name for field in dataclasses.fields(Counters)}
        counters = Counters(**{k: v for k, v in loaded.info["counters"].items() if k in names})
        directory.write_config(self.to_dict())
        checkpoint = Checkpoint(counters, loaded.state)
        return self._run(
            program, directory, checkpoint, quiet, [f"skipped {text}" for text in loaded.skipped]
        )

    def _run(
        self,
        program: Program,
        directory: RunDirectory,
        checkpoint: Checkpoint | None,
        quiet: bool,
        notes: list[str] | None = None,
    ) -> Result:
        if self.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        start = checkpoint.counters if checkpoint else None
        with RunRecorder(self, program, directory, start, quiet) as recorder:
            for text in notes or []:
                recorder.note(text)
            try:
                result = self.engine.run(program, self.until, self.seed, recorder, checkpoint)
            except TroopError as error:
                if not (trace := getattr(error, "trace", "")):
                    recorder.record_failure(str(error))
                    raise
                failure = _remote_failure(error, trace, self.env.id, directory.path)
                recorder.record_failure(str(failure))
                raise failure from error
            except Exception as error:
                failure = _unexpected_failure(error, directory.path)
                recorder.record_failure(str(failure))
                raise failure from error
            recorder.record_end(result)
            return result

    def to_dict(self) -> dict[str, Any]:
        """Return the experiment as JSON values."""
        return {field.name: encode(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Experiment[Any]:
        """Rebuild the experiment from the result of `to_dict`; BadInput if `data` is not one."""
        names = {field.name for field in dataclasses.fields(cls)}
        if unknown := set(data) - names:
            raise BadInput(f"config.json has an unknown field {sorted(unknown)[0]!r}.")
        if missing := {"env", "algorithm", "system"} - set(data):
            raise BadInput(f"config.json has no field {sorted(missing)[0]!r}.")
        values = {name: decode(value, CONFIG_CLASSES, name) for name, value in data.items()}
        for name, types in FIELD_TYPES.items():
            if name in values and not isinstance(values[name], types):
                raise BadInput(f"config.json has {name} = {data[name]!r}, which is not a valid {name}.")
        return cls(**values)


def _remote_failure(error: TroopError, trace: str, env: str, path: Path) -> TroopError:
    """Add the env and the path of the traceback to the failure of a role on another host."""
    _write_trace(trace, path)
    sentence = str(error).removesuffix(".")
    return TrainingFault(f"{sentence}; env {env}, the traceback is in {path / 'error.txt'}.")


def _write_trace(trace: str, path: Path) -> None:
    with contextlib.suppress(OSError):
        (path / "error.txt").write_text(trace)


def _unexpected_failure(error: Exception, path: Path) -> TroopError:
    """Return an exception as a failure of one sentence, and write its traceback to the run directory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        reason = str(error).strip().splitlines()[-1]
        return SetupProblem(
            f"Out of memory ({reason}); lower the batch size, --system.replay-capacity or --envs."
        )
    frames = traceback.extract_tb(error.__traceback__)
    # Name the user's own file if the traceback has one: that is where the user can fix it.
    user_frames = [f for f in frames if "site-packages" not in f.filename and "/troop/" not in f.filename]
    frame = (user_frames or list(frames))[-1]
    _write_trace("".join(traceback.format_exception(error)), path)
    lines = str(error).strip().splitlines() or ["no message"]
    return TrainingFault(
        f"{type(error).__name__}: {lines[0]} ({Path(frame.filename).name}, line {frame.lineno}); "
        f"the traceback is in {path / 'error.txt'}."
    )
