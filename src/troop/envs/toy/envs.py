"""The toy envs; `Toy` (config.py) selects one by name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from troop.core.env import OBS, PRIVILEGED, Field, Obs, Step
from troop.core.errors import BadInput

if TYPE_CHECKING:
    from troop.envs.toy.config import Toy


class Clock:
    """Reward 1 per step for every action; an episode is truncated after `limit` steps and never terminates.

    Every state has the value 1 / (1 - gamma), which an agent learns only if it bootstraps at truncations.
    Other toy envs override `obs_width`, `time_limit`, `init_rows`, `observe` and `advance`.
    """

    action_size = 1  # number of continuous actions
    state_size = 2

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
        self.state = torch.zeros(self.cfg.envs, self.state_size)
        self.ended = torch.zeros(self.cfg.envs, dtype=torch.bool)  # next_step: rows that the next step resets
        self.steps_since_reset = 0

    @staticmethod
    def obs_width(cfg: Toy) -> int:
        """Return the number of columns of `obs`."""
        return 1

    @classmethod
    def obs_field(cls, cfg: Toy) -> Field:
        """Return shape and dtype of `obs`."""
        return Field((cls.obs_width(cfg),))

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
        """Update the state of every row; return (reward [N], terminated [N]).

        `action` is [N], or [N, action_size] where that is above 1, in [-1, 1].
        """
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
            action = self._action.clamp(-1, 1).float()
            action = action[:, 0] if self.action_size == 1 else action
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


class Recall(Clock):
    """A cue of -1 or 1 at the first step; reward 1 if the action of the last step has its sign, else -1.

    In between the observation shows only the time: a policy without memory has the mean return 0.
    """

    state_size = 1

    @staticmethod
    def obs_width(cfg: Toy) -> int:
        """Return 2: the cue, which is 0 after the first step, and elapsed steps / `limit`."""
        return 2

    @staticmethod
    def time_limit(cfg: Toy) -> int:
        """Return more than `limit`: episodes terminate."""
        return cfg.limit + 1

    def init_rows(self, rows: Tensor) -> None:
        """Draw the cues of `rows`."""
        for row in rows.tolist():
            self.state[row] = 2 * torch.randint(2, (1,), generator=self.generators[row]) - 1

    def observe(self) -> Tensor:
        """Return the cue or 0, and the time."""
        cue = torch.where(self.elapsed == 0, self.state[:, 0], 0.0)
        return torch.stack((cue, self.elapsed.float() / self.cfg.limit), 1)

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Compare the last action with the cue."""
        last = self.elapsed + 1 >= self.cfg.limit
        return torch.where(last, torch.where(action * self.state[:, 0] > 0, 1.0, -1.0), 0.0), last


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


class Reach(Clock):
    """Steer a point to a goal in [-1, 1]^2; an action moves it by up to 0.25 along each axis.

    The observation is an image [1, 24, 24] in which the point is bright and small, the goal dim and large.
    The reward is 1 - the distance to the goal after the step, at least 0.
    """

    action_size, state_size = 2, 4
    SIDE = 24
    SPEED = 0.25
    POINT, GOAL = (0.15, 255.0), (0.3, 120.0)  # radius, brightness at the centre

    @classmethod
    def obs_field(cls, cfg: Toy) -> Field:
        """Return the image."""
        return Field((1, cls.SIDE, cls.SIDE), torch.uint8)

    def init_rows(self, rows: Tensor) -> None:
        """Sample both coordinates of point and goal uniformly from [-1, 1]."""
        for column in range(self.state_size):
            self.state[rows, column] = self.sample_uniform(rows, -1, 1)

    def observe(self) -> Tensor:
        """Return the image; a blob's brightness falls linearly with the distance along each axis."""
        pixels = torch.linspace(-1.2, 1.2, self.SIDE)
        image = torch.zeros(self.cfg.envs, self.SIDE, self.SIDE)
        for (radius, brightness), centre in ((self.POINT, self.state[:, :2]), (self.GOAL, self.state[:, 2:])):
            x, y = (1 - (pixels - centre[:, k, None]).abs() / radius for k in (0, 1))
            image += brightness * y.clamp_min(0).unsqueeze(2) * x.clamp_min(0).unsqueeze(1)
        return image.clamp(max=255).to(torch.uint8).unsqueeze(1)

    def advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Move, then compute the reward from the new distance to the goal."""
        self.state[:, :2] = (self.state[:, :2] + self.SPEED * action).clamp(-1, 1)
        distance = torch.linalg.vector_norm(self.state[:, :2] - self.state[:, 2:], dim=1)
        return (1 - distance).clamp_min(0), torch.zeros(self.cfg.envs, dtype=torch.bool)


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
