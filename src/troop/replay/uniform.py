"""Uniform replay over streams, each stream getting its share of every batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from troop.core.batch import NStep, Rollout, Transition
from troop.core.env import EnvSpec
from troop.replay.storage import kernels, kernels_torch
from troop.replay.storage.n_step import NStepSampler
from troop.replay.storage.ring import RingStorage


@dataclass(frozen=True)
class ReplaySize:
    """How much is kept, where, and how much must be there before the first batch."""

    length: int  # rows per stream
    warmup: int  # rows per stream before sampling starts, counted over all of them
    folder: str = ""  # where to keep it if not in memory


class UniformReplay:
    """A Sink and Source: keeps the newest rows of each stream, draws n-step Transitions uniformly."""

    def __init__(
        self, spec: EnvSpec, experience: NStep, size: ReplaySize, seed: int, device: str = "cpu"
    ) -> None:
        self.experience, self.size = experience, size
        self.streams = RingStorage(spec, spec.envs, size.length, device, size.folder)
        self.windows = NStepSampler(self.streams, experience)
        self.generator = torch.Generator(device).manual_seed(seed)

    def __len__(self) -> int:
        """Rows held."""
        return len(self.streams)

    @property
    def capacity(self) -> int:
        """Rows it can hold."""
        return self.streams.streams * self.streams.length

    @property
    def sample_age(self) -> float:
        """Rows that came since those of a batch did, on average: half of what is held."""
        return len(self) / 2

    def add(self, piece: Rollout) -> None:
        """Append to the streams; the oldest rows give way."""
        self.streams.add(piece)
        if self.windows.scale is not None:
            self.windows.scale.add(piece)

    def end_streams(self, streams: Tensor | None = None) -> None:
        """The envs of these streams, or all, were reset by force: no window may reach across."""
        self.streams.end_streams(streams)
        if self.windows.scale is not None:
            self.windows.scale.end_streams(streams)

    def ready(self) -> bool:
        """Whether the warm-up is over and there is a complete window."""
        heads = self.streams.heads
        held = heads.sum() >= self.size.warmup * len(heads)
        return bool(held and heads.max() > self.experience.n)

    def sample(self, rows: int) -> Transition | None:
        """Exactly `rows` n-step transitions; None while warming up."""
        if not self.ready():
            return None
        place = self._draw(rows)
        return None if place is None else self.windows.transitions(place)

    def _draw(self, rows: int) -> Tensor | None:
        """Starts of windows, or None if all rows are closing ones (seen on a CPU only: a GPU would wait)."""
        streams, device = self.streams, self.streams.device
        random = torch.randint(2**62, (rows + 1,), generator=self.generator, device=device)
        how = (streams.length, self.experience.n, streams.margin)
        if device.type != "cpu":
            heads = torch.from_numpy(streams.heads).to(device)
            return kernels_torch.draw(random[:-1], random[-1] / 2**62, heads, *how, streams.flags)
        place = torch.empty(rows, dtype=torch.int64)
        share = int(random[-1]) / 2**62
        missing = kernels.draw(
            random.numpy()[:-1], share, streams.heads, *how, streams.flags.numpy(), place.numpy()
        )
        if missing:  # those of streams of closing rows only repeat others
            sound = place[place >= 0]
            if not len(sound):
                return None
            place[place < 0] = sound[torch.arange(missing) % len(sound)]
        return place

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """All rows matter the same."""

    def state_dict(self) -> dict[str, Any]:
        """Rows, heads, reward scale and the random state."""
        state: dict[str, Any] = {"streams": self.streams.state_dict(), "rng": self.generator.get_state()}
        return state | ({"scale": self.windows.scale.state_dict()} if self.windows.scale is not None else {})

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Take back what fits; returns how many rows had to be dropped."""
        dropped = self.streams.load_state_dict(state["streams"])
        if state["rng"].numel() == self.generator.get_state().numel():  # else it is of another kind of device
            self.generator.set_state(state["rng"].cpu())
        if self.windows.scale is not None and "scale" in state:
            self.windows.scale.load_state_dict(state["scale"])
        return dropped
