"""C1 Env: given N actions, N rows come back in which `next_obs` is always the true successor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, Self

import torch
from torch import Tensor

Obs = dict[str, Tensor]
"""Named observations, rows first. `obs` is what a policy sees; `privileged`, where the env has it,
is what a critic may see *in addition* (never a second copy of `obs`)."""

OBS, PRIVILEGED = "obs", "privileged"


@dataclass(frozen=True)
class Field:
    """Shape and dtype of one row of a named observation.

    With `stack` > 1 the first axis is a history of that many frames, oldest first, of which each step adds
    the last. The row that opens an episode holds its first frame throughout or, after a lost life, goes on
    with the history of the row before it. A replay then keeps single frames.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    stack: int = 1

    @property
    def frame(self) -> tuple[int, ...]:
        """Shape of what one step adds."""
        return (self.shape[0] // self.stack, *self.shape[1:]) if self.stack > 1 else self.shape


@dataclass(frozen=True)
class Continuous:
    """Actions are float32 [B, size]; policies speak in [-1, 1], the adapter clips and rescales."""

    size: int
    # The env's own bounds, for those who act in its units; to a learner two such actions are the same.
    low: tuple[float, ...] | None = field(default=None, compare=False)
    high: tuple[float, ...] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Discrete:
    """Actions are int64 [B] in 0..choices-1."""

    choices: int


@dataclass(frozen=True)
class EnvSpec:
    """What can be known of an env without stepping it: data only."""

    id: str
    obs: dict[str, Field]
    action: Continuous | Discrete
    envs: int
    episode_limit: int | None = None  # steps after which the env truncates, if it says so
    scores: tuple[float, float] | None = None  # published returns of a random and of a human player

    def width(self, name: str = OBS) -> int:
        """Columns of a named vector observation; 0 if the env does not have it."""
        field = self.obs.get(name)
        return 0 if field is None else int(torch.Size(field.shape).numel())

    def human_normalized(self, score: float) -> float | None:
        """A return in percent, 0 a random player and 100 a human; None where nobody published theirs."""
        if self.scores is None:
            return None
        random, human = self.scores
        return 100 * (score - random) / (human - random)


@dataclass(frozen=True, slots=True)
class Step:
    """What N envs answered; rows are envs.

    Where `valid` is False nothing was acted in this row: the action was ignored and `obs` only
    opens an episode (first step, EnvPool's extra row after an end, an env reset after a fault).
    """

    obs: Obs  # act on this
    next_obs: Obs  # true successor; the same object as `obs` unless a row was reset in this very step
    reward: Tensor  # [N] float32
    terminated: Tensor  # [N] bool: the world ended, no bootstrap
    truncated: Tensor  # [N] bool: the clock ended, bootstrap from next_obs
    valid: Tensor  # [N] bool
    faults: int = 0  # rows that came back NaN or infinite and were reset


class VectorEnv(Protocol):
    """N copies of a world behind one call; `step(a)` is `send(a)` then `recv()`."""

    spec: EnvSpec

    def reset(self, seed: int) -> Step:
        """Start every env anew; all rows `valid=False`."""
        ...

    def send(self, action: Tensor) -> None:
        """Begin a step and return at once where the backend can simulate in the background."""
        ...

    def recv(self) -> Step:
        """The answer to the last `send`."""
        ...

    def step(self, action: Tensor) -> Step:
        """`send` and `recv` in one."""
        ...

    def restart(self, rows: Tensor) -> Obs:
        """Reset only these rows (int64 [K]); their first observations, K rows."""
        ...

    def close(self) -> None:
        """Give back threads and memory; may be called twice."""
        ...


class EnvConfig(Protocol):
    """A frozen dataclass that says which env and builds it where it is needed."""

    @property
    def id(self) -> str:
        """The env's name as its backend spells it."""
        ...

    @property
    def envs(self) -> int:
        """How many copies `make` builds."""
        ...

    @property
    def spec(self) -> EnvSpec:
        """Shapes and names, had without building N simulators."""
        ...

    def make(self, seed: int, device: str = "cpu") -> VectorEnv:
        """The live env; tensors of its Steps are on `device`."""
        ...

    def with_envs(self, envs: int) -> Self:
        """The same env with another number of copies."""
        ...

    def for_evaluation(self) -> Self:
        """The same env as its returns are reported: whole games, rewards as they are."""
        ...
