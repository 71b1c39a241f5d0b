"""CheckedEnv: a Gymnasium env whose every observation, reward and end flag is checked against its spaces."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from troop.core.errors import EnvFault


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises EnvFault with env, key, expected and returned value instead of an error inside Gymnasium.

    NaN and infinite values pass: `EnvGuard` resets their env. Floating-point numbers of another width, and
    lists of numbers, pass as Gymnasium converts them.
    """

    def __init__(self, env: Any, id: str) -> None:  # noqa: ANN401 - a gymnasium.Env
        super().__init__(env)
        self._id = id

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Reset the env and check the result."""
        result = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise EnvFault(
                f"reset() of env '{self._id}' returned {_show(result)}; it must return (observation, info)."
            )
        self._check_obs(result[0], "reset")
        self._check_info(result[1], "reset")
        return result[0], result[1]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Step the env and check the result."""
        result: Any = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            raise EnvFault(
                f"step() of env '{self._id}' returned {_show(result)}; it must return "
                "(observation, reward, terminated, truncated, info)."
            )
        obs, reward, terminated, truncated, info = result
        self._check_obs(obs, "step")
        self._check_info(info, "step")
        if _shape(reward) not in ((), (1,)) or np.asarray(reward).dtype.kind not in "fiub":
            raise EnvFault(
                f"step() of env '{self._id}' returned the reward {_show(reward)}; it must be one number."
            )
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if _shape(flag) != () or np.asarray(flag).dtype.kind not in "biu":
                raise EnvFault(
                    f"step() of env '{self._id}' returned {name} = {_show(flag)}; it must be a bool."
                )
        return obs, float(np.asarray(reward).reshape(())), bool(terminated), bool(truncated), info

    def _check_obs(self, obs: Any, method: str) -> None:  # noqa: ANN401
        problem = _mismatch(self.env.observation_space, obs, "obs")
        if problem:
            raise EnvFault(f"{method}() of env '{self._id}' returned {problem}.")

    def _check_info(self, info: Any, method: str) -> None:  # noqa: ANN401
        if not isinstance(info, dict):
            raise EnvFault(
                f"{method}() of env '{self._id}' returned info = {_show(info)}; it must be a dict."
            )


def _mismatch(space: Any, value: Any, key: str) -> str:  # noqa: ANN401
    """Return what is wrong with an observation, or ""."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        kind: type = dict if isinstance(space, spaces.Dict) else tuple
        if not isinstance(value, kind):
            return f"{key} as {_show(value)}; its space declares a {kind.__name__}"
        declared = dict(space.spaces if isinstance(space, spaces.Dict) else enumerate(space.spaces))
        items: Any = value
        returned = dict(items if kind is dict else enumerate(items))
        for name, part in declared.items():
            if name not in returned:
                return f"{key} without {name!r}, which its space declares"
            if problem := _mismatch(part, returned[name], f"{key}[{name!r}]"):
                return problem
        return ""
    if _shape(value) != space.shape or not np.can_cast(np.asarray(value).dtype, space.dtype, "same_kind"):
        return f"{key} as {_show(value)}; its space declares {space.dtype} {tuple(space.shape)}"
    return ""


def _shape(value: Any) -> tuple[int, ...] | None:  # noqa: ANN401
    """Return the shape of a value as an array; None for lists of different lengths."""
    try:
        return tuple(np.shape(value))
    except ValueError:
        return None


def _show(value: Any) -> str:  # noqa: ANN401
    """Return dtype and shape of an array, or type and beginning of another value."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
