"""PrioritizedReplay: Schaul et al. 2016, "Prioritized Experience Replay", proportional variant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from troop.core.batch import NStep, Rollout, Transition
from troop.core.config import bounded
from troop.core.env import EnvSpec
from troop.core.peers import NO_PEERS, Peers
from troop.replay.storage.kernels import CLOSING, Array
from troop.replay.storage.lazy_numba import njit_lazy
from troop.replay.storage.sum_tree import SumTree
from troop.replay.uniform import ReplaySize, UniformReplay


@dataclass(frozen=True)
class PriorityConfig:
    """Row i is sampled with probability p_i^alpha / sum_k p_k^alpha, where p_i = |TD error| + eps."""

    alpha: float = bounded(0.0, low=0, high=1)
    """0 samples uniformly, without priorities; the papers use 0.5 to 0.7."""
    beta: float = bounded(0.4, low=0, high=1)
    """Exponent of the importance weights (N P(i))^-beta; 1 corrects the sampling bias completely."""
    beta_end: float = bounded(0.4, low=0, high=1)
    """Value of beta at the end of the annealing."""
    beta_anneal_batches: int = bounded(0, low=0)
    """Batches over which beta is annealed linearly to beta_end; 0 keeps it constant (Ape-X)."""
    eps: float = bounded(1e-6, above=0)
    """Added to every priority, so that each row can be sampled."""
    normalize_weights_by: Literal["batch", "buffer"] = "batch"
    """Divide the weights by the maximum of the batch (Rainbow, dqn_zoo) or of the whole buffer (baselines,
    Ape-X re-implementations); Schaul et al. do not specify which."""

    def beta_after(self, batches: int) -> float:
        """Return beta after this number of batches."""
        if not self.beta_anneal_batches:
            return self.beta
        fraction = min(1.0, batches / self.beta_anneal_batches)
        return self.beta + fraction * (self.beta_end - self.beta)


@njit_lazy
def _leaf_changes(
    stream: Array,
    before: Array,
    time: int,
    length: int,
    n: int,
    margin: int,
    flags: Array,
    pending: Array,
    leaf: Array,
    value: Array,
) -> int:
    """Write the leaves that change when `time` rows are added to each stream; return their number.

    A row gets its pending priority when its window is complete, n rows later. It gets zero when it is
    overwritten, together with the `margin` rows after it that need it for their frame stacks.
    """
    count = 0
    for b in range(stream.shape[0]):
        base, head = stream[b] * length, before[b]
        oldest = head + time - length
        if oldest > 0:
            # Overwritten rows, whose new windows are not complete, and rows that need their frames.
            for row in range(max(head - length, 0), oldest + margin):
                leaf[count], value[count] = base + row % length, 0.0
                count += 1
        for row in range(max(head - n, 0), head + time - n):
            at = base + row % length
            if row >= (oldest + margin if oldest > 0 else 0) and not flags[at] & CLOSING:
                leaf[count], value[count] = at, pending[at]
                count += 1
    return count


class PrioritizedReplay(UniformReplay):
    """Samples rows in proportion to p^alpha, stratified; each slot has a leaf, zero where no window starts.

    `index` of a batch holds row ids (row number in the stream * streams + stream), which are never reused:
    a late priority cannot be assigned to the row that has overwritten its row. The tree is on the host
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
        peers: Peers = NO_PEERS,
    ) -> None:
        super().__init__(spec, experience, size, seed, device, peers)
        self.priority = priority or PriorityConfig(alpha=0.6)
        self.tree = SumTree(self.capacity, self.priority.normalize_weights_by == "buffer")
        self.pending = np.zeros(self.capacity, np.float32)  # p^alpha of rows, until their window is complete
        self.host_flags = np.zeros(0, np.uint8) if device == "cpu" else np.zeros(self.capacity, np.uint8)
        self.max_priority = 1.0  # the largest so far
        self.min_priority = 1.0  # p^alpha of the row with weight 1 in the last batch
        self.sampled_ids = torch.zeros(0, dtype=torch.int64)  # row ids of the last batch
        self.batches = 0
        self.random = np.random.default_rng(seed)

    def _leaf_value(self, priority: Array | float) -> Any:  # noqa: ANN401 - an array for an array
        return (priority + self.priority.eps) ** self.priority.alpha

    def _flags(self) -> Array:
        return self.storage.flags.numpy() if self.storage.device.type == "cpu" else self.host_flags

    def _append(self, rollout: Rollout) -> None:
        """Append the rows with priority `extras["priority"]` or, without it, the largest priority so far."""
        stream = rollout.streams.numpy()
        before, time = self.storage.rows_written[stream], len(rollout.reward)
        if "priority" in rollout.extras:
            priority = rollout.extras["priority"].double().cpu().numpy()
            check_priorities(priority.reshape(-1))
            self.max_priority = max(self.max_priority, float(priority.max(initial=0.0)))
            value = self._leaf_value(priority)
        else:
            value = np.full((time, len(stream)), self._leaf_value(self.max_priority))
        super()._append(rollout)
        length, n, margin = self.storage.length, self.experience.n, self.storage.stack_margin
        slots = stream * length + (before + np.arange(time)[:, None]) % length
        self.pending[slots] = value
        if self.storage.device.type != "cpu":
            self.host_flags[slots] = rollout.closing.cpu().numpy() * CLOSING
        max_changes = len(stream) * (2 * time + margin)
        leaf, values = np.empty(max_changes, np.int64), np.empty(max_changes)
        count = _leaf_changes(
            stream, before, time, length, n, margin, self._flags(), self.pending, leaf, values
        )
        self.tree.set(leaf[:count], values[:count])

    def end_streams(self, streams: Tensor | None = None) -> None:
        """End the episodes of these streams (None: all) after a forced reset: no n-step window crosses it."""
        super().end_streams(streams)
        if self.storage.device.type != "cpu":
            self.host_flags = self.storage.flags.cpu().numpy()

    def ready(self) -> bool:
        """Return whether the warm-up is over and some row has a priority above zero."""
        return super().ready() and self.tree.total > 0

    def sample_unscaled(self, rows: int) -> Transition | None:
        """Return `rows` transitions, one from each of `rows` equal ranges of the total priority.

        Their rewards are those of the env, their importance weights at most 1. None during the warm-up.
        """
        if not self.ready():
            return None
        total = self.tree.total
        leaf = self.tree.find((np.arange(rows) + self.random.random(rows)) * (total / rows))
        value = self.tree.get(leaf)
        beta, device = self.beta, self.storage.device
        # (N p / total)^-beta divided by its maximum: N and the total cancel.
        minimum = value.min() if self.priority.normalize_weights_by == "batch" else self.tree.minimum
        self.min_priority = float(minimum)  # read by Shard, which merges batches of several replays
        weight = torch.from_numpy(((value / minimum) ** -beta).astype(np.float32))
        self.batches += 1
        slots, self.sampled_ids = torch.from_numpy(leaf), self._row_ids(leaf)
        return self.sampler.transitions(slots.to(device), weight.to(device), self.sampled_ids)

    @property
    def sample_age(self) -> float:
        """Mean age of the rows of the last batch, in rows added to all streams since."""
        if not len(self.sampled_ids):
            return 0.0
        row, stream = np.divmod(self.sampled_ids.numpy(), self.storage.num_streams)
        return float((self.storage.rows_written[stream] - row).mean()) * self.storage.num_streams

    @property
    def beta(self) -> float:
        """Exponent of the importance weights of the next batch."""
        return self.priority.beta_after(self.batches)

    def _row_ids(self, leaf: Array) -> Tensor:
        stream, position = np.divmod(leaf, self.storage.length)
        written = self.storage.rows_written[stream]
        row = written - 1 - (written - 1 - position) % self.storage.length
        return torch.from_numpy(row * self.storage.num_streams + stream)

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Set the priorities of the rows with these ids; rows overwritten since are skipped."""
        row_id, value = index.cpu().numpy(), priority.double().cpu().numpy()
        check_priorities(value, row_id)
        row, stream = np.divmod(row_id, self.storage.num_streams)
        length = self.storage.length
        leaf = stream * length + row % length
        written = self.storage.rows_written[stream]
        # A leaf is zero where the row, or a frame that it needs, was overwritten. Rows not written yet were
        # sampled before this replay was restored from a checkpoint.
        oldest = written - length + self.storage.stack_margin
        present = (row >= oldest) & (row < written) & (self.tree.get(leaf) > 0)
        self.tree.set(leaf[present], self._leaf_value(value)[present])
        self.max_priority = max(self.max_priority, float(value.max(initial=0.0)))

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, their leaves and pending priorities, and the state of the random generators."""
        used = int(min(self.storage.rows_written.max(initial=0), self.storage.length))
        by_stream = (self.storage.num_streams, self.storage.length)
        leaves = self.tree.get(np.arange(self.capacity)).reshape(by_stream)[:, :used]
        random = self.random.bit_generator.state
        return super().state_dict() | {
            "leaves": torch.from_numpy(leaves.copy()),
            "pending": torch.from_numpy(self.pending.reshape(by_stream)[:, :used].copy()),
            "max_priority": self.max_priority,
            "batches": self.batches,
            "random": {k: str(v) for k, v in random["state"].items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Restore rows and priorities; return the number of rows dropped.

        In rings of another shape all rows get the largest priority.
        """
        dropped = super().load_state_dict(state)
        self.max_priority, self.batches = float(state["max_priority"]), int(state["batches"])
        random = {"state": {k: int(v) for k, v in state["random"].items()}}
        self.random.bit_generator.state = dict(self.random.bit_generator.state) | random
        if self.storage.device.type != "cpu":
            self.host_flags = self.storage.flags.cpu().numpy()
        streams, length = self.storage.num_streams, self.storage.length
        saved_leaves, saved_pending = state["leaves"].numpy(), state["pending"].numpy()
        leaves = np.zeros((streams, length))
        self.pending = np.full(self.capacity, self._leaf_value(self.max_priority), np.float32)
        saved = state["storage"]
        if len(saved["rows_written"]) == streams and int(saved["length"]) == length:
            leaves[:, : saved_leaves.shape[1]] = saved_leaves
            self.pending.reshape(streams, length)[:, : saved_pending.shape[1]] = saved_pending
        else:
            self._fill_complete_windows(leaves)
        self.tree = SumTree(self.capacity, self.priority.normalize_weights_by == "buffer")
        self.tree.set(np.arange(self.capacity), leaves.reshape(-1))
        return dropped

    def _fill_complete_windows(self, leaves: Array) -> None:
        """Set the leaf of every complete window to its pending priority."""
        length, n = self.storage.length, self.experience.n
        flags, pending = self._flags().reshape(leaves.shape), self.pending.reshape(leaves.shape)
        for stream, written in enumerate(self.storage.rows_written.tolist()):
            first = max(written - length + self.storage.stack_margin, 0) if written > length else 0
            at = np.arange(first, max(written - n, first)) % length
            leaves[stream, at] = np.where(flags[stream, at] & CLOSING, 0.0, pending[stream, at])


def check_priorities(priority: Array, row_id: Array | None = None) -> None:
    """Raise ValueError for the first priority that is negative or not finite."""
    bad = ~(np.isfinite(priority) & (priority >= 0))
    if bad.any():
        at = int(bad.argmax())
        row = "a new row" if row_id is None else f"row {int(row_id[at])}"
        raise ValueError(f"the priority of {row} (position {at}) is {priority[at]}; it must be 0 or more")
