"""Uniform replay over streams, stratified by stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from troop.core.batch import NStep, Rows, Transition
from troop.core.env import EnvSpec
from troop.replay import windows
from troop.replay.reward_scale import RewardScale
from troop.replay.streams import ACTION, CLOSING, Streams, named


@dataclass(frozen=True)
class Size:
    """How much is kept and how much must be there before the first batch."""

    length: int  # rows per stream
    warmup: int  # rows per stream before sampling starts


class Replay:
    """A Sink and Source: keeps the newest rows of each stream, draws n-step Transitions uniformly."""

    def __init__(self, spec: EnvSpec, experience: NStep, size: Size, seed: int, device: str = "cpu") -> None:
        self.experience, self.size = experience, size
        self.streams = Streams(spec, spec.envs, size.length, device, experience.n)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.scale = (
            RewardScale(experience, spec.envs, device) if experience.scale_rewards_to is not None else None
        )
        self._ahead = torch.arange(experience.n, device=device)
        self._strata: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        """Rows held."""
        return len(self.streams)

    @property
    def capacity(self) -> int:
        """Rows it can hold."""
        return self.streams.streams * self.streams.length

    def add(self, piece: Rows) -> None:
        """Append to the streams; the oldest rows give way."""
        self.streams.add(piece)
        if self.scale is not None:
            self.scale.add(piece)

    def cut(self) -> None:
        """The envs were reset by force: no window may reach across."""
        self.streams.cut()
        if self.scale is not None:
            self.scale.cut()

    def sample(self, rows: int) -> Transition | None:
        """Exactly `rows` n-step transitions, equally many from each stream; None while warming up."""
        heads, length, n = self.streams.heads, self.size.length, self.experience.n
        oldest = np.maximum(heads - length, 0)
        free = heads - n - oldest  # complete windows: the successor of the last row must be written
        if heads.min() < self.size.warmup or free.min() < 1:
            return None
        stream, base = self._streams_of(rows)
        drawn = self._draw(stream, base, oldest, free)
        if drawn is None:
            return None
        total, discount, successor = self._windows(*drawn)
        place = drawn[0]
        found = self.streams.fields(torch.cat((place, successor)))
        before = {name: x[:rows] for name, x in found.items()}
        after = {name: x[rows:] for name, x in found.items()}
        if self.scale is not None:
            total = total / self.scale.value
        return Transition(named(before), before[ACTION], total, discount, named(after))

    def _windows(self, place: Tensor, position: Tensor, base: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reward, discount and successor of the windows that start at `place`."""
        if not self.streams.reach:
            return self._windows_seen(position, base)
        # Nearly all windows are whole: only those that start NEAR an end are looked at row by row.
        rows, n, gamma = len(place), self.experience.n, self.experience.gamma
        last = self.streams.reward.shape[0] - 1
        window = (place.unsqueeze(1) + self._ahead).clamp_max_(last)
        reward = self.streams.reward.index_select(0, window.view(-1)).view(rows, n)
        total = torch.mv(reward, windows.powers(gamma, n, reward)[:n])
        discount, successor = torch.full((rows,), gamma**n, dtype=reward.dtype), place + n
        near = self.streams.flags.index_select(0, place).nonzero().squeeze(1)
        if len(near):
            seen = self._windows_seen(position[near], base[near])
            for whole, part in zip((total, discount, successor), seen, strict=True):
                whole.index_copy_(0, near, part)
        return total, discount, successor

    def _windows_seen(self, position: Tensor, base: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same, with a look at the flags of every row."""
        length = self.size.length
        window = (position.unsqueeze(1) + self._ahead).remainder_(length).add_(base.unsqueeze(1))
        total, discount, steps = windows.cut(
            self.streams.reward[window],
            self.streams.flags[window],
            self.experience.gamma,
            self.experience.bootstrap_at_limits,
        )
        return total, discount, (position + steps).remainder_(length).add_(base)

    def _streams_of(self, rows: int) -> tuple[Tensor, Tensor]:
        """Which stream each row comes from, and where it begins; the remainder falls on random ones."""
        count = self.streams.streams
        if self._strata is None or self._strata[0] != rows:
            even = torch.arange(count, device=self.streams.device).repeat(rows // count)
            self._strata = (rows, even)
        stream = self._strata[1]
        if rest := rows % count:
            chosen = torch.randperm(count, generator=self.generator, device=self.streams.device)[:rest]
            stream = torch.cat((stream, chosen))
        return stream, stream * self.size.length

    def _draw(
        self, stream: Tensor, base: Tensor, oldest: np.ndarray[Any, Any], free: np.ndarray[Any, Any]
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """A start for each row that is a transition: (place in the arrays, position in its ring, its begin).

        None if none was found (nearly all rows are closing ones); seen on CPU only, as a GPU would wait.
        """
        length, device = self.size.length, self.streams.device
        if oldest.min() == oldest.max() and free.min() == free.max():
            first: Tensor | int = int(oldest[0])
            span: Tensor | int = int(free[0])
        else:
            first = torch.from_numpy(oldest).to(device)[stream]
            span = torch.from_numpy(free).to(device)[stream]

        def alike(count: int) -> Tensor:
            spot = torch.randint(int(span), (count,), generator=self.generator, device=device)
            return spot.add_(int(first) % length).remainder_(length)

        def draw() -> Tensor:
            if isinstance(span, int):  # all streams alike
                return alike(len(stream))
            spot = torch.rand(len(stream), generator=self.generator, device=device).mul_(span).long()
            return spot.clamp_max_(span - 1).add_(first).remainder_(length)

        position = draw()
        place = position + base
        for _ in range(3):  # a closing row is no transition: draw again
            closing = (self.streams.flags.index_select(0, place) & CLOSING).bool()
            if device.type == "cpu" and not closing.any():
                return place, position, base
            if device.type == "cpu" and isinstance(span, int):  # only those few
                again = closing.nonzero().squeeze(1)
                position[again] = alike(len(again))
            else:
                position = torch.where(closing, draw(), position)
            place = position + base
        # Thrice in a row is rare: step back to the transition that the closing row closes
        # (or on, from the oldest row of a full ring, whose predecessor is gone).
        closing = (self.streams.flags[place] & CLOSING).bool()
        start = torch.as_tensor(first, device=device) % length
        step = torch.where(position == start, 1, -1)
        position = torch.where(closing, (position + step).remainder(length), position)
        # That may be a closing row too (a reset right after an end), or past the last complete window:
        # such a row repeats the first sound one of the batch.
        place = position + base
        inside = (position - start).remainder(length) < span
        sound = inside & ((self.streams.flags[place] & CLOSING) == 0)
        if device.type == "cpu" and not sound.any():
            return None
        chosen = torch.where(sound, torch.arange(len(sound), device=device), sound.to(torch.uint8).argmax())
        return place[chosen], position[chosen], base[chosen]

    def reprioritize(self, index: Tensor, priority: Tensor) -> None:
        """All rows matter the same."""

    def state_dict(self) -> dict[str, Any]:
        """Rows, heads, reward scale and the random state."""
        state: dict[str, Any] = {"streams": self.streams.state_dict(), "rng": self.generator.get_state()}
        return state | ({"scale": self.scale.state_dict()} if self.scale is not None else {})

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Take back what fits; returns how many rows had to be dropped."""
        dropped = self.streams.load_state_dict(state["streams"])
        if state["rng"].numel() == self.generator.get_state().numel():  # else it is of another kind of device
            self.generator.set_state(state["rng"].cpu())
        if self.scale is not None and "scale" in state:
            self.scale.load_state_dict(state["scale"])
        return dropped
