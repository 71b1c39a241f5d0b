"""Experiment: env, algorithm, system and engine of one run, checked before any process starts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from troop import algorithms, engines, envs, systems
from troop.core.algorithm import AlgorithmConfig
from troop.core.config import check, suggest
from troop.core.config_json import (
    code_names,
    decode,
    decoded_code_names,
    encode,
    find_outside_class,
    invalid_field,
    shortened,
)
from troop.core.contracts import CONFIG_CONTRACTS, check_algorithm, check_config, check_env, is_outside
from troop.core.devices import check_bf16, check_compiler, check_device
from troop.core.engine import Checkpoint, Counters, Engine, Result, Until
from troop.core.env import EnvConfig
from troop.core.env_calls import EnvFailure
from troop.core.errors import BadInput, SetupProblem, TrainingFault, TroopError, UnsupportedEnv
from troop.core.locations import describe_error
from troop.core.program import Program
from troop.core.system import Evaluation, RunSettings, System
from troop.core.user_code import is_code_name, reject_run_during_import, require_allowed
from troop.env_memory import check_env_memory
from troop.envs.gymnasium.user_envs import check_stored_env
from troop.logs.console import Console
from troop.nets.user_network import check_stored_network
from troop.replay.prioritized import PriorityConfig
from troop.replay.sequences import ServedReplay
from troop.roles.learner import LearnerConfig
from troop.roles.parameter_server import AdaGradConfig, SharedRMSPropConfig
from troop.roles.server_peers import OutlierConfig
from troop.roles.update_schedule import UpdateSchedule
from troop.runs import files
from troop.runs.checkpoint import LoadedCheckpoint, load_newest
from troop.runs.directory import RunDirectory, default_path
from troop.start_notes import annealing_notes, start_notes
from troop.trajectory_memory import check_trajectory_memory

B = TypeVar("B")  # the batch type: Transition

CONFIG_CLASSES: dict[str, type] = {
    config.__name__: config
    for config in (
        envs.EnvPool,
        envs.Gymnasium,
        envs.Toy,
        envs.FrameConfig,
        algorithms.TD3Config,
        algorithms.DQNConfig,
        algorithms.C51Config,
        algorithms.RainbowConfig,
        algorithms.SACConfig,
        algorithms.FlashSACConfig,
        algorithms.TD3GRUConfig,
        algorithms.SACGRUConfig,
        algorithms.PPOConfig,
        algorithms.ImpalaConfig,
        algorithms.APPOConfig,
        algorithms.R2D2Config,
        algorithms.UnrealConfig,
        systems.Sync,
        systems.Apex,
        systems.Gorila,
        systems.PQL,
        systems.OnPolicy,
        systems.A3C,
        systems.IMPALA,
        systems.DataParallel,
        systems.SEED,
        PriorityConfig,
        ServedReplay,
        UpdateSchedule,
        LearnerConfig,
        AdaGradConfig,
        SharedRMSPropConfig,
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
        algorithms.FlashSACConfig,
        algorithms.TD3GRUConfig,
        algorithms.SACGRUConfig,
        algorithms.DQNConfig,
        algorithms.C51Config,
        algorithms.RainbowConfig,
        algorithms.PPOConfig,
        algorithms.ImpalaConfig,
        algorithms.APPOConfig,
        algorithms.R2D2Config,
        algorithms.UnrealConfig,
    ),
    "system": (
        systems.Sync,
        systems.Apex,
        systems.Gorila,
        systems.PQL,
        systems.OnPolicy,
        systems.A3C,
        systems.IMPALA,
        systems.DataParallel,
        systems.SEED,
    ),
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
        self.check_bounds()
        self._check_outside_code()
        if self.until == Until():
            raise BadInput("The run has no end; give --minutes, --env-steps or --target.")
        check_device(self.device)
        if getattr(self.algorithm, "amp", False):
            check_bf16(self.device)
        if getattr(self.algorithm, "compile", False) is True:
            check_compiler(self.device)
        if reason := self.algorithm.unsupported_reason(self.env.spec):
            raise UnsupportedEnv(f"{reason}.")

    def check_bounds(self) -> None:
        """Raise BadInput, naming the flag, if a number is out of its bounds or a class lacks a method."""
        for name, value in self._configs().items():
            if is_outside(value):
                check_config(name, value)
            check(value, f"{name}.")
        check(self.evaluation, "evaluation.")
        check(self.until)
        if not 0 <= self.seed < 2**31:
            raise BadInput(f"--seed is {self.seed}; it must be at least 0 and below {2**31}.")

    def _configs(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("env", "algorithm", "system", "engine")}

    def _check_outside_code(self) -> None:
        """Raise BadInput if code outside Troop violates a contract or cannot be stored in config.json."""
        if not any(map(is_outside, self._configs().values())):
            return
        try:
            stored = json.loads(json.dumps(self.to_dict(), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise BadInput(f"The experiment cannot be stored in config.json: {error}.") from error
        names = [name for _, name in (*code_names(stored, CONFIG_CLASSES), *decoded_code_names(self))]
        if Experiment.from_dict(stored, names) != self:
            raise BadInput(
                "The experiment cannot be restored from config.json; give its configs fields of numbers, "
                "text, booleans, None, tuples and dataclasses only."
            )
        if is_outside(self.env):
            check_env(self.env)
        if is_outside(self.algorithm):
            check_algorithm(self.algorithm, self.env)

    def settings(self) -> RunSettings:
        """Return the settings that the system needs besides algorithm and env."""
        return RunSettings(self.seed, self.device, self.evaluation, self.deterministic, self.until.minutes)

    def program(self) -> Program:
        """Return the roles, not built yet; raise BadInput or SetupProblem if they cannot run."""
        reject_run_during_import()
        self.check()
        check_trajectory_memory(self)
        check_env_memory(self)
        program = self.system.program(self.algorithm, self.env, self.settings())
        self.engine.check(program)
        return program

    def run(
        self, path: Path | str | None = None, quiet: bool = False, console: Console | None = None
    ) -> Result:
        """Train in a new run directory, at a default path if `path` is None; show progress on `console`."""
        program = self.program()
        path = Path(path) if path is not None else default_path(self.recipe or "run", self.env.id, self.seed)
        with RunDirectory.create(path) as directory:
            directory.write_config(self.to_dict())
            return self._run(program, directory, None, quiet, console, start_notes(self))

    def resume(self, directory: RunDirectory, quiet: bool = False, console: Console | None = None) -> Result:
        """Continue from the newest valid checkpoint of a locked run directory; without one, start again."""
        program = self.program()
        loaded = load_newest(directory.checkpoints)
        if loaded is None:
            directory.write_config(self.to_dict())
            note = "the run ended before its first checkpoint; it starts again from the beginning"
            return self._run(program, directory, None, quiet, console, [note])
        counters = _read_counters(loaded)
        if loaded.state.get("policy") != {}:  # empty if no role had published weights
            self.check_policy(loaded)
        directory.write_config(self.to_dict())
        checkpoint = Checkpoint(counters, loaded.state)
        notes = [*(f"skipped {text}" for text in loaded.skipped), f"continues from {loaded}"]
        notes += annealing_notes(self)
        return self._run(program, directory, checkpoint, quiet, console, notes)

    def _run(
        self,
        program: Program,
        directory: RunDirectory,
        checkpoint: Checkpoint | None,
        quiet: bool,
        console: Console | None,
        notes: list[str] | None = None,
    ) -> Result:
        from troop.run_recorder import RunRecorder  # not at the top: commands with --help do not need it

        if self.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        start = checkpoint.counters if checkpoint else None
        with RunRecorder(self, program, directory, start, quiet, console) as recorder:
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
            except (Exception, SystemExit) as error:
                failure = _unexpected_failure(error, directory.path)
                recorder.record_failure(str(failure))
                raise failure from error
            except BaseException:  # KeyboardInterrupt: the embedding program handles signals
                recorder.record_failure("interrupted", "stopped")
                raise
            recorder.record_end(result)
            return dataclasses.replace(result, directory=directory.path)

    def check_policy(self, loaded: LoadedCheckpoint) -> None:
        """Raise SetupProblem if the weights of the checkpoint do not fit the policy that the config builds.

        The policy is built without memory first: config.json may come from a stranger and name any size.
        """
        if is_outside(self.algorithm) or ":" in str(getattr(self.algorithm, "net", "")):
            return  # code of the user may not support it
        problem = SetupProblem(
            f"The policy in {loaded.path} does not fit config.json and the env {self.env.id}; restore both."
        )
        try:
            with torch.device("meta"):
                shapes = {k: v.shape for k, v in self.algorithm.policy(self.env.spec).state_dict().items()}
        except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
            raise problem from error
        state = loaded.state.get("policy")
        tensors = state if isinstance(state, dict) else {}
        if {k: getattr(v, "shape", None) for k, v in tensors.items()} != shapes:
            raise problem

    def to_dict(self) -> dict[str, Any]:
        """Return the experiment as JSON values."""
        return {field.name: encode(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any], allow: Iterable[str] = ()) -> Experiment[Any]:
        """Rebuild the experiment from the result of `to_dict`; BadInput if `data` is not one.

        `data` may come from a stranger: code outside Troop that it names is imported only if `allow` has its
        package, module, file or full name.
        """
        allow = tuple(allow)
        try:
            experiment = cls._from_dict(data, allow)
            experiment.check_bounds()
        except RecursionError:
            raise BadInput("config.json is nested too deeply.") from None
        require_allowed(decoded_code_names(experiment), allow)
        net = getattr(experiment.algorithm, "net", None)
        if isinstance(net, str) and is_code_name(net):
            check_stored_network(net, allow)
        if isinstance(experiment.env, envs.Gymnasium):
            check_stored_env(experiment.env.id, allow)
        return experiment

    @classmethod
    def _from_dict(cls, data: dict[str, Any], allow: tuple[str, ...]) -> Experiment[Any]:
        names = {field.name for field in dataclasses.fields(cls)}
        if unknown := set(data) - names:
            raise BadInput(f"config.json has an unknown field {sorted(unknown)[0]!r}.")
        if missing := {"env", "algorithm", "system"} - set(data):
            raise BadInput(f"config.json has no field {sorted(missing)[0]!r}.")
        require_allowed(code_names(data, CONFIG_CLASSES), allow)
        values = {name: decode(value, config_class, name) for name, value in data.items()}
        for name, types in FIELD_TYPES.items():
            if name not in values or isinstance(values[name], types):
                continue
            if name not in CONFIG_CONTRACTS or not is_outside(values[name]):
                raise BadInput(f"config.json has {name} = {shortened(data[name])}, no valid {name}.")
            check_config(name, values[name])
        return cls(**values)


def config_class(kind: str) -> type:
    """Return the class of a config; BadInput if Troop has none and `kind` is no `module:name`."""
    if kind in CONFIG_CLASSES:
        return CONFIG_CLASSES[kind]
    if is_code_name(kind):
        return find_outside_class(kind)
    similar = suggest(kind, CONFIG_CLASSES, 1)
    hint = f"did you mean {similar[0]}?" if similar else "it is not a class of Troop."
    raise BadInput(f"config.json has an unknown kind {kind[:100]!r}; {hint}")


def _read_counters(loaded: LoadedCheckpoint) -> Counters:
    """Return the counters of a checkpoint; SetupProblem if they are damaged."""
    names = {field.name for field in dataclasses.fields(Counters)}
    stored = loaded.info.get("counters")
    values: dict[str, Any] = {"": None}
    if isinstance(stored, dict):
        values = {name: value for name, value in stored.items() if name in names}
    if invalid_field(Counters, values) is not None or any((value or 0) < 0 for value in values.values()):
        raise SetupProblem(f"The counters in {loaded.path} are damaged; remove this checkpoint.")
    return Counters(**values)


def _remote_failure(error: TroopError, trace: str, env: str, path: Path) -> TroopError:
    """Add the env and the path of the traceback to the failure of a role on another host."""
    _write_trace(trace, path)
    sentence = str(error).removesuffix(".")
    return TrainingFault(f"{sentence}; env {env}, the traceback is in {path / 'error.txt'}.")


def _write_trace(trace: str, path: Path) -> None:
    with contextlib.suppress(SetupProblem):
        files.write_text(path / "error.txt", trace)


def _unexpected_failure(error: BaseException, path: Path) -> TroopError:
    """Return an exception as a failure of one sentence, and write its traceback to the run directory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        reason = str(error).strip().splitlines()[-1]
        return SetupProblem(
            f"Out of memory ({reason}); lower the batch size, --system.replay-capacity or --envs."
        )
    _write_trace("".join(traceback.format_exception(error)), path)
    description = str(error) if isinstance(error, EnvFailure) else describe_error(error)
    return TrainingFault(f"{description}; the traceback is in {path / 'error.txt'}.")
