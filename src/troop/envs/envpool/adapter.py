"""EnvPool (batched C++ simulators) as a VectorEnv.

Observations of several arrays (DMC) are concatenated in the order of EnvPool's own spec; a scalar takes one
column; images are channels first. MuJoCo Playground's `state` is `obs`; its `privileged_state` repeats
`state` and then adds columns, and only these are `privileged`. EnvPool uses next-step autoreset: the row
after an episode end has `valid` False. EnvPool, and so this adapter, reports a termination in the very step
of the time limit as a truncation.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np

from troop.core.config import bounded
from troop.core.env import PRIVILEGED, EnvSpec, VectorEnv
from troop.core.env_calls import env_call
from troop.core.errors import BadInput, SetupProblem
from troop.core.numpy_env import NumPyEnv, NumPyObs, NumPyStep, first_step
from troop.envs.actions import ActionConverter, convert_action_space
from troop.envs.envpool import atari, playground
from troop.envs.envpool.lazy_import import import_envpool
from troop.envs.envpool.simulator_threads import affinity_options, without_wakeup_preemption
from troop.envs.envpool.slim_assets import slim_base_path
from troop.envs.envpool.spaces import observation_arrays, omitted_keys
from troop.envs.envpool.task_spec import envpool_spec
from troop.envs.frames import FrameConfig
from troop.envs.guard import EnvGuard
from troop.envs.hidden_columns import HiddenColumnsEnv, with_hidden_columns
from troop.envs.last_step import LastStepEnv, last_step_spec
from troop.envs.observations import ObsArray, ObsConverter, assign_names
from troop.envs.seeding import hash_seed
from troop.envs.settings import Setting
from troop.envs.tensor_env import to_tensors

PRELOAD = ("troop.envs.envpool.preload",)  # imported before processes of this env fork


@dataclass(frozen=True)
class EnvPool:
    """Config of an EnvPool task; `settings` are options of EnvPool, such as ("push_enable", False)."""

    id: str
    """Id of the task in EnvPool."""
    envs: int = bounded(16, low=1, high=2**20 - 1)
    """Simulators that step together."""
    threads: int = bounded(0, low=0)
    """Simulator threads; 0 for one per core."""
    settings: tuple[Setting, ...] = ()
    """Options of EnvPool as name and value, such as push_enable False."""
    slim_assets: bool = True
    """Build MuJoCo models without render-only textures and meshes: starts faster."""
    reward: Literal["default", "tuned"] = "default"
    """Reward of training; tuned: FastTD3's weights, for the G1 and T1 joystick tasks. Evaluation always uses
    the default reward."""
    frames: FrameConfig = field(default_factory=FrameConfig)
    hide: tuple[int, ...] = ()
    """Columns of the vector `obs`, counted from 0, that are left out: a partially observable task."""
    last_step: bool = False
    """Add the last action and the last reward, clipped to [-1, 1], to the observations."""

    @property
    def options(self) -> tuple[Setting, ...]:
        """All options of EnvPool: the weights of a tuned reward, unless `settings` has them, and `settings`.

        Raises BadInput if the task has no tuned reward.
        """
        if self.reward == "default":
            return self.settings
        weights = playground.tuned_reward(self.id)
        if not weights:
            raise BadInput(
                f"--env.reward is tuned but '{self.id}' has no tuned reward; use default (G1 and T1 joystick "
                "tasks have one)."
            )
        return tuple((dict(weights) | dict(self.settings)).items())

    @property
    def layout(self) -> EnvPoolLayout:
        """Conversion of observations and actions."""
        return _layout(self.id, self.settings, self.slim_assets)

    @property
    def spec(self) -> EnvSpec:
        """The spec; builds no simulator, except two small ones for tasks with privileged observations."""
        _ = self.options  # raises BadInput; weights of the reward do not change the layout
        layout = self.layout
        fields, limit = dict(layout.converter.fields), layout.episode_limit
        actions = layout.actions.spec
        spec = self.frames.spec(EnvSpec(self.id, fields, actions, self.envs, limit, layout.omitted))
        spec = with_hidden_columns(spec, self.hide)
        return last_step_spec(spec) if self.last_step else spec

    def make(self, seed: int, device: str = "cpu") -> VectorEnv:
        """Build the simulators, guarded against non-finite rows. Raises SetupProblem if EnvPool fails."""
        return to_tensors(self.make_numpy(seed), device)

    def make_numpy(self, seed: int) -> NumPyEnv:
        """Build the same simulators without torch."""
        with env_call(self.id, "__init__"):
            plain = dataclasses.replace(self, frames=FrameConfig(), hide=(), last_step=False)
            env = self.frames.wrap(EnvPoolEnv(plain, seed), background=True)
        env = HiddenColumnsEnv(env, self.hide) if self.hide else env
        return EnvGuard(LastStepEnv(env) if self.last_step else env)

    def with_envs(self, envs: int) -> Self:
        """Return a copy of this config with `envs` envs."""
        return dataclasses.replace(self, envs=envs)

    def for_evaluation(self) -> Self:
        """Return the config with which returns are reported.

        Atari: full games and unclipped rewards. MuJoCo Playground: the default reward and no pushes.
        """
        settings = playground.evaluation_settings(self.id, atari.evaluation_settings(self.settings))
        evaluation = dataclasses.replace(self, settings=settings, reward="default")
        return self if evaluation == self else evaluation


@dataclass(frozen=True)
class EnvPoolLayout:
    """Observations, actions and asset path of one task, derived from EnvPool's spec."""

    converter: ObsConverter
    actions: ActionConverter
    episode_limit: int | None
    base_path: str  # directory of the task's assets
    omitted: tuple[str, ...]  # observations that `converter` leaves out


class EnvPoolEnv:
    """A pool of simulators; the C++ threads step between `send` and `recv`."""

    def __init__(self, cfg: EnvPool, seed: int, **options: Any) -> None:  # noqa: ANN401
        self.cfg = cfg
        self.spec = cfg.spec
        self._layout = _layout(cfg.id, cfg.settings, cfg.slim_assets)
        self._options = options
        self.pool: Any = None
        self._used = False
        self._ended: np.ndarray = np.zeros(self.spec.envs, dtype=bool)
        self._build(seed)

    def reset(self, seed: int) -> NumPyStep:
        """Start a new episode in every env; all rows have `valid` False.

        EnvPool takes a seed only at construction, so this rebuilds the pool unless it is new and has `seed`.
        """
        if self.pool is None or seed != self._seed or self._used:
            self._build(seed)
        self._used = True
        raw, _ = self.pool.reset()
        obs = self._layout.converter.convert(raw)
        self._ended[:] = False
        return first_step(obs, self.spec.envs)

    def send(self, action: np.ndarray) -> None:
        """Start a step and return at once."""
        self.pool.send(self._layout.actions.to_env(action))

    def recv(self) -> NumPyStep:
        """Wait for the step that the last `send` started and return its result."""
        raw, reward, terminated, truncated, _ = self.pool.recv()
        was_reset = self._ended
        if was_reset.any():
            # These rows hold only a first observation, but DMC reports a reward for them.
            reward = np.where(was_reset, np.float32(0), reward)
            terminated, truncated = terminated & ~was_reset, truncated & ~was_reset
        self._ended = terminated | truncated
        obs = self._layout.converter.convert(raw)
        return NumPyStep(obs, obs, reward, terminated, truncated, ~was_reset)

    def step(self, action: np.ndarray) -> NumPyStep:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: np.ndarray) -> NumPyObs:
        """Restart the envs `rows` and return their first observations; not between `send` and `recv`."""
        indices = rows.astype(np.int32)
        raw, _ = self.pool.reset(indices)
        self._ended[indices] = False
        return self._layout.converter.convert(raw)

    def close(self) -> None:
        """Release threads and memory; further calls have no effect."""
        if self.pool is not None:
            self.pool.close()
            self.pool = None

    def _build(self, seed: int) -> None:
        self.close()
        options = {"base_path": self._layout.base_path, **affinity_options(self.cfg.threads)}
        options |= {**dict(self.cfg.options), **self._options}
        with without_wakeup_preemption():
            self.pool = _make_pool(
                self.cfg.id,
                num_envs=self.spec.envs,
                num_threads=self.cfg.threads,
                seed=hash_seed(seed),
                **options,
            )
        self._seed, self._used = seed, False
        self._ended = np.zeros_like(self._ended)


def _make_pool(id: str, **options: Any) -> Any:  # noqa: ANN401 - EnvPool's classes are made at run time
    try:
        return import_envpool().make_gymnasium(id, **options)
    except (RuntimeError, ImportError, OSError, MemoryError) as error:
        raise SetupProblem(f"EnvPool cannot build '{id}': {error}") from error


@lru_cache(maxsize=64)
def _layout(id: str, settings: tuple[Setting, ...], slim_assets: bool) -> EnvPoolLayout:
    spec = envpool_spec(id, settings)
    config = spec.config
    if config.max_num_players > 1:
        raise BadInput(
            f"EnvPool task '{id}' has {config.max_num_players} players; Troop trains a single agent."
        )
    from envpool.registration import registry

    module, base_path = registry.specs[id][0], config.base_path
    needs_stock = any(name in ("render_mode", "from_pixels", "base_path") for name, _ in settings)
    if slim_assets and not needs_stock:
        base_path = slim_base_path(id, module, base_path)
    arrays = observation_arrays(spec, module)
    if any(array.name == PRIVILEGED for array in arrays):
        arrays = _skip_copied_state(arrays, id, {**dict(settings), "base_path": base_path})
    converter = ObsConverter(assign_names(arrays), id)
    limit = config.max_episode_steps if 0 < config.max_episode_steps < 2**31 - 1 else None
    actions = convert_action_space(spec.gymnasium_action_space, id, np.int32)
    return EnvPoolLayout(converter, actions, limit, base_path, omitted_keys(module))


def _skip_copied_state(arrays: list[ObsArray], id: str, options: dict[str, Any]) -> list[ObsArray]:
    """Drop the leading columns of `privileged` if a short rollout shows that they always equal `state`."""
    state = next((array for array in arrays if array.path == ("state",)), None)
    if state is None:
        return arrays
    pool = _make_pool(id, num_envs=2, num_threads=1, seed=1, **options)
    raw, _ = pool.reset()
    is_copy = True
    random = np.random.default_rng(0)
    for _ in range(5):
        public, private = (raw[name].reshape(2, -1) for name in ("state", "privileged_state"))
        is_copy = is_copy and np.array_equal(private[:, : state.width], public)
        raw = pool.step(random.uniform(-1, 1, (2, *pool.action_space.shape)))[0]
    pool.close()
    if not is_copy:
        return arrays
    return [dataclasses.replace(x, skip_columns=state.width) if x.name == PRIVILEGED else x for x in arrays]
