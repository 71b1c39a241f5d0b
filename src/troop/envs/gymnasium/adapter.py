"""Gymnasium envs as a VectorEnv, in each of Gymnasium's three autoreset modes.

The arrays of a nested observation are concatenated in the order of the space's keys, except for a top-level
key `privileged`, which keeps its name. Discrete observations are one-hot encoded, images become channels
first. Action boxes are flattened.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from troop.core.config import bounded
from troop.core.env import Continuous, Discrete, EnvSpec, Obs, Step, VectorEnv
from troop.core.errors import BadInput, SetupProblem
from troop.envs.actions import ActionBounds
from troop.envs.guard import EnvGuard
from troop.envs.gymnasium.spaces import convert_action_space, observation_arrays
from troop.envs.gymnasium.user_envs import find_constructor
from troop.envs.observations import ObsConverter, assign_names
from troop.envs.seeding import hash_seed
from troop.envs.settings import Setting


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
    vectorize: Literal["sync", "async"] = "sync"
    """async runs each env in its own process."""
    settings: tuple[Setting, ...] = ()
    """Keyword arguments of the env as name and value."""

    @property
    def spec(self) -> EnvSpec:
        """The spec, read from one instance of the env."""
        layout = _layout(self.id, self.settings)
        return EnvSpec(self.id, dict(layout.converter.fields), layout.action, self.envs, layout.episode_limit)

    def make(self, seed: int, device: str = "cpu") -> VectorEnv:
        """Build the envs, guarded against non-finite rows. Raises SetupProblem if they cannot start."""
        return EnvGuard(GymnasiumEnv(self, seed, device))

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
    action: Continuous | Discrete
    bounds: ActionBounds | None  # None if the actions are discrete
    action_shape: tuple[int, ...]
    min_action: int  # Gymnasium's number for discrete action 0
    episode_limit: int | None


class GymnasiumEnv:
    """A Gymnasium vector env that returns true successors in every autoreset mode.

    With autoreset disabled, the adapter resets ended envs itself and behaves as in same-step mode.
    """

    def __init__(self, cfg: Gymnasium, seed: int, device: str) -> None:
        self.cfg = cfg
        self.spec = cfg.spec
        self.device = torch.device(device)
        self._layout = _layout(cfg.id, cfg.settings)
        self.vector: Any = _make_vector(cfg)
        self._ended = np.zeros(cfg.envs, dtype=bool)  # next_step mode: envs that the next step resets
        self._action: np.ndarray | None = None

    def reset(self, seed: int) -> Step:
        """Start a new episode in every env; all rows have `valid` False."""
        first_seed = hash_seed(seed)
        raw, _ = self.vector.reset(seed=[first_seed + i for i in range(self.cfg.envs)])
        obs = self._layout.converter.convert(raw, self.device)
        self._ended = np.zeros(self.cfg.envs, dtype=bool)
        false = torch.zeros(self.cfg.envs, dtype=torch.bool, device=self.device)
        return Step(obs, obs, torch.zeros(self.cfg.envs, device=self.device), false, false, false)

    def send(self, action: Tensor) -> None:
        """Start a step; `async` envs step in the background, `sync` envs step in `recv`."""
        layout = self._layout
        if layout.bounds is None:
            raw_action = action.detach().cpu().numpy().astype(np.int64) + layout.min_action
        else:
            raw_action = layout.bounds.rescale(action).reshape(self.cfg.envs, *layout.action_shape)
        if self.cfg.vectorize == "async":
            self.vector.step_async(raw_action)
        self._action = raw_action

    def recv(self) -> Step:
        """Return the result of the last `send`. Raises BadInput if there was none."""
        if self._action is None:
            raise BadInput(f"recv() of env '{self.cfg.id}' was called without a send() before it.")
        is_async = self.cfg.vectorize == "async"
        result = self.vector.step_wait() if is_async else self.vector.step(self._action)
        self._action = None
        raw, reward, terminated, truncated, info = result
        was_reset = self._ended
        done = terminated | truncated
        # If an episode terminates in the very step of the time limit, it counts as terminated.
        truncated = truncated & ~terminated
        obs = next_obs = self._layout.converter.convert(raw, self.device)
        if self.cfg.autoreset == "next_step":
            self._ended = done
        elif done.any():
            obs, next_obs = self._split_observations(obs, done, info)
        return Step(
            obs,
            next_obs,
            torch.from_numpy(np.where(was_reset, 0, reward).astype(np.float32)).to(self.device),
            torch.from_numpy(terminated.copy()).to(self.device),
            torch.from_numpy(truncated).to(self.device),
            torch.from_numpy(~was_reset).to(self.device),
        )

    def step(self, action: Tensor) -> Step:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: Tensor) -> Obs:
        """Restart the envs `rows` and return their first observations; not between `send` and `recv`."""
        indices = rows.cpu().numpy()
        mask = np.zeros(self.cfg.envs, dtype=bool)
        mask[indices] = True
        raw, _ = self.vector.reset(options={"reset_mask": mask})
        self._ended = self._ended & ~mask
        index = torch.from_numpy(indices).to(self.device)
        return {name: x[index] for name, x in self._layout.converter.convert(raw, self.device).items()}

    def close(self) -> None:
        """Release processes and memory; further calls have no effect."""
        if self.vector is not None:
            self.vector.close()
            self.vector = None

    def _split_observations(self, obs: Obs, done: np.ndarray, info: dict[str, Any]) -> tuple[Obs, Obs]:
        """Return (obs, next_obs) of a step in which the episodes of the rows `done` ended.

        With autoreset disabled, `obs` holds their final observations, and this method resets them. In
        same-step mode `obs` holds their first observations, and the final ones are in `info`.
        """
        rows = torch.from_numpy(np.flatnonzero(done)).to(self.device)
        if self.cfg.autoreset == "disabled":
            first = self.restart(rows)
            return {name: value.index_copy(0, rows, first[name]) for name, value in obs.items()}, obs
        final_rows = [info["final_obs"][i] for i in np.flatnonzero(done)]
        final = self._layout.converter.convert(_stack(final_rows), self.device)
        return obs, {name: value.index_copy(0, rows, final[name]) for name, value in obs.items()}


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
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    constructor = find_constructor(cfg.id, cfg.settings)
    mode = AutoresetMode[cfg.autoreset.upper()]
    try:
        # Tensors of a Step share memory with the returned arrays, so Gymnasium must return copies.
        return (AsyncVectorEnv if cfg.vectorize == "async" else SyncVectorEnv)(
            [constructor] * cfg.envs, copy=True, autoreset_mode=mode
        )
    except (OSError, MemoryError, EOFError) as error:
        raise SetupProblem(f"Gymnasium cannot start {cfg.envs} envs of '{cfg.id}': {error}") from error


@lru_cache(maxsize=64)
def _layout(id: str, settings: tuple[Setting, ...]) -> GymnasiumLayout:
    env = find_constructor(id, settings)()
    try:
        converter = ObsConverter(assign_names(observation_arrays(env.observation_space, id)), id)
        action, bounds, min_action = convert_action_space(env.action_space, id)
        limit = getattr(env.spec, "max_episode_steps", None)
        return GymnasiumLayout(converter, action, bounds, tuple(env.action_space.shape), min_action, limit)
    finally:
        env.close()
