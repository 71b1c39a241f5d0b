"""The toy envs; `Toy` (config.py) selects one by name."""

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
    """Reward 1 per step for every action; an episode is truncated after `limit` steps and never terminates.

    Every state has the value 1 / (1 - gamma), which an agent learns only if it bootstraps at truncations.
    Other toy envs override `obs_width`, `time_limit`, `init_rows`, `observe` and `advance`.
    """

    def __init__(self, cfg: Toy, seed: int, device: str) -> None:
        self.cfg = cfg
        self.spec = cfg.spec
        self.device = torch.device(device)
        self._action: Tensor | None = None
        self._seed(seed)

    def _seed(self, seed: int) -> None:
        # One generator per row: restarting a row does not change the random numbers of the others.
        self.generators = [torch.Generator().manual_seed(seed * 1_000_003 + i) for i in range(self.cfg.envs)]
        self.elapsed = torch.zeros(self.cfg.envs, dtype=torch.int64)
        self.state = torch.zeros(self.cfg.envs, 2)
        self.ended = torch.zeros(self.cfg.envs, dtype=torch.bool)  # next_step: rows that the next step resets
        self.steps_since_reset = 0

    @staticmethod
    def obs_width(cfg: Toy) -> int:
        """Return the number of columns of `obs`."""
        return 1

    @staticmethod
    def time_limit(cfg: Toy) -> int:
        """Return the number of steps after which an episode is truncated."""
        return cfg.limit

    def init_rows(self, rows: Tensor) -> None:
        """Set the initial state of `rows` (int64 [K])."""

    def observe(self) -> Tensor:
        """Return `obs`, [N, obs_width]: here elapsed steps / `limit`."""
        return (self.elapsed.float() / self.cfg.limit).unsqueeze(1)

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Update the state of every row with `action` [N] in [-1, 1]; return (reward [N], terminated [N])."""
        return torch.ones(self.cfg.envs), torch.zeros(self.cfg.envs, dtype=torch.bool)

    def reset(self, seed: int) -> Step:
        """Start a new episode in every env; all rows have `valid` False."""
        self._seed(seed)
        rows = torch.arange(self.cfg.envs)
        self.init_rows(rows)
        false = torch.zeros(self.cfg.envs, dtype=torch.bool)
        obs = self._obs()
        return self._make_step(obs, obs, torch.zeros(self.cfg.envs), false, false, false)

    def send(self, action: Tensor) -> None:
        """Start a step; `recv` computes it."""
        self._action = action.detach().cpu()

    def recv(self) -> Step:
        """Return the result of the last `send`. Raises BadInput if there was none."""
        if self._action is None:
            raise BadInput(f"recv() of env '{self.spec.id}' was called without a send() before it.")
        if self.cfg.discrete:
            action = (self._action * 2 - 1).float()
        else:
            action = self._action[:, 0].clamp(-1, 1).float()
        self._action = None
        self.steps_since_reset += 1
        old_elapsed, old_state = self.elapsed.clone(), self.state.clone()
        reward, terminated = self.advance(action)
        self.elapsed = self.elapsed + 1
        valid = ~self.ended
        truncated = (self.elapsed >= self.time_limit(self.cfg)) & ~terminated
        terminated, truncated, reward = terminated & valid, truncated & valid, reward * valid
        if bool(self.ended.any()):  # next_step: the action is ignored in these rows, which are reset
            self.elapsed[self.ended], self.state[self.ended] = old_elapsed[self.ended], old_state[self.ended]
            self._restart(self.ended.nonzero().squeeze(1))
        done = terminated | truncated
        next_obs = obs = self._obs()
        if self.cfg.autoreset == "next_step":
            self.ended = done
        elif bool(done.any()):
            self._restart(done.nonzero().squeeze(1))
            obs = self._obs()
        return self._make_step(obs, next_obs, reward, terminated, truncated, valid)

    def step(self, action: Tensor) -> Step:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: Tensor) -> Obs:
        """Restart the envs `rows` and return their first observations."""
        rows = rows.cpu()
        self._restart(rows)
        return {name: value[rows.to(self.device)] for name, value in self._obs().items()}

    def close(self) -> None:
        """Do nothing: a toy env holds no resources."""

    def _restart(self, rows: Tensor) -> None:
        self.ended = self.ended.clone()
        self.ended[rows] = False
        self.elapsed[rows] = 0
        self.init_rows(rows)

    def _obs(self) -> Obs:
        obs = {OBS: self.observe().to(self.device)}
        if self.cfg.privileged:
            obs[PRIVILEGED] = (self.elapsed.float() / self.cfg.limit).unsqueeze(1).to(self.device)
        return obs

    def _make_step(
        self, obs: Obs, next_obs: Obs, reward: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor
    ) -> Step:
        reward, terminated = reward.to(self.device), terminated.to(self.device)
        return Step(obs, next_obs, reward, terminated, truncated.to(self.device), valid.to(self.device))

    def sample_uniform(self, rows: Tensor, low: float, high: float) -> Tensor:
        """Return a uniform sample from [low, high) for each of `rows`, from the generator of the row."""
        samples = [torch.rand((), generator=self.generators[int(i)]) for i in rows]
        return torch.stack(samples) * (high - low) + low


class Countdown(Clock):
    """Reward 1 per step until a counter, initially uniform in 1..limit, is 0; always terminates.

    `obs` is counter / limit; the value at counter k is (1 - gamma^k) / (1 - gamma).
    """

    @staticmethod
    def time_limit(cfg: Toy) -> int:
        """Return a number of steps that no episode reaches."""
        return cfg.limit + 1

    def init_rows(self, rows: Tensor) -> None:
        """Sample the counter."""
        count = self.sample_uniform(rows, 1, self.cfg.limit + 1).floor()
        self.state[rows, 0] = count.clamp(max=self.cfg.limit)

    def observe(self) -> Tensor:
        """Return counter / limit."""
        return self.state[:, :1] / self.cfg.limit

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Decrement the counter."""
        self.state[:, 0] -= 1
        return torch.ones(self.cfg.envs), self.state[:, 0] <= 0


class Chain(Clock):
    """A chain of `limit` positions: an action > 0 moves right, any other left.

    Reaching the rightmost position yields reward 1 and terminates. `obs` is the one-hot position; the optimal
    value at position p is gamma^(limit - 2 - p). Truncates after 10 * limit steps.
    """

    @staticmethod
    def obs_width(cfg: Toy) -> int:
        """Return one column per position."""
        return cfg.limit

    @staticmethod
    def time_limit(cfg: Toy) -> int:
        """Return ten times the length, which gives a random walk the time to reach the end."""
        return 10 * cfg.limit

    def init_rows(self, rows: Tensor) -> None:
        """Start at the left end."""
        self.state[rows, 0] = 0

    def observe(self) -> Tensor:
        """Return the one-hot position."""
        return torch.nn.functional.one_hot(self.state[:, 0].long(), self.cfg.limit).float()

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Move one position to the right or to the left."""
        last = self.cfg.limit - 1
        self.state[:, 0] = (self.state[:, 0] + torch.where(action > 0, 1.0, -1.0)).clamp(0, last)
        at_goal = self.state[:, 0] == last
        return at_goal.float(), at_goal


class PointMass(Clock):
    """A point in [-1, 1] moves by a tenth of the action; reward 1 - (position - goal)^2, at best about 1."""

    @staticmethod
    def obs_width(cfg: Toy) -> int:
        """Return two columns: position and goal."""
        return 2

    def init_rows(self, rows: Tensor) -> None:
        """Sample position and goal uniformly from [-1, 1]."""
        self.state[rows, 0] = self.sample_uniform(rows, -1, 1)
        self.state[rows, 1] = self.sample_uniform(rows, -1, 1)

    def observe(self) -> Tensor:
        """Return position and goal."""
        return self.state.clone()

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Move, then compute the reward from the new distance to the goal."""
        self.state[:, 0] = (self.state[:, 0] + 0.1 * action).clamp(-1, 1)
        distance = self.state[:, 0] - self.state[:, 1]
        return 1 - distance.square(), torch.zeros(self.cfg.envs, dtype=torch.bool)


class Faulty(Clock):
    """A Clock that returns NaN or infinity as `Toy.faults` lists; the reset is step 0.

    Each fault occurs once after every reset.
    """

    def _make_step(
        self, obs: Obs, next_obs: Obs, reward: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor
    ) -> Step:
        for step, row, fault in self.cfg.faults:
            if step != self.steps_since_reset:
                continue
            value = float("nan") if fault.startswith("nan") else float("inf")
            if fault.endswith("obs"):
                next_obs[OBS][row] = value
                obs[OBS][row] = value
            else:
                reward[row] = value
        return super()._make_step(obs, next_obs, reward, terminated, truncated, valid)


class Sleepy(Clock):
    """A Clock whose vector step takes `seconds`, counted from `send`: a simulator on another machine."""

    _ready_at = 0.0

    def send(self, action: Tensor) -> None:
        """Start a step and its timer."""
        self._ready_at = time.monotonic() + self.cfg.seconds
        super().send(action)

    def recv(self) -> Step:
        """Sleep until `seconds` after `send`, then return the result."""
        time.sleep(max(0.0, self._ready_at - time.monotonic()))
        return super().recv()
