"""UniformReplay: the newest rows of each env stream, sampled uniformly."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troop.core.batch import NStep, Rollout, Transition
from troop.core.env import EnvSpec
from troop.core.peers import NO_PEERS, Peers
from troop.replay.reward_scale import RewardScale
from troop.replay.storage import kernels, kernels_torch
from troop.replay.storage.n_step import NStepSampler
from troop.replay.storage.ring import RingStorage


@dataclass(frozen=True)
class ReplaySize:
    """Size of a replay, the rows it needs before the first batch, and where it is stored."""

    length: int  # rows per stream
    warmup: int  # mean number of rows per stream before sampling starts
    directory: str = ""  # store the rows in files here instead of in memory


class UniformReplay:
    """A ReplayBuffer that samples n-step transitions uniformly; each stream gets its share of every batch."""

    def __init__(
        self,
        spec: EnvSpec,
        experience: NStep,
        size: ReplaySize,
        seed: int,
        device: str = "cpu",
        peers: Peers = NO_PEERS,
    ) -> None:
        self.experience, self.size = experience, size
        self.storage = RingStorage(spec, spec.envs, size.length, device, size.directory)
        self.sampler = NStepSampler(self.storage, experience)
        self.reward_scale: RewardScale | None = None
        if experience.scale_rewards_to is not None:
            self.reward_scale = RewardScale(experience, spec.envs, device, peers)
        self.generator = torch.Generator(device).manual_seed(seed)

    def __len__(self) -> int:
        """Number of rows stored."""
        return len(self.storage)

    @property
    def capacity(self) -> int:
        """Maximum number of rows."""
        return self.storage.num_streams * self.storage.length

    @property
    def sample_age(self) -> float:
        """Mean age of sampled rows, in rows added since: half of the rows stored."""
        return len(self) / 2

    def add(self, rollout: Rollout) -> None:
        """Append the rows to their streams; they overwrite the oldest ones of a full stream."""
        if self.reward_scale is not None:
            self.reward_scale.add(rollout)
        self._append(self.storage.close_incomplete_stacks(rollout))

    def _append(self, rollout: Rollout) -> None:
        self.storage.add(rollout)

    def end_streams(self, streams: Tensor | None = None) -> None:
        """End the episodes of these streams (None: all) after a forced reset: no n-step window crosses it."""
        self.storage.end_streams(streams)
        if self.reward_scale is not None:
            self.reward_scale.end_streams(streams)

    def ready(self) -> bool:
        """Return whether the warm-up is over and there is a complete n-step window."""
        written = self.storage.rows_written
        warm = written.sum() >= self.size.warmup * len(written)
        return bool(warm and written.max() > self.experience.n)

    def sample(self, rows: int) -> Transition | None:
        """Return exactly `rows` n-step transitions with scaled rewards; None during the warm-up."""
        batch = self.sample_unscaled(rows)
        if batch is None or self.reward_scale is None:
            return batch
        return dataclasses.replace(batch, reward=batch.reward / self.reward_scale.value)

    def sample_unscaled(self, rows: int) -> Transition | None:
        """Return exactly `rows` n-step transitions with the rewards of the env; None during the warm-up."""
        if not self.ready():
            return None
        slots = self._draw(rows)
        return None if slots is None else self.sampler.transitions(slots)

    def _draw(self, rows: int) -> Tensor | None:
        """Draw the first slots of `rows` windows; None if all rows are closing rows.

        That is checked only on the CPU: on a GPU the check would wait for the device.
        """
        storage, device = self.storage, self.storage.device
        tries = 1 if device.type == "cpu" else kernels_torch.MAX_TRIES  # the CPU derives the other numbers
        random = torch.randint(2**62, (tries * rows + 1,), generator=self.generator, device=device)
        window = (storage.length, self.experience.n, storage.stack_margin)
        if device.type != "cpu":
            written = torch.from_numpy(storage.rows_written).to(device)
            numbers, shift = random[:-1].view(tries, rows), random[-1] / 2**62
            return kernels_torch.draw_slots(numbers, shift, written, *window, storage.flags)
        slots = torch.empty(rows, dtype=torch.int64)
        missing = kernels.draw_slots(
            random.numpy()[:-1],
            int(random[-1]) / 2**62,
            storage.rows_written,
            *window,
            storage.flags.numpy(),
            slots.numpy(),
        )
        if missing:  # streams of closing rows only: repeat rows of the others
            valid = slots[slots >= 0]
            if not len(valid):
                return None
            slots[slots < 0] = valid[torch.arange(missing) % len(valid)]
        return slots

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """Do nothing: all rows have the same priority."""

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, the reward scale and the state of the random generator."""
        state: dict[str, Any] = {"storage": self.storage.state_dict(), "rng": self.generator.get_state()}
        if self.reward_scale is not None:
            state["reward_scale"] = self.reward_scale.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Restore the rows that fit; return the number of rows dropped."""
        dropped = self.storage.load_state_dict(state["storage"])
        if state["rng"].numel() == self.generator.get_state().numel():  # else saved on another device type
            self.generator.set_state(state["rng"].cpu())
        if self.reward_scale is not None and "reward_scale" in state:
            self.reward_scale.load_state_dict(state["reward_scale"])
        return dropped
