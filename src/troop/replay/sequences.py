"""SequenceReplay: overlapping sequences with their recurrent states, sampled by priority (R2D2)."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from troop.core.batch import SequenceSpec, State, Trajectory
from troop.core.config import bounded
from troop.core.env import EnvSpec
from troop.core.peers import NO_PEERS, Peers
from troop.replay.prioritized import PriorityConfig, check_priorities
from troop.replay.reward_scale import RewardScale
from troop.replay.storage.allocation import Allocate, allocator
from troop.replay.storage.frame_sequences import frame_stacks, single_frames
from troop.replay.storage.kernels import Array
from troop.replay.storage.ring import Layout
from troop.replay.storage.sum_tree import SumTree

# Kapturowski et al. 2019; importance weights with the exponent 0.6 as in table 2 and in SEED's code.
SEQUENCE_PRIORITY = PriorityConfig(alpha=0.9, beta=0.6, beta_end=0.6)
ROWS = ("action", "reward", "discount", "ended", "valid", "started")  # fields [T, B, ...] of a Trajectory


@dataclass(frozen=True)
class SequenceReplaySize:
    """Size in sequences, how many are needed before the first batch, and where they are stored."""

    capacity: int
    warmup: int = 1
    directory: str = ""  # store the sequences in files here instead of in memory


@dataclass(frozen=True)
class ServedReplay:
    """The replay between inference servers and a learner; the defaults are those of SEED's R2D2 on Atari.

    Its rows are sequences or, for algorithms that learn from transitions, env steps.
    """

    capacity: int = bounded(100_000, low=1)
    """Rows of the replay; the oldest are overwritten."""
    learning_starts: int = bounded(5_000, low=1)
    """Rows in the replay before the first update."""
    samples_per_insert: float = bounded(0.75, low=0)
    """Rows sampled per row inserted; 0: neither side waits."""
    priority: PriorityConfig = field(default_factory=lambda: SEQUENCE_PRIORITY)
    save: bool = False
    """Include the replay in checkpoints; without it a resumed run starts with an empty replay."""


class SequenceReplay:
    """A Store of sequences (`SequenceSpec`), each of which is one row: its size and its ids count sequences.

    Sequence i is sampled with probability p_i^alpha / sum_k p_k^alpha, stratified; with alpha 0 uniformly.
    The newest sequence overwrites the oldest one. `index` of a batch holds the number of each sequence in
    the order of arrival: a late priority cannot be assigned to a sequence that has overwritten another. The
    tree is on the host whatever the device of the sequences. Arrays are allocated when the first sequences
    arrive, which show what the policy returns with an action. Frame stacks are stored as single frames. With
    `scale_rewards_to` the rewards of batches are divided so that the returns of the episodes added so far
    stay within it; `peers` share the divisor.
    """

    def __init__(
        self,
        spec: EnvSpec,
        experience: SequenceSpec,
        size: SequenceReplaySize,
        seed: int,
        device: str = "cpu",
        priority: PriorityConfig | None = None,
        peers: Peers = NO_PEERS,
    ) -> None:
        self.spec, self.experience, self.size, self.device = spec, experience, size, device
        self.priority = priority or SEQUENCE_PRIORITY
        self.stacks = {f"obs.{name}": x.stack for name, x in spec.obs.items() if x.stack > 1}
        # The rows themselves must fit; what the policy adds to them is known when the first ones arrive.
        self._allocator(size.capacity * experience.length * Layout.of(spec).row_bytes)
        self.arrays: dict[str, Tensor] = {}  # [capacity, T, ...] by name, such as obs.image or state.core.h
        self.reward_scale: RewardScale | None = None
        if experience.scale_rewards_to is not None:
            self.reward_scale = RewardScale(experience, 0, peers=peers)
        self.tree = SumTree(size.capacity, self.priority.normalize_weights_by == "buffer")
        self.added = 0  # sequences ever added
        self.steps = 0  # env steps ever added; a step that is in several sequences counts once
        self.steps_before = np.zeros(size.capacity, np.int64)  # the same when each sequence was added
        self.max_priority = 1.0  # the largest so far
        self.min_priority = 1.0  # p^alpha of the sequence with weight 1 in the last batch
        self.batches = 0
        self.sampled_ids = np.zeros(0, np.int64)  # of the last batch
        self.random = np.random.default_rng(seed)

    def __len__(self) -> int:
        """Number of sequences stored."""
        return self.tree.count

    @property
    def capacity(self) -> int:
        """Maximum number of sequences."""
        return self.size.capacity

    @property
    def sequence_bytes(self) -> int:
        """Bytes of one stored sequence, with all that the policy adds to it; 0 before the first one."""
        return sum(x[0].nbytes for x in self.arrays.values())

    @property
    def sample_age(self) -> float:
        """Mean age of the sequences of the last batch, in env steps added since."""
        if not len(self.sampled_ids):
            return 0.0
        return float((self.steps - self.steps_before[self.sampled_ids % self.capacity]).mean())

    def add(self, sequences: Trajectory, /) -> None:
        """Copy the sequences, with their initial priorities or, without them, the largest one so far."""
        if len(sequences.final_index) or sequences.length != self.experience.length:
            raise ValueError(
                f"a sequence has {sequences.length} steps and {len(sequences.final_index)} resets within; "
                f"this replay takes sequences of {self.experience.length} steps of one episode"
            )
        new = self._new_steps(sequences)
        if self.reward_scale is not None:
            self.reward_scale.add_returns(sequences.extras["episode_return"][new].cpu())
        count = len(sequences)
        if sequences.priority is None:
            priority = np.full(count, self.max_priority)
        else:
            priority = sequences.priority.double().cpu().numpy()
            check_priorities(priority)
            self.max_priority = max(self.max_priority, float(priority.max(initial=0.0)))
        fields = _fields(sequences, self.stacks)
        if not self.arrays:
            self._allocate(fields)
        for first in range(0, count, self.capacity):  # more sequences than fit: the last ones remain
            part = slice(first, min(first + self.capacity, count))
            slots = (self.added + np.arange(part.stop - first)) % self.capacity
            target = torch.from_numpy(slots).to(self.device)
            for name, x in fields.items():
                self.arrays[name].index_copy_(0, target, x[part].to(self.device))
            self.tree.set(slots, self._leaf_value(priority[part]))
            self.steps_before[slots] = self.steps
            self.added += len(slots)
        self.steps += int(new.sum())

    def _allocator(self, needed: int) -> Allocate:
        """Return a function that allocates arrays; SetupProblem if `needed` bytes are not free."""
        description = f"A replay of {self.capacity:,} sequences of {self.spec.id}"
        return allocator(needed, self.device, self.size.directory, description)

    def _allocate(self, fields: dict[str, Tensor]) -> None:
        allocate = self._allocator(self.capacity * sum(x[0].nbytes for x in fields.values()))
        self.arrays = {name: allocate((self.capacity, *x.shape[1:]), x.dtype) for name, x in fields.items()}

    def _new_steps(self, sequences: Trajectory) -> Tensor:
        """Return bool [T, B]: steps that are in no earlier sequence."""
        first = sequences.started[self.experience.burn_in]  # else the episode has an earlier sequence
        new = sequences.valid.clone()
        new[: self.experience.overlap] &= first
        return new

    def _leaf_value(self, priority: Array) -> Array:
        value: Array = (priority + self.priority.eps) ** self.priority.alpha
        return value

    def end_streams(self, streams: Tensor | None = None) -> None:
        """Do nothing: a sequence is complete in itself."""

    @property
    def beta(self) -> float:
        """Exponent of the importance weights of the next batch."""
        return self.priority.beta_after(self.batches)

    def sample(self, rows: int) -> Trajectory | None:
        """Return `rows` sequences with their importance weights and ids; None during the warm-up."""
        batch = self.sample_unscaled(rows)
        if batch is None or self.reward_scale is None:
            return batch
        return dataclasses.replace(batch, reward=batch.reward / self.reward_scale.value.to(self.device))

    def sample_unscaled(self, rows: int) -> Trajectory | None:
        """Return sequences as `sample`, with the rewards of the env."""
        if len(self) < max(1, min(self.size.warmup, self.capacity)):
            return None
        leaf = self.tree.find((np.arange(rows) + self.random.random(rows)) * (self.tree.total / rows))
        value = self.tree.get(leaf)
        # (N p / total)^-beta divided by its maximum: N and the total cancel.
        minimum = value.min() if self.priority.normalize_weights_by == "batch" else self.tree.minimum
        self.min_priority = float(minimum)
        weight = torch.from_numpy(((value / minimum) ** -self.beta).astype(np.float32))
        self.batches += 1
        self.sampled_ids = self.added - 1 - (self.added - 1 - leaf) % self.capacity
        slots = torch.from_numpy(leaf).to(self.device)
        fields = {name: x.index_select(0, slots) for name, x in self.arrays.items()}
        fields |= {name: frame_stacks(fields[name], stack) for name, stack in self.stacks.items()}
        return _sequences(fields, weight.to(self.device), torch.from_numpy(self.sampled_ids))

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Set the priorities of the sequences with these ids; those overwritten since are skipped."""
        ids, value = index.cpu().numpy(), priority.double().cpu().numpy()
        check_priorities(value, ids)
        # Sequences not added yet were sampled before this replay was restored from a checkpoint.
        present = (ids >= self.added - self.capacity) & (ids < self.added)
        self.tree.set(ids[present] % self.capacity, self._leaf_value(value[present]))
        self.max_priority = max(self.max_priority, float(value.max(initial=0.0)))

    def state_dict(self) -> dict[str, Any]:
        """Return the sequences, oldest first, their leaves and the state of the random generator."""
        slots = self._newest(len(self))
        at = torch.from_numpy(slots).to(self.device)
        random = self.random.bit_generator.state
        return {
            "arrays": {name: x.index_select(0, at) for name, x in self.arrays.items()},
            "leaves": torch.from_numpy(self.tree.get(slots)),
            "added": self.added,
            "steps": self.steps,
            "steps_before": torch.from_numpy(self.steps_before[slots]),
            "max_priority": self.max_priority,
            "batches": self.batches,
            "random": {name: str(value) for name, value in random["state"].items()},
            "reward_scale": None if self.reward_scale is None else self.reward_scale.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Restore the newest sequences that fit; return the number of sequences dropped."""
        saved, leaves = state["arrays"], state["leaves"].numpy()
        self.max_priority, self.batches = float(state["max_priority"]), int(state["batches"])
        random = {"state": {name: int(value) for name, value in state["random"].items()}}
        self.random.bit_generator.state = dict(self.random.bit_generator.state) | random
        if self.reward_scale is not None and state["reward_scale"] is not None:
            self.reward_scale.load_state_dict(state["reward_scale"])
        self.added, self.steps = int(state["added"]), int(state["steps"])
        fits = not saved or saved["reward"].shape[1] == self.experience.length
        kept = min(len(leaves), self.capacity) if fits else 0
        self.arrays, self.tree = {}, SumTree(self.capacity, self.priority.normalize_weights_by == "buffer")
        if kept:
            newest = {name: x[-kept:] for name, x in saved.items()}
            self._allocate(newest)
            slots = self._newest(kept)
            at = torch.from_numpy(slots).to(self.device)
            for name, x in newest.items():
                self.arrays[name].index_copy_(0, at, x.to(self.device))
            self.tree.set(slots, leaves[-kept:])
            self.steps_before[slots] = state["steps_before"].numpy()[-kept:]
        else:
            self.added = 0
        return len(leaves) - kept

    def _newest(self, count: int) -> Array:
        """Return the slots of the `count` newest sequences, oldest first."""
        slots: Array = np.arange(self.added - count, self.added) % self.capacity
        return slots


def _fields(sequences: Trajectory, stacks: dict[str, int]) -> dict[str, Tensor]:
    """Return all tensors of the sequences by name, with the streams as the leading axis.

    Observations in `stacks` become single frames.
    """
    parts = {f"obs.{name}": x for name, x in sequences.obs.items()}
    parts |= {name: getattr(sequences, name) for name in ROWS}
    parts |= {f"extras.{name}": x for name, x in sequences.extras.items()}
    fields = {name: x.transpose(0, 1) for name, x in parts.items()}
    first = sequences.valid.int().argmax(0)
    fields |= {name: single_frames(parts[name], stack, first) for name, stack in stacks.items()}
    return fields | _flatten_state("state", sequences.state)


def _flatten_state(prefix: str, state: State) -> dict[str, Tensor]:
    """Return the tensors of a nested dict by their path, such as state.core.h."""
    flat: dict[str, Tensor] = {}
    for name, value in (state or {}).items():
        path = f"{prefix}.{name}"
        flat |= _flatten_state(path, value) if isinstance(value, dict) else {path: value}
    return flat


def _sequences(fields: dict[str, Tensor], weight: Tensor, index: Tensor) -> Trajectory:
    """Return the inverse of `_fields`, after frame stacks are made, with weights and ids."""
    groups: dict[str, Any] = {"obs": {}, "extras": {}}
    for path, x in fields.items():
        group, _, name = path.partition(".")
        if group == "state":
            *parents, leaf = path.split(".")
            functools.reduce(lambda at, key: at.setdefault(key, {}), parents, groups)[leaf] = x
        elif name:
            groups[group][name] = x.transpose(0, 1)
        else:
            groups[path] = x.transpose(0, 1)
    return Trajectory(
        **groups,
        final_obs={name: x[0, :0] for name, x in groups["obs"].items()},
        final_index=torch.empty(0, dtype=torch.int64, device=weight.device),
        weight=weight,
        index=index,
    )
