"""Any Gymnasium env, vectorized, in each of its three autoreset modes, as VectorEnv.

Arrays of a nested observation are concatenated in the order of the space's keys, a key `privileged` stays
apart; discrete observations become one-hot, images planes, channels first. Action boxes are flattened.
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
from troop.envs.guard import EnvGuard
from troop.envs.gymnasium.spaces import action_of, leaves_of
from troop.envs.gymnasium.user_envs import Maker, find_maker
from troop.envs.observations import Bounds, Packer, name_leaves, spread

Setting = tuple[str, int | float | bool | str]


@dataclass(frozen=True)
class Gymnasium:
    """A registered id, `module:MyEnv-v0`, or a class `module:MyEnv`; `settings` go to its constructor."""

    id: str
    envs: int = bounded(8, low=1)
    autoreset: Literal["next_step", "same_step", "disabled"] = "same_step"
    vectorize: Literal["sync", "async"] = "sync"  # async: one process per env
    settings: tuple[Setting, ...] = ()

    @property
    def spec(self) -> EnvSpec:
        """Shapes and names, read from one copy of the env."""
        plan = _plan(self.id, self.settings)
        return EnvSpec(self.id, dict(plan.packer.fields), plan.action, self.envs, plan.limit)

    def make(self, seed: int, device: str = "cpu") -> VectorEnv:
        """The live env."""
        return EnvGuard(GymnasiumEnv(self, seed, device))

    def with_envs(self, envs: int) -> Self:
        """The same env with another number of copies."""
        return dataclasses.replace(self, envs=envs)

    def for_evaluation(self) -> Self:
        """The same: rewards are as the env gives them."""
        return self


@dataclass(frozen=True)
class Plan:
    """How to talk with one env: found once, from its spaces."""

    packer: Packer
    action: Continuous | Discrete
    bounds: Bounds | None
    shape: tuple[int, ...]
    first_choice: int
    limit: int | None


class GymnasiumEnv:
    """A Gymnasium vector env whose successors are always true, whatever its autoreset mode."""

    def __init__(self, cfg: Gymnasium, seed: int, device: str) -> None:
        self.cfg = cfg
        self.spec = cfg.spec
        self.device = torch.device(device)
        self._plan = _plan(cfg.id, cfg.settings)
        self.vector: Any = _vector(cfg)
        self._ended = np.zeros(cfg.envs, dtype=bool)
        self._sent: np.ndarray | None = None

    def reset(self, seed: int) -> Step:
        """Start every env anew; all rows `valid=False`."""
        start = spread(seed)
        raw, _ = self.vector.reset(seed=[start + i for i in range(self.cfg.envs)])
        obs = self._plan.packer.pack(raw, self.device)
        self._ended = np.zeros(self.cfg.envs, dtype=bool)
        never = torch.zeros(self.cfg.envs, dtype=torch.bool, device=self.device)
        return Step(obs, obs, torch.zeros(self.cfg.envs, device=self.device), never, never, never)

    def send(self, action: Tensor) -> None:
        """Begin a step; async envs work until `recv`, sync ones step there."""
        plan = self._plan
        if plan.bounds is None:
            given = action.detach().cpu().numpy().astype(np.int64) + plan.first_choice
        else:
            given = plan.bounds.stretch(action).reshape(self.cfg.envs, *plan.shape)
        if self.cfg.vectorize == "async":
            self.vector.step_async(given)
        self._sent = given

    def recv(self) -> Step:
        """The answer to the last `send`."""
        if self._sent is None:
            raise BadInput(f"recv() of env '{self.cfg.id}' without a send() before it.")
        is_async = self.cfg.vectorize == "async"
        answer = self.vector.step_wait() if is_async else self.vector.step(self._sent)
        self._sent = None
        raw, reward, terminated, truncated, info = answer
        opened = self._ended  # next_step: these rows were only reset
        done = terminated | truncated
        # A termination is a termination, also on the last step of the clock.
        truncated = truncated & ~terminated
        obs = next_obs = self._plan.packer.pack(raw, self.device)
        if self.cfg.autoreset == "next_step":
            self._ended = done
        elif done.any():
            obs, next_obs = self._reset_now(obs, done, info)
        return Step(
            obs,
            next_obs,
            torch.from_numpy(np.where(opened, 0, reward).astype(np.float32)).to(self.device),
            torch.from_numpy(terminated.copy()).to(self.device),
            torch.from_numpy(truncated).to(self.device),
            torch.from_numpy(~opened).to(self.device),
        )

    def step(self, action: Tensor) -> Step:
        """`send` and `recv` in one."""
        self.send(action)
        return self.recv()

    def restart(self, rows: Tensor) -> Obs:
        """Reset only these rows; not between `send` and `recv`."""
        chosen = rows.cpu().numpy()
        mask = np.zeros(self.cfg.envs, dtype=bool)
        mask[chosen] = True
        raw, _ = self.vector.reset(options={"reset_mask": mask})
        self._ended = self._ended & ~mask
        index = torch.from_numpy(chosen).to(self.device)
        return {name: value[index] for name, value in self._plan.packer.pack(raw, self.device).items()}

    def close(self) -> None:
        """Give back processes and memory; may be called twice."""
        if self.vector is not None:
            self.vector.close()
            self.vector = None

    def _reset_now(self, came: Obs, done: np.ndarray, info: dict[str, Any]) -> tuple[Obs, Obs]:
        """(obs, next_obs) of a step in which the rows `done` were reset, or are reset here."""
        rows = torch.from_numpy(np.flatnonzero(done)).to(self.device)
        if self.cfg.autoreset == "disabled":
            fresh = self.restart(rows)
            return {name: value.index_copy(0, rows, fresh[name]) for name, value in came.items()}, came
        finals = [info["final_obs"][i] for i in np.flatnonzero(done)]
        last = self._plan.packer.pack(_stack(finals), self.device)
        return came, {name: value.index_copy(0, rows, last[name]) for name, value in came.items()}


def _stack(rows: list[Any]) -> Any:  # noqa: ANN401 - nested dicts and tuples of arrays
    first = rows[0]
    if isinstance(first, dict):
        return {key: _stack([row[key] for row in rows]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stack([row[i] for row in rows]) for i in range(len(first)))
    return np.stack([np.asarray(row) for row in rows])


def registered() -> list[str]:
    """Every id Gymnasium knows by itself."""
    import gymnasium

    return list(gymnasium.registry)


def _vector(cfg: Gymnasium) -> Any:  # noqa: ANN401
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    maker: Maker = find_maker(cfg.id, cfg.settings)
    mode = AutoresetMode[cfg.autoreset.upper()]
    try:
        # Our tensors share these arrays, so the backend must not write into them again: copies stay on.
        return (AsyncVectorEnv if cfg.vectorize == "async" else SyncVectorEnv)(
            [maker] * cfg.envs, copy=True, autoreset_mode=mode
        )
    except (OSError, MemoryError, EOFError) as error:
        raise SetupProblem(f"Gymnasium cannot start {cfg.envs} copies of '{cfg.id}': {error}") from error


@lru_cache(maxsize=64)
def _plan(id: str, settings: tuple[Setting, ...]) -> Plan:
    env = find_maker(id, settings)()
    try:
        packer = Packer(name_leaves(leaves_of(env.observation_space, id)), id)
        action, bounds, first = action_of(env.action_space, id)
        limit = getattr(env.spec, "max_episode_steps", None)
        return Plan(packer, action, bounds, tuple(env.action_space.shape), first, limit)
    finally:
        env.close()
