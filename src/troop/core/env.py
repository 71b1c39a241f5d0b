"""Vectorized environments: specs, the result of a step, and the interfaces that backends implement.

`Step.next_obs` is the true successor of the action in every autoreset mode, so replay and learners need not
know how a backend resets its envs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:  # a process that only steps envs does not import torch
    import torch
    from torch import Tensor

Obs = dict[str, "Tensor"]
"""Named observations, each [N, ...]: images and vectors. `privileged`, where the env provides it, is an
additional input for the critic and does not repeat the others; all others are inputs of the policy too. An
env whose observations are all vectors has them in one, `obs`; else `obs` is the first image."""

OBS, PRIVILEGED = "obs", "privileged"
ACTION_MASK = "action_mask"
"""Observation [N, actions] with 1 for each discrete action that the env allows now, 0 for the others."""


@dataclass(frozen=True, init=False)
class Field:
    """Shape and dtype of one row of a named observation, without the leading axis of envs.

    With `stack` > 1 the first axis holds the last `stack` frames, oldest first, and each step appends one
    frame. The first observation of an episode repeats its first frame `stack` times; after a lost life (Atari
    with an episode per life) it instead continues the frames of the row before it. A replay buffer relies on
    this to store single frames.
    """

    shape: tuple[int, ...]
    dtype_name: str  # the same in NumPy and torch, such as "uint8"
    stack: int

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype | str = "float32", stack: int = 1) -> None:
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype_name", str(dtype).removeprefix("torch."))
        object.__setattr__(self, "stack", stack)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in torch, which is imported only here."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype_name)
        return dtype

    @property
    def frame(self) -> tuple[int, ...]:
        """Shape of the frame that one step appends; the full shape if `stack` is 1."""
        return (self.shape[0] // self.stack, *self.shape[1:]) if self.stack > 1 else self.shape


@dataclass(frozen=True)
class Continuous:
    """Actions are float32 [N, size] in [-1, 1]; the env clips them and rescales them to its own bounds."""

    size: int
    # Bounds in the env's own units, for callers that act in these units. Learners see [-1, 1] either way, so
    # specs that differ only in their bounds compare equal.
    low: tuple[float, ...] | None = field(default=None, compare=False)
    high: tuple[float, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Discrete:
    """Actions are int64 [N] in 0..choices-1.

    If the env takes several discrete actions at once, `factors` are their numbers of choices, and an action
    is the index of a combination: the last factor varies fastest.
    """

    choices: int
    factors: tuple[int, ...] = ()


@dataclass(frozen=True)
class EnvSpec:
    """Observations, actions and number of envs of a vector env, available without stepping it."""

    id: str
    obs: dict[str, Field]
    action: Continuous | Discrete
    envs: int
    episode_limit: int | None = None  # steps after which the env truncates; None: unlimited or unknown
    omitted: tuple[str, ...] = ()  # observations of the backend that are not in `obs`, such as texts

    @property
    def images(self) -> list[str]:
        """Names of the observations that are images [channels, height, width]."""
        return [name for name, field in self.obs.items() if len(field.shape) == 3]

    def shapes(self, privileged: bool = True) -> dict[str, tuple[int, ...]]:
        """Shapes of the observations by name; the one that only critics read is last, or left out."""
        names = sorted(self.obs, key=lambda name: name == PRIVILEGED)
        return {name: self.obs[name].shape for name in names if privileged or name != PRIVILEGED}

    def width(self, name: str = OBS) -> int:
        """Number of elements in one row of a named observation; 0 if the env does not have it."""
        field = self.obs.get(name)
        return 0 if field is None else math.prod(field.shape)


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one step (or reset) of N envs; row i belongs to env i.

    A row with `valid` True is a transition: the last `obs` of this env, the action, `reward`, `next_obs`.
    A row with `valid` False is not: the env was reset, the action was ignored, `obs` is the first observation
    of an episode, `reward` is 0 and both end flags are False. This happens after `VectorEnv.reset`, after a
    fault, and in next-step autoreset in the step after an episode ends.

    Autoreset. In same-step mode the step that ends an episode returns the final observation as `next_obs` and
    the first observation of the next episode as `obs`. In next-step mode (EnvPool) it returns the final
    observation as both, and the following step returns an invalid row with the first observation.
    """

    obs: Obs  # input for the next action
    next_obs: (
        Obs  # successor state of the action; the same object as `obs` unless a row was reset in this step
    )
    reward: Tensor  # [N] float32
    terminated: Tensor  # [N] bool: terminal state, no bootstrap; never True together with `truncated`
    truncated: Tensor  # [N] bool: time limit, bootstrap from `next_obs`
    valid: Tensor  # [N] bool
    faults: int = 0  # number of rows that contained NaN or infinity and were reset

    @property
    def started(self) -> Tensor:
        """[N] bool: rows whose `obs` is the first observation of an episode."""
        if self.next_obs is self.obs:  # no reset within this step, except of invalid rows
            return ~self.valid
        return ~self.valid | self.terminated | self.truncated


class VectorEnv(Protocol):
    """N copies of an env that step together; ended episodes restart automatically (see `Step`)."""

    spec: EnvSpec

    def reset(self, seed: int) -> Step:
        """Start a new episode in every env, seeded by `seed`; all rows of the result have `valid` False."""
        ...

    def send(self, action: Tensor) -> None:
        """Start a step with `action` (see `EnvSpec.action`); an asynchronous backend returns at once."""
        ...

    def recv(self) -> Step:
        """Wait for the step that the last `send` started and return its result."""
        ...

    def step(self, action: Tensor) -> Step:
        """`send` followed by `recv`."""
        ...

    def restart(self, rows: Tensor) -> Obs:
        """Start a new episode in the envs `rows` (int64 [K]) and return their first observations, [K, ...].

        Other envs are unaffected. Must not be called between `send` and `recv`.
        """
        ...

    def close(self) -> None:
        """Release threads, processes and memory; further calls have no effect."""
        ...


class EnvConfig(Protocol):
    """A frozen dataclass that identifies an env and builds it in the process that needs it."""

    @property
    def id(self) -> str:
        """Id of the env as its backend spells it, without a backend prefix."""
        ...

    @property
    def envs(self) -> int:
        """Number of envs that `make` builds."""
        ...

    @property
    def spec(self) -> EnvSpec:
        """Observations, actions and limits, read without building all `envs` simulators.

        Raises BadInput for an unknown id or an unsupported space.
        """
        ...

    def make(self, seed: int, device: str = "cpu") -> VectorEnv:
        """Build the vector env, whose tensors are on `device`. Call `reset` before the first step.

        EnvPool takes its seed at construction: pass the seed of the first `reset` to avoid a second build.
        """
        ...

    def with_envs(self, envs: int) -> Self:
        """Return a copy of this config with `envs` envs."""
        ...

    def for_evaluation(self) -> Self:
        """Return the config with which returns are reported: full games and unclipped rewards.

        Differs from `self` only where training changes the task, as Atari preprocessing does.
        """
        ...
