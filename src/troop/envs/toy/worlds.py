"""The worlds themselves; `Toy` (toy.py) says which."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from troop.core.env import OBS, PRIVILEGED, Obs, Step
from troop.core.errors import BadInput

if TYPE_CHECKING:
    from troop.envs.toy.config import Toy


class Clock:
    """Reward 1 a step, whatever is done; only the clock ends it, after `limit` steps.

    The value of every state is 1 / (1 - gamma), which only an agent that bootstraps at truncation finds.
    Other toys override `observe`, `begin` and `advance`.
    """

    def __init__(self, cfg: Toy, seed: int, device: str) -> None:
        self.cfg = cfg
        self.spec = cfg.spec
        self.device = torch.device(device)
        self._sent: Tensor | None = None
        self._seed(seed)

    def _seed(self, seed: int) -> None:
        # One stream per row, so that restarting a row leaves the others alone.
        self.random = [torch.Generator().manual_seed(seed * 1_000_003 + i) for i in range(self.cfg.envs)]
        self.elapsed = torch.zeros(self.cfg.envs, dtype=torch.int64)
        self.place = torch.zeros(self.cfg.envs, 2)
        self.ended = torch.zeros(self.cfg.envs, dtype=torch.bool)
        self.steps_since_reset = 0

    @staticmethod
    def width(cfg: Toy) -> int:
        """Columns of `obs`."""
        return 1

    @staticmethod
    def steps(cfg: Toy) -> int:
        """Steps after which an episode is truncated."""
        return cfg.limit

    def begin(self, rows: Tensor) -> None:
        """Put these rows (int64 [K]) at a start."""

    def observe(self) -> Tensor:
        """What a policy sees, [N, width]."""
        return (self.elapsed.float() / self.cfg.limit).unsqueeze(1)

    def advance(self, push: Tensor) -> tuple[Tensor, Tensor]:
        """Move every row by its push in [-1, 1]; (reward [N], terminated [N])."""
        return torch.ones(self.cfg.envs), torch.zeros(self.cfg.envs, dtype=torch.bool)

    def reset(self, seed: int) -> Step:
        """Start every env anew; all rows `valid=False`."""
        self._seed(seed)
        rows = torch.arange(self.cfg.envs)
        self.begin(rows)
        never = torch.zeros(self.cfg.envs, dtype=torch.bool)
        obs = self._obs()
        return self._step(obs, obs, torch.zeros(self.cfg.envs), never, never, never)

    def send(self, action: Tensor) -> None:
        """Begin a step."""
        self._sent = action.detach().cpu()

    def recv(self) -> Step:
        """The answer to the last `send`."""
        if self._sent is None:
            raise BadInput(f"recv() of env '{self.spec.id}' without a send() before it.")
        push = (self._sent * 2 - 1).float() if self.cfg.discrete else self._sent[:, 0].clamp(-1, 1).float()
        self._sent = None
        self.steps_since_reset += 1
        kept = (self.elapsed.clone(), self.place.clone())
        reward, terminated = self.advance(push)
        self.elapsed = self.elapsed + 1
        valid = ~self.ended
        truncated = (self.elapsed >= self.steps(self.cfg)) & ~terminated
        terminated, truncated, reward = terminated & valid, truncated & valid, reward * valid
        if bool(self.ended.any()):  # next_step: these rows only open their next episode
            self.elapsed[self.ended], self.place[self.ended] = kept[0][self.ended], kept[1][self.ended]
            self._restart(self.ended.nonzero().squeeze(1))
        done = terminated | truncated
        next_obs = obs = self._obs()
        if self.cfg.autoreset == "next_step":
            self.ended = done
        elif bool(done.any()):
            self._restart(done.nonzero().squeeze(1))
            obs = self._obs()
        return self._step(obs, next_obs, reward, terminated, truncated, valid)

    def step(self, action: Tensor) -> Step:
        """`send` and `recv` in one."""
        self.send(action)
        return self.recv()

    def restart(self, rows: Tensor) -> Obs:
        """Reset only these rows; their first observations."""
        rows = rows.cpu()
        self._restart(rows)
        return {name: value[rows.to(self.device)] for name, value in self._obs().items()}

    def close(self) -> None:
        """Nothing to give back."""

    def _restart(self, rows: Tensor) -> None:
        self.ended = self.ended.clone()
        self.ended[rows] = False
        self.elapsed[rows] = 0
        self.begin(rows)

    def _obs(self) -> Obs:
        obs = {OBS: self.observe().to(self.device)}
        if self.cfg.privileged:
            obs[PRIVILEGED] = (self.elapsed.float() / self.cfg.limit).unsqueeze(1).to(self.device)
        return obs

    def _step(
        self, obs: Obs, next_obs: Obs, reward: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor
    ) -> Step:
        reward, terminated = reward.to(self.device), terminated.to(self.device)
        return Step(obs, next_obs, reward, terminated, truncated.to(self.device), valid.to(self.device))

    def draw(self, rows: Tensor, low: float, high: float) -> Tensor:
        """A uniform number for each of these rows, from the row's own stream."""
        drawn = [torch.rand((), generator=self.random[int(i)]) for i in rows]
        return torch.stack(drawn) * (high - low) + low


class Countdown(Clock):
    """Reward 1 a step until a count, drawn from 1..limit, is at zero: only ever terminates.

    `obs` is count / limit; the value at count k is (1 - gamma^k) / (1 - gamma).
    """

    @staticmethod
    def steps(cfg: Toy) -> int:
        """Never truncated: the count is always over first."""
        return cfg.limit + 1

    def begin(self, rows: Tensor) -> None:
        """Draw the count."""
        self.place[rows, 0] = self.draw(rows, 1, self.cfg.limit + 1).floor().clamp(max=self.cfg.limit)

    def observe(self) -> Tensor:
        """The count as a share of `limit`."""
        return self.place[:, :1] / self.cfg.limit

    def advance(self, push: Tensor) -> tuple[Tensor, Tensor]:
        """One less."""
        self.place[:, 0] -= 1
        return torch.ones(self.cfg.envs), self.place[:, 0] <= 0


class Chain(Clock):
    """`limit` places in a row; pushing right (> 0) moves right, and reaching the last pays 1 and terminates.

    `obs` is one-hot; the best value at place p is gamma^(limit - 2 - p). Truncates after 10 x limit steps.
    """

    @staticmethod
    def width(cfg: Toy) -> int:
        """One column a place."""
        return cfg.limit

    @staticmethod
    def steps(cfg: Toy) -> int:
        """Room for a drunkard's walk."""
        return 10 * cfg.limit

    def begin(self, rows: Tensor) -> None:
        """At the left end."""
        self.place[rows, 0] = 0

    def observe(self) -> Tensor:
        """The place, one-hot."""
        return torch.nn.functional.one_hot(self.place[:, 0].long(), self.cfg.limit).float()

    def advance(self, push: Tensor) -> tuple[Tensor, Tensor]:
        """One place to the right or to the left."""
        last = self.cfg.limit - 1
        self.place[:, 0] = (self.place[:, 0] + torch.where(push > 0, 1.0, -1.0)).clamp(0, last)
        arrived = self.place[:, 0] == last
        return arrived.float(), arrived


class PointMass(Clock):
    """A point in [-1, 1] moves by a tenth of the push; reward 1 - (x - goal)^2, so best play earns near 1."""

    @staticmethod
    def width(cfg: Toy) -> int:
        """Place and goal."""
        return 2

    def begin(self, rows: Tensor) -> None:
        """A place and a goal, both anywhere."""
        self.place[rows, 0] = self.draw(rows, -1, 1)
        self.place[rows, 1] = self.draw(rows, -1, 1)

    def observe(self) -> Tensor:
        """Place and goal."""
        return self.place.clone()

    def advance(self, push: Tensor) -> tuple[Tensor, Tensor]:
        """Move, then pay for the distance."""
        self.place[:, 0] = (self.place[:, 0] + 0.1 * push).clamp(-1, 1)
        distance = self.place[:, 0] - self.place[:, 1]
        return 1 - distance.square(), torch.zeros(self.cfg.envs, dtype=torch.bool)


class Faulty(Clock):
    """A Clock that breaks as told by `Toy.faults`; step 0 is the reset. Each fault happens once per reset."""

    def _step(
        self, obs: Obs, next_obs: Obs, reward: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor
    ) -> Step:
        for when, row, what in self.cfg.faults:
            if when != self.steps_since_reset:
                continue
            worst = float("nan") if what.startswith("nan") else float("inf")
            if what.endswith("obs"):
                next_obs[OBS][row] = worst
                obs[OBS][row] = worst
            else:
                reward[row] = worst
        return super()._step(obs, next_obs, reward, terminated, truncated, valid)


class Sleepy(Clock):
    """A Clock whose vector step takes `seconds` from `send` on: a simulator on another machine."""

    _due = 0.0

    def send(self, action: Tensor) -> None:
        """Begin a step; the simulator works from now on."""
        self._due = time.monotonic() + self.cfg.seconds
        super().send(action)

    def recv(self) -> Step:
        """Wait for what is left of the step."""
        time.sleep(max(0.0, self._due - time.monotonic()))
        return super().recv()
