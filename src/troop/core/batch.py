"""Batches: what recorders send (`Rollout`) and what algorithms learn from (`Transition`, `Trajectory`).

`reward + discount * V(successor)` is the complete Bellman target: algorithms do not see termination flags.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from troop.core.env import Obs

Batch = TypeVar("Batch", "Transition", "Rollout", "Trajectory")
PER_STREAM = ("priority", "weight", "index")  # fields of a Trajectory with one value per stream

State = dict[str, Any] | None
"""Recurrent state of a policy: nested dicts of tensors [rows, ...]; None for a policy without memory."""


@dataclass(frozen=True, slots=True)
class Transition:
    """[B] rows; `reward` is the discounted sum of k rewards, `discount` is gamma^k, or 0 if terminated."""

    obs: Obs
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Obs
    weight: Tensor | None = None  # importance weight; None means ones
    index: Tensor | None = None  # ids for `PrioritizedSource.reprioritize`, on the host; None: no priorities

    def __len__(self) -> int:
        """Number of rows."""
        return int(self.reward.shape[0])

    def to(self, device: torch.device | str) -> Transition:
        """Return the batch on `device`, itself if both are the CPU; `index` stays on the host."""
        return _move(self, torch.device(device), host_field="index")


@dataclass(frozen=True, slots=True)
class Rollout:
    """Consecutive time steps of B env streams: time-ordered rows [T, B].

    Where `closing` is set the row is not a transition: it only holds the observation on which the previous
    row of its stream ended (a final observation, or the last one before a forced reset).
    """

    streams: Tensor  # [B] int64 on the host: the stream of each column
    obs: Obs  # [T, B, ...]
    action: Tensor  # [T, B, ...]
    reward: Tensor  # [T, B]
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool
    closing: Tensor  # [T, B] bool
    extras: dict[str, Tensor] = field(default_factory=dict)
    """Further values of each row, [T, B, ...]. "priority" is its initial priority; the replay chooses one
    for rollouts without it."""

    def to(self, device: torch.device | str) -> Rollout:
        """Return the rollout on `device`, itself if both are the CPU; `streams` stay on the host."""
        return _move(self, torch.device(device), host_field="streams")

    def cpu(self) -> Rollout:
        """Return the rollout on the host, itself if it is there."""
        return self.to("cpu")

    @property
    def rows(self) -> int:
        """Number of rows that a replay counts: those that are not closing rows."""
        return int((~self.closing).sum())


@dataclass(frozen=True, slots=True)
class Trajectory:
    """T consecutive steps of B env streams; `obs` has T + 1 entries.

    The successor of step t is obs[t + 1], except where the env was reset within the step: the successors of
    those steps that are bootstrapped from are `final_obs`. Where `valid` is False, row t is not a step: its
    action had no effect (a reset, an env fault, or the last observation before a forced reset).
    """

    obs: Obs  # [T + 1, B, ...]
    action: Tensor  # [T, B, ...]
    reward: Tensor  # [T, B], 0 where not valid
    discount: Tensor  # [T, B]: gamma, 0 where the episode terminated
    ended: Tensor  # [T, B] bool: the last step of an episode: the next row does not continue this one
    valid: Tensor  # [T, B] bool
    started: Tensor  # [T + 1, B] bool: `obs` is the first observation of an episode
    final_obs: Obs  # [K, ...]
    final_index: Tensor  # [K] int64: t * B + b of the steps whose successors are `final_obs`
    state: State = None  # recurrent state at entry 0, [B, ...]
    extras: dict[str, Tensor] = field(default_factory=dict)
    """What the policy returned with each action, [T, B, ...], such as log_prob and value; "version" is the
    policy's version, "episode_return" the discounted return of the episode up to this step."""
    priority: Tensor | None = None  # [B]: initial priorities of sequences; None: the replay chooses them
    weight: Tensor | None = None  # [B]: importance weights of sampled sequences; None means ones
    index: Tensor | None = None  # [B]: ids for `PrioritizedSource.reprioritize`, on the host

    @property
    def length(self) -> int:
        """T, the number of steps."""
        return int(self.reward.shape[0])

    def __len__(self) -> int:
        """B, the number of env streams."""
        return int(self.reward.shape[1])

    @property
    def nbytes(self) -> int:
        """Size of all tensors."""
        fields = [getattr(self, each.name) for each in dataclasses.fields(self)]
        return sum(x.nbytes for x in pytree.tree_leaves(fields) if isinstance(x, Tensor))

    def to(self, device: torch.device | str) -> Trajectory:
        """Return the trajectory on `device`, itself if both are the CPU; `index` stays on the host."""
        return _move(self, torch.device(device), host_field="index")

    def cpu(self) -> Trajectory:
        """Return the trajectory on the host, itself if it is there."""
        return self.to("cpu")

    @property
    def rows(self) -> int:
        """Number of rows that a replay counts: each env stream is one sequence."""
        return len(self)

    def columns(self, index: Tensor) -> Trajectory:
        """Return the streams `index` (int64, distinct) in this order."""
        # index_select copies images twenty times faster on a CPU than x[:, index].
        position = torch.full((len(self),), -1, device=index.device)
        position[index] = torch.arange(len(index), device=index.device)
        column = position[self.final_index % len(self)]
        kept = column >= 0
        step = self.final_index.div(len(self), rounding_mode="floor")
        return Trajectory(
            obs={name: x.index_select(1, index) for name, x in self.obs.items()},
            action=self.action.index_select(1, index),
            reward=self.reward.index_select(1, index),
            discount=self.discount.index_select(1, index),
            ended=self.ended.index_select(1, index),
            valid=self.valid.index_select(1, index),
            started=self.started.index_select(1, index),
            final_obs={name: x[kept] for name, x in self.final_obs.items()},
            final_index=(step * len(index) + column)[kept],
            state=select_state(self.state, index),
            extras={name: x.index_select(1, index) for name, x in self.extras.items()},
            **{name: None if x is None else x[index.to(x.device)] for name, x in self._per_stream().items()},
        )

    def _per_stream(self) -> dict[str, Tensor | None]:
        return {name: getattr(self, name) for name in PER_STREAM}


def join_trajectories(parts: list[Trajectory]) -> Trajectory:
    """Return the streams of all parts side by side; all have the same length T."""
    if len(parts) == 1:
        return parts[0]
    streams = sum(len(part) for part in parts)
    offsets = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0).tolist()
    index = [
        part.final_index.div(len(part), rounding_mode="floor") * streams
        + part.final_index % len(part)
        + offset
        for part, offset in zip(parts, offsets, strict=False)
    ]

    def concatenate(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts], 1)

    def concatenate_each(name: str, axis: int) -> dict[str, Tensor]:
        dicts: list[dict[str, Tensor]] = [getattr(part, name) for part in parts]
        return {key: torch.cat([each[key] for each in dicts], axis) for key in dicts[0]}

    return Trajectory(
        obs=concatenate_each("obs", 1),
        action=concatenate("action"),
        reward=concatenate("reward"),
        discount=concatenate("discount"),
        ended=concatenate("ended"),
        valid=concatenate("valid"),
        started=concatenate("started"),
        final_obs=concatenate_each("final_obs", 0),
        final_index=torch.cat(index),
        state=_join_states([part.state for part in parts]),
        extras=concatenate_each("extras", 1),
        **{name: _join_optional([getattr(part, name) for part in parts]) for name in PER_STREAM},
    )


def _join_optional(tensors: list[Tensor | None]) -> Tensor | None:
    present = [x for x in tensors if x is not None]
    return torch.cat(present) if len(present) == len(tensors) else None


def select_state(state: State, index: Tensor) -> State:
    """Return the rows `index` of a recurrent state; None if there is none."""
    if state is None:
        return None
    selected: State = pytree.tree_map(lambda x: x[index], state)
    return selected


def _join_states(states: list[State]) -> State:
    if states[0] is None:
        return None
    joined: State = pytree.tree_map(lambda *x: torch.cat(x), *states)
    return joined


def _move(batch: Batch, device: torch.device, host_field: str | None = None) -> Batch:
    """Return `batch` with the tensors of all fields but `host_field` on `device`."""
    on_host = device.type == "cpu"
    if on_host and batch.reward.is_cpu:
        return batch
    names = [f.name for f in dataclasses.fields(batch) if f.name != host_field]
    moved = pytree.tree_map_only(
        Tensor,
        lambda x: x.to(device, non_blocking=not on_host),  # a copy to the host must be complete when used
        {name: getattr(batch, name) for name in names},
    )
    return dataclasses.replace(batch, **moved)


@dataclass(frozen=True)
class NStep:
    """Batch specification: transitions over `n` steps, discounted by `gamma`."""

    n: int = 1
    gamma: float = 0.99
    bootstrap_on_truncation: bool = True  # False: a time limit counts as a termination
    scale_rewards_to: float | None = None  # divide rewards so that discounted returns stay within this

    def within_time_limit(self, steps: int | None) -> NStep:
        """Return the specification for episodes of at most `steps` steps (None: no limit).

        A value that is bootstrapped at the time limit continues beyond it: with constant rewards it is
        1 / (1 - gamma^steps) times the largest return of an episode. Rewards are scaled down by that much, or
        such values would lie outside of a critic's support, where all actions are equal.
        """
        if not self.bootstrap_on_truncation:
            return self
        return dataclasses.replace(self, scale_rewards_to=_scale(self.scale_rewards_to, self.gamma, steps))


def _scale(bound: float | None, gamma: float, steps: int | None) -> float | None:
    """Return `scale_rewards_to` for a time limit of `steps` steps: see `NStep.within_time_limit`."""
    return bound * (1 - gamma**steps) if bound and steps and gamma < 1 else bound


@dataclass(frozen=True)
class TrajectorySpec:
    """Batch specification: trajectories of `length` steps, discounted by `gamma`."""

    length: int
    gamma: float = 0.99


@dataclass(frozen=True)
class SequenceSpec:
    """Batch specification: sequences of `length` steps, sampled from a replay, discounted by `gamma`.

    A sequence is a Trajectory whose steps belong to one episode: it ends with the episode, and rows after
    that are not valid. The successor of each step is the next entry of `obs`, also at a time limit. The last
    `overlap` steps of a sequence are the first ones of the next. The first `burn_in` steps only bring the
    recurrent state up to date; those of an episode's first sequence are not valid, so that every step of the
    episode is learned from.
    """

    length: int
    overlap: int = 0
    burn_in: int = 0
    gamma: float = 0.99
    scale_rewards_to: float | None = None  # divide rewards so that discounted returns stay within this

    def __post_init__(self) -> None:
        """Raise ValueError for sequences that would leave out steps or never advance."""
        if not 0 <= self.burn_in <= self.overlap < self.length:
            raise ValueError(
                f"sequences need 0 <= burn-in <= overlap < length, not {self.burn_in}, {self.overlap} and "
                f"{self.length}"
            )

    def within_time_limit(self, steps: int | None) -> SequenceSpec:
        """Return the specification for episodes of at most `steps` steps, as `NStep.within_time_limit`."""
        return dataclasses.replace(self, scale_rewards_to=_scale(self.scale_rewards_to, self.gamma, steps))


Experience = NStep | TrajectorySpec | SequenceSpec
