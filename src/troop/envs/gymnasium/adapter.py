"""Gymnasium envs as a VectorEnv, in each of Gymnasium's three autoreset modes.

The vectors of a nested observation are concatenated in the order of the space's keys, except for a top-level
key `privileged`, which keeps its name. Discrete observations are one-hot encoded, images become channels
first; next to images, every array keeps its own name. Action boxes are flattened, combinations of several
discrete actions are numbered.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self

import numpy as np

from troop.core.config import bounded
from troop.core.env import EnvSpec, VectorEnv
from troop.core.env_calls import env_call
from troop.core.errors import BadInput, SetupProblem
from troop.core.memory import resident_bytes
from troop.core.numpy_env import NumPyEnv, NumPyObs, NumPyStep, first_step, replace_rows
from troop.envs.actions import ActionConverter, convert_action_space
from troop.envs.frames import FrameConfig
from troop.envs.guard import EnvGuard
from troop.envs.gymnasium.spaces import observation_arrays
from troop.envs.gymnasium.user_envs import find_constructor
from troop.envs.gymnasium.workers import EnvWorkers
from troop.envs.hidden_columns import HiddenColumnsEnv, with_hidden_columns
from troop.envs.last_step import LastStepEnv, last_step_spec
from troop.envs.observations import ObsConverter, assign_names
from troop.envs.seeding import hash_seed
from troop.envs.settings import Setting
from troop.envs.tensor_env import to_tensors

PRELOAD = ("gymnasium.vector", "troop.envs.gymnasium.checks")  # imported before processes of this env fork


@dataclass(frozen=True)
class Gymnasium:
    """Config of a registered id, of `module:MyEnv-v0`, or of a class or function `module:MyEnv`.

    `settings` are keyword arguments of its constructor.
    """

    id: str
    """Registered id, module:Id or module:Class."""
    envs: int = bounded(8, low=1)
    """Envs that step together."""
    autoreset: Literal["next_step", "same_step", "disabled"] = "same_step"
    """Autoreset mode of the Gymnasium vector env."""
    workers: int = bounded(0, low=0, high=1024)
    """Processes that step the envs between them; 0: this process. A worker whose env hangs, raises or dies is
    replaced, and new episodes begin in its envs."""
    settings: tuple[Setting, ...] = ()
    """Keyword arguments of the env as name and value; --env.NAME VALUE sets one."""
    worker_limit_s: float = bounded(60.0, above=0)
    """Seconds that a worker has for a step or a reset; it is replaced after that."""
    frames: FrameConfig = field(default_factory=FrameConfig)
    hide: tuple[int, ...] = ()
    """Columns of the vector `obs`, counted from 0, that are left out: a partially observable task."""
    last_step: bool = False
    """Add the last action and the last reward, clipped to [-1, 1], to the observations."""

    removed_fields: ClassVar[tuple[str, ...]] = ("vectorize",)  # accepted in the config.json of older runs
    code_fields: ClassVar[tuple[str, ...]] = ("id",)

    @property
    def layout(self) -> GymnasiumLayout:
        """Conversion of observations and actions."""
        return _layout(self.id, self.settings)

    @property
    def spec(self) -> EnvSpec:
        """The spec, read from one instance of the env."""
        layout = self.layout
        fields, limit = dict(layout.converter.fields), layout.episode_limit
        spec = self.frames.spec(EnvSpec(self.id, fields, layout.actions.spec, self.envs, limit))
        spec = with_hidden_columns(spec, self.hide)
        return last_step_spec(spec) if self.last_step else spec

    @property
    def first_copy_bytes(self) -> int:
        """Resident memory of one copy and of the libraries that it loads: more than another copy takes."""
        return _layout(self.id, self.settings).resident_bytes

    def make(self, seed: int, device: str = "cpu") -> VectorEnv:
        """Build the envs, guarded against non-finite rows. Raises SetupProblem if they cannot start."""
        return to_tensors(self.make_numpy(seed), device)

    def make_numpy(self, seed: int) -> NumPyEnv:
        """Build the same envs without torch."""
        with env_call(self.id, "__init__"):
            plain = dataclasses.replace(self, frames=FrameConfig(), hide=(), last_step=False)
            env = self.frames.wrap(GymnasiumEnv(plain, seed))
        env = HiddenColumnsEnv(env, self.hide) if self.hide else env
        return EnvGuard(LastStepEnv(env) if self.last_step else env)

    def with_envs(self, envs: int) -> Self:
        """Return a copy of this config with `envs` envs."""
        return dataclasses.replace(self, envs=envs)

    def for_evaluation(self) -> Self:
        """Return this config: training does not change the task."""
        return self


@dataclass(frozen=True)
class GymnasiumLayout:
    """Observations and actions of one env, derived from its spaces."""

    converter: ObsConverter
    actions: ActionConverter
    episode_limit: int | None
    resident_bytes: int  # of the first copy, with the libraries that it loads


class GymnasiumEnv:
    """A Gymnasium vector env that returns true successors in every autoreset mode.

    With autoreset disabled, the adapter resets ended envs itself and behaves as in same-step mode.
    """

    def __init__(self, cfg: Gymnasium, seed: int) -> None:
        self.cfg = cfg
        self.spec = cfg.spec
        self._layout = _layout(cfg.id, cfg.settings)
        self.vector: Any = _make_vector(cfg)
        self._workers = self.vector if isinstance(self.vector, EnvWorkers) else None
        self.notes: list[str] = self._workers.notes if self._workers else []
        self._ended = np.zeros(cfg.envs, dtype=bool)  # next_step mode: envs that the next step resets
        self._action: np.ndarray | None = None

    def reset(self, seed: int) -> NumPyStep:
        """Start a new episode in every env; all rows have `valid` False."""
        first_seed = hash_seed(seed)
        raw, _ = self.vector.reset(seed=[first_seed + i for i in range(self.cfg.envs)])
        obs = self._layout.converter.convert(raw)
        self._ended = np.zeros(self.cfg.envs, dtype=bool)
        self._take_lost()
        return first_step(obs, self.cfg.envs)

    def send(self, action: np.ndarray) -> None:
        """Start a step; workers step in the background, envs of this process step in `recv`."""
        raw_action = self._layout.actions.to_env(action)
        self._action = raw_action
        if self._workers is not None:
            self._workers.step_async(raw_action)

    def recv(self) -> NumPyStep:
        """Return the result of the last `send`. Raises BadInput if there was none."""
        if self._action is None:
            raise BadInput(f"recv() of env '{self.cfg.id}' was called without a send() before it.")
        workers = self._workers
        result = workers.step_wait() if workers is not None else self.vector.step(self._action)
        self._action = None
        raw, reward, terminated, truncated, info = result
        lost = self._take_lost()
        was_reset = self._ended | lost
        done = terminated | truncated
        terminated, truncated = terminated & ~lost, truncated & ~lost
        # If an episode terminates in the very step of the time limit, it counts as terminated.
        truncated = truncated & ~terminated
        obs = next_obs = self._layout.converter.convert(raw)
        if self.cfg.autoreset == "next_step":
            self._ended = done
        elif done.any():
            obs, next_obs = self._split_observations(obs, done, info)
        return NumPyStep(
            obs,
            next_obs,
            np.where(was_reset, 0, reward).astype(np.float32),
            terminated,
            truncated,
            ~was_reset,
            int(lost.sum()),
        )

    def _take_lost(self) -> np.ndarray:
        """Return and clear bool [N]: rows whose worker was replaced."""
        lost = np.zeros(self.cfg.envs, dtype=bool)
        if self._workers is not None:
            lost |= self._workers.lost
            self._workers.lost[:] = False
        return lost

    def step(self, action: np.ndarray) -> NumPyStep:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: np.ndarray) -> NumPyObs:
        """Restart the envs `rows` and return their first observations; not between `send` and `recv`."""
        mask = np.zeros(self.cfg.envs, dtype=bool)
        mask[rows] = True
        raw, _ = self.vector.reset(options={"reset_mask": mask})
        self._ended = self._ended & ~mask
        if self._workers is not None:
            self._workers.lost &= ~mask
        return {name: x[rows] for name, x in self._layout.converter.convert(raw).items()}

    def close(self) -> None:
        """Release processes and memory; further calls have no effect."""
        if self.vector is not None:
            self.vector.close()
            self.vector = None

    def _split_observations(
        self, obs: NumPyObs, done: np.ndarray, info: dict[str, Any]
    ) -> tuple[NumPyObs, NumPyObs]:
        """Return (obs, next_obs) of a step in which the episodes of the rows `done` ended.

        With autoreset disabled, `obs` holds their final observations, and this method resets them. In
        same-step mode `obs` holds their first observations, and the final ones are in `info`.
        """
        rows = np.flatnonzero(done)
        if self.cfg.autoreset == "disabled":
            first = self.restart(rows)
            return {name: replace_rows(value, rows, first[name]) for name, value in obs.items()}, obs
        final_rows = [info["final_obs"][i] for i in rows]
        final = self._layout.converter.convert(_stack(final_rows))
        return obs, {name: replace_rows(value, rows, final[name]) for name, value in obs.items()}


def _stack(rows: list[Any]) -> Any:  # noqa: ANN401 - nested dicts and tuples of arrays
    first = rows[0]
    if isinstance(first, dict):
        return {key: _stack([row[key] for row in rows]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stack([row[i] for row in rows]) for i in range(len(first)))
    return np.stack([np.asarray(row) for row in rows])


def registered_ids() -> list[str]:
    """Return every id in Gymnasium's registry."""
    import gymnasium

    return list(gymnasium.registry)


def _make_vector(cfg: Gymnasium) -> Any:  # noqa: ANN401
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    from troop.envs.gymnasium.checks import CheckedEnv  # imports Gymnasium

    constructor = find_constructor(cfg.id, cfg.settings)
    try:
        if cfg.workers:
            return EnvWorkers(cfg.id, cfg.settings, cfg.envs, cfg.autoreset, cfg.workers, cfg.worker_limit_s)
        makers = [lambda: CheckedEnv(constructor(), cfg.id)] * cfg.envs
        # Arrays of a Step share memory with the returned arrays, so Gymnasium must return copies.
        return SyncVectorEnv(makers, copy=True, autoreset_mode=AutoresetMode[cfg.autoreset.upper()])
    except (OSError, MemoryError, EOFError) as error:
        raise SetupProblem(f"Gymnasium cannot start {cfg.envs} envs of '{cfg.id}': {error}") from error


@lru_cache(maxsize=64)
def _layout(id: str, settings: tuple[Setting, ...]) -> GymnasiumLayout:
    before = resident_bytes()
    env = find_constructor(id, settings)()
    try:
        converter = ObsConverter(assign_names(observation_arrays(env.observation_space, id)), id)
        limit = getattr(env.spec, "max_episode_steps", None)
        size = max(0, resident_bytes() - before)
        return GymnasiumLayout(converter, convert_action_space(env.action_space, id), limit, size)
    finally:
        with contextlib.suppress(Exception):  # its failure is reported when the run closes its envs
            env.close()
