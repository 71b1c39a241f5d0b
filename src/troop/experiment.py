"""An Experiment is env x algorithm x system x engine, checked before anything heavy starts."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from troop import algorithms, engines, envs, systems
from troop.core.config import check, decode, encode
from troop.core.devices import check_bf16, check_compiler, check_device
from troop.core.engine import Checkpoint, Counters, Engine, Result, Until
from troop.core.env import EnvConfig
from troop.core.errors import BadInput, SetupProblem, TrainingFault, TroopError
from troop.core.program import Program
from troop.replay.prioritized import PriorityConfig
from troop.roles.learner import LearnerConfig
from troop.roles.parameter_server import AdaGradConfig
from troop.roles.server_peers import OutlierConfig
from troop.roles.trainer import UpdateSchedule
from troop.run_recorder import RunRecorder
from troop.runs.checkpoint import load_newest
from troop.runs.directory import RunDirectory, default_path
from troop.systems.settings import Evaluation, RunSettings

KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
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
EXPECTED: dict[str, Any] = {
    "env": (envs.EnvPool, envs.Gymnasium, envs.Toy),
    "algorithm": (algorithms.TD3Config, algorithms.SACConfig, algorithms.DQNConfig),
    "system": (systems.Sync, systems.Apex, systems.PQL),
    "engine": (engines.Inline, engines.Processes, engines.Ray),
    "until": Until,
    "evaluation": Evaluation,
    "seed": int,
    "device": str,
    "deterministic": bool,
    "recipe": str,
}


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run; equal experiments on one CPU give equal runs."""

    env: EnvConfig
    algorithm: Any
    system: Any
    engine: Engine = field(default_factory=engines.Inline)
    until: Until = field(default_factory=Until)
    evaluation: Evaluation = field(default_factory=Evaluation)
    seed: int = 1
    device: str = "cpu"
    deterministic: bool = False
    recipe: str = ""

    def check(self) -> None:
        """Raise BadInput, naming the field, if this cannot run here."""
        for name in ("env", "algorithm", "system", "engine", "evaluation"):
            check(getattr(self, name), f"{name}.")
        check(self.until)
        if not 0 <= self.seed < 2**31:
            raise BadInput(f"--seed is {self.seed}; it must be at least 0 and below {2**31}.")
        if self.until == Until():
            raise BadInput("Nothing ends this run; give --minutes, --env-steps or --target.")
        check_device(self.device)
        if getattr(self.algorithm, "amp", False):
            check_bf16(self.device)
        if getattr(self.algorithm, "compile", False):
            check_compiler(self.device)
        if reason := self.algorithm.unsupported_reason(self.env.spec):
            raise BadInput(f"{reason}.")

    def setting(self) -> RunSettings:
        """What a system is told."""
        return RunSettings(self.seed, self.device, self.evaluation, self.deterministic)

    def program(self) -> Program:
        """Its roles, not built yet; BadInput or SetupProblem if they cannot run together or not here."""
        self.check()
        program: Program = self.system.program(self.algorithm, self.env, self.setting())
        self.engine.check(program)
        return program

    def run(self, path: Path | str | None = None, quiet: bool = False) -> Result:
        """Train in a new run directory."""
        program = self.program()
        path = Path(path) if path is not None else default_path(self.recipe or "run", self.env.id, self.seed)
        with RunDirectory.create(path) as directory:
            directory.write_config(self.to_dict())
            return self._run(program, directory, None, quiet)

    def resume(self, directory: RunDirectory, quiet: bool = False) -> Result:
        """Go on from the newest valid checkpoint of a locked run directory."""
        program = self.program()
        loaded = load_newest(directory.checkpoints)
        if loaded is None:
            raise BadInput(f"{directory.path} has no checkpoint yet; start it again with `troop train`.")
        fields = {f.name for f in dataclasses.fields(Counters)}
        counters = Counters(**{k: v for k, v in loaded.info["counters"].items() if k in fields})
        directory.write_config(self.to_dict())
        saved = Checkpoint(counters, loaded.state)
        return self._run(program, directory, saved, quiet, [f"skipped {text}" for text in loaded.skipped])

    def _run(
        self,
        program: Program,
        directory: RunDirectory,
        saved: Checkpoint | None,
        quiet: bool,
        notes: list[str] | None = None,
    ) -> Result:
        if self.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        with RunRecorder(self, directory, saved.counters if saved else None, quiet) as recording:
            for text in notes or []:
                recording.note(text)
            try:
                result = self.engine.run(program, self.until, self.seed, recording, saved)
            except TroopError as error:
                if not (trace := getattr(error, "trace", "")):
                    recording.failed(str(error))
                    raise
                told = _traced(error, trace, self.env.id, directory.path)
                recording.failed(str(told))
                raise told from error
            except Exception as error:
                told = _told(error, directory.path)
                recording.failed(str(told))
                raise told from error
            recording.ended(result)
            return result

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {f.name: encode(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Experiment:
        """What `to_dict` gave; BadInput if it is not that."""
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := set(data) - known:
            raise BadInput(f"config.json has an unknown field {sorted(unknown)[0]!r}.")
        if missing := {"env", "algorithm", "system"} - set(data):
            raise BadInput(f"config.json has no {sorted(missing)[0]!r}.")
        found = {name: decode(value, KINDS, name) for name, value in data.items()}
        for name, kinds in EXPECTED.items():
            if name in found and not isinstance(found[name], kinds):
                raise BadInput(f"config.json has {name} = {data[name]!r}, which is none.")
        return cls(**found)


def _traced(error: TroopError, trace: str, env: str, path: Path) -> TroopError:
    """The fault of a role on another host, with the env it was in and where to find its first traceback."""
    _keep_trace(trace, path)
    said = str(error).removesuffix(".")
    return TrainingFault(f"{said}; env {env}, the traceback is in {path / 'error.txt'}.")


def _keep_trace(trace: str, path: Path) -> None:
    with contextlib.suppress(OSError):
        (path / "error.txt").write_text(trace)


def _told(error: Exception, path: Path) -> TroopError:
    """An unexpected failure as one sentence; its traceback is kept beside the run."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        what = str(error).strip().splitlines()[-1]
        return SetupProblem(f"Out of memory ({what}); lower the batch, --system.replay-capacity or --envs.")
    frames = traceback.extract_tb(error.__traceback__)
    # The user's own file, if there is one on the way, is what the user can mend.
    foreign = [f for f in frames if "site-packages" not in f.filename and "/troop/" not in f.filename]
    where = (foreign or list(frames))[-1]
    _keep_trace("".join(traceback.format_exception(error)), path)
    reason = str(error).strip().splitlines()[:1]
    return TrainingFault(
        f"{type(error).__name__}: {reason[0] if reason else 'no message'} ({Path(where.filename).name}, line "
        f"{where.lineno}); the traceback is in {path / 'error.txt'}."
    )
