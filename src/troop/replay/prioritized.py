"""Prioritized replay over streams: Schaul et al. 2016, "Prioritized Experience Replay", proportional."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from troop.core.batch import NStep, Rollout, Transition
from troop.core.config import bounded
from troop.core.env import EnvSpec
from troop.replay.storage.kernels import CLOSING, Array
from troop.replay.storage.lazy_numba import compiled
from troop.replay.storage.sum_tree import SumTree
from troop.replay.uniform import ReplaySize, UniformReplay


@dataclass(frozen=True)
class PriorityConfig:
    """How much errors decide what is drawn: row k with probability p_k^alpha / sum, p = |error| + least."""

    alpha: float = bounded(0.0, low=0, high=1)
    """0 draws uniformly and keeps no priorities; the papers use 0.5 to 0.7."""
    beta: float = bounded(0.4, low=0, high=1)
    """Exponent of the importance weights (N P)^-beta that undo the preference; 1 undoes it wholly."""
    beta_end: float = bounded(0.4, low=0, high=1)
    beta_anneal_batches: int = bounded(0, low=0)
    """Batches over which beta goes to beta_end in a line; 0 keeps it (Ape-X)."""
    eps: float = bounded(1e-6, above=0)
    """Added to every priority, so that no row is lost."""
    normalize_weights_by: Literal["batch", "buffer"] = "batch"
    """Weights are divided by the largest of the batch (Rainbow, dqn_zoo) or of the buffer (baselines, Ape-X
    re-implementations); Schaul et al. only say the maximum."""


@compiled
def _entering(
    stream: Array,
    before: Array,
    time: int,
    length: int,
    n: int,
    margin: int,
    flags: Array,
    waiting: Array,
    leaf: Array,
    value: Array,
) -> int:
    """Leaves that change when `time` rows are added to each stream: (leaf, value), and how many.

    A row enters when its window is complete, n rows later, with the priority that waited for it. It leaves,
    together with the `margin` rows after it that need it for their stacks, when it is overwritten.
    """
    count = 0
    for b in range(stream.shape[0]):
        base, head = stream[b] * length, before[b]
        oldest = head + time - length
        if oldest > 0:  # overwritten, by rows whose windows are not complete yet, and those that lean on them
            for row in range(max(head - length, 0), oldest + margin):
                leaf[count], value[count] = base + row % length, 0.0
                count += 1
        for row in range(max(head - n, 0), head + time - n):
            at = base + row % length
            if row >= (oldest + margin if oldest > 0 else 0) and not flags[at] & CLOSING:
                leaf[count], value[count] = at, waiting[at]
                count += 1
    return count


class PrioritizedReplay(UniformReplay):
    """Draws rows in proportion to their priorities, stratified; one leaf per row, zero where none can start.

    `index` of a batch numbers rows for good (row number x streams + stream), so that a priority that comes
    back late cannot fall on the row that took the place. The tree is on the host
    whatever the device of the rows.
    """

    def __init__(
        self,
        spec: EnvSpec,
        experience: NStep,
        size: ReplaySize,
        seed: int,
        device: str = "cpu",
        priority: PriorityConfig | None = None,
    ) -> None:
        super().__init__(spec, experience, size, seed, device)
        self.priority = priority or PriorityConfig(alpha=0.6)
        self.tree = SumTree(self.capacity, self.priority.normalize_weights_by == "buffer")
        self.waiting = np.zeros(self.capacity, np.float32)  # p^alpha of rows whose window is not complete
        self.host_flags = np.zeros(0, np.uint8) if device == "cpu" else np.zeros(self.capacity, np.uint8)
        self.largest = self.least_drawn = 1.0
        self.drawn = torch.zeros(0, dtype=torch.int64)  # numbers of the rows of the last batch
        self.batches = 0
        self.random = np.random.default_rng(seed)

    def _leaf(self, priority: Array | float) -> Any:  # noqa: ANN401 - an array for an array
        return (priority + self.priority.eps) ** self.priority.alpha

    def _flags(self) -> Array:
        return self.streams.flags.numpy() if self.streams.device.type == "cpu" else self.host_flags

    def add(self, piece: Rollout) -> None:
        """Append; rows enter with their own priority or with the largest there was."""
        stream = piece.streams.numpy()
        before, time = self.streams.heads[stream], len(piece.reward)
        if piece.priority is not None:
            given = piece.priority.double().cpu().numpy()
            _refuse(given.reshape(-1), "a new row")
            self.largest = max(self.largest, float(given.max(initial=0.0)))
            value = self._leaf(given)
        else:
            value = np.full((time, len(stream)), self._leaf(self.largest))
        super().add(piece)
        length, n, margin = self.streams.length, self.experience.n, self.streams.margin
        place = stream * length + (before + np.arange(time)[:, None]) % length
        self.waiting[place] = value
        if self.streams.device.type != "cpu":
            self.host_flags[place] = piece.closing.cpu().numpy() * CLOSING
        room = len(stream) * (2 * time + margin)
        leaf, values = np.empty(room, np.int64), np.empty(room)
        count = _entering(stream, before, time, length, n, margin, self._flags(), self.waiting, leaf, values)
        self.tree.set(leaf[:count], values[:count])

    def end_streams(self, streams: Tensor | None = None) -> None:
        """The envs were reset by force: no window may reach across, and the newest rows never enter."""
        super().end_streams(streams)
        if self.streams.device.type != "cpu":
            self.host_flags = self.streams.flags.cpu().numpy()

    def ready(self) -> bool:
        """Whether the warm-up is over and some row can be drawn."""
        return super().ready() and self.tree.total > 0

    def sample(self, rows: int) -> Transition | None:
        """`rows` transitions from equal parts of the whole mass, with weights whose maximum is 1."""
        if not self.ready():
            return None
        total = self.tree.total
        leaf = self.tree.find((np.arange(rows) + self.random.random(rows)) * (total / rows))
        chance = self.tree.get(leaf)
        beta, device = self.beta, self.streams.device
        # (N p / total)^-beta over its maximum: N and the total cancel.
        least = chance.min() if self.priority.normalize_weights_by == "batch" else self.tree.least
        self.least_drawn = float(least)  # for whoever puts this batch beside those of other replays
        weight = torch.from_numpy(((chance / least) ** -beta).astype(np.float32))
        self.batches += 1
        place, self.drawn = torch.from_numpy(leaf), self._numbers(leaf)
        return self.windows.transitions(place.to(device), weight.to(device), self.drawn)

    @property
    def sample_age(self) -> float:
        """Rows that came since those of the last batch did, on average over it; of all streams together."""
        if not len(self.drawn):
            return 0.0
        row, stream = np.divmod(self.drawn.numpy(), self.streams.streams)
        return float((self.streams.heads[stream] - row).mean()) * self.streams.streams

    @property
    def beta(self) -> float:
        """The exponent of the next batch's weights."""
        how = self.priority
        share = min(1.0, self.batches / how.beta_anneal_batches) if how.beta_anneal_batches else 0.0
        return how.beta + share * (how.beta_end - how.beta)

    def _numbers(self, leaf: Array) -> Tensor:
        stream, position = np.divmod(leaf, self.streams.length)
        head = self.streams.heads[stream]
        row = head - 1 - (head - 1 - position) % self.streams.length
        return torch.from_numpy(row * self.streams.streams + stream)

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Rows of an earlier batch matter this much now; those overwritten meanwhile are passed over."""
        number, given = index.cpu().numpy(), priority.double().cpu().numpy()
        _refuse(given, "row", number)
        row, stream = np.divmod(number, self.streams.streams)
        length = self.streams.length
        leaf = stream * length + row % length
        head = self.streams.heads[stream]
        # Zero where the row went, or leans on frames that went: then it cannot be drawn any more. Rows beyond
        # the head were drawn before this replay went back to a checkpoint.
        here = (row >= head - length + self.streams.margin) & (row < head) & (self.tree.get(leaf) > 0)
        self.tree.set(leaf[here], self._leaf(given)[here])
        self.largest = max(self.largest, float(given.max(initial=0.0)))

    def state_dict(self) -> dict[str, Any]:
        """The rows, their leaves, and what waits to become one."""
        used = int(min(self.streams.heads.max(initial=0), self.streams.length))
        by_stream = (self.streams.streams, self.streams.length)
        leaves = self.tree.get(np.arange(self.capacity)).reshape(by_stream)[:, :used]
        random = self.random.bit_generator.state
        return super().state_dict() | {
            "leaves": torch.from_numpy(leaves.copy()),
            "waiting": torch.from_numpy(self.waiting.reshape(by_stream)[:, :used].copy()),
            "largest": self.largest,
            "batches": self.batches,
            "random": {k: str(v) for k, v in random["state"].items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Take back rows and priorities; in rings of another shape all rows enter with the largest one."""
        dropped = super().load_state_dict(state)
        self.largest, self.batches = float(state["largest"]), int(state["batches"])
        random = {"state": {k: int(v) for k, v in state["random"].items()}}
        self.random.bit_generator.state = dict(self.random.bit_generator.state) | random
        if self.streams.device.type != "cpu":
            self.host_flags = self.streams.flags.cpu().numpy()
        streams, length = self.streams.streams, self.streams.length
        leaves, waiting = state["leaves"].numpy(), state["waiting"].numpy()
        whole = np.zeros((streams, length))
        self.waiting = np.full(self.capacity, self._leaf(self.largest), np.float32)
        if len(state["streams"]["heads"]) == streams and int(state["streams"]["length"]) == length:
            whole[:, : leaves.shape[1]] = leaves
            self.waiting.reshape(streams, length)[:, : waiting.shape[1]] = waiting
        else:
            self._enter_all(whole)
        self.tree = SumTree(self.capacity, self.priority.normalize_weights_by == "buffer")
        self.tree.set(np.arange(self.capacity), whole.reshape(-1))
        return dropped

    def _enter_all(self, whole: Array) -> None:
        """Give every complete window the priority that waits."""
        length, n, heads = self.streams.length, self.experience.n, self.streams.heads
        flags, waiting = self._flags().reshape(whole.shape), self.waiting.reshape(whole.shape)
        for stream, head in enumerate(heads.tolist()):
            first = max(head - length + self.streams.margin, 0) if head > length else 0
            at = np.arange(first, max(head - n, first)) % length
            whole[stream, at] = np.where(flags[stream, at] & CLOSING, 0.0, waiting[stream, at])


def _refuse(priority: Array, what: str, number: Array | None = None) -> None:
    """ValueError naming the first priority that is none."""
    bad = ~(np.isfinite(priority) & (priority >= 0))
    if bad.any():
        at = int(bad.argmax())
        which = what if number is None else f"{what} {int(number[at])}"
        raise ValueError(f"the priority of {which} (position {at}) is {priority[at]}; it must be 0 or more")
