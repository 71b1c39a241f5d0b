"""The toy envs; `Toy` (config.py) selects one by name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from troop.core.env import OBS, PRIVILEGED, Continuous, Discrete, Field
from troop.core.errors import BadInput
from troop.core.numpy_env import NumPyObs, NumPyStep

if TYPE_CHECKING:
    from troop.envs.toy.config import Toy


class Clock:
    """Reward 1 per step for every action; an episode is truncated after `limit` steps and never terminates.

    Every state has the value 1 / (1 - gamma), which an agent learns only if it bootstraps at truncations.
    Other toy envs override `obs_width`, `time_limit`, `init_rows`, `observe` and `advance`.
    """

    action_size = 1  # number of continuous actions
    state_size = 2
    truncates = True  # whether the time limit ends episodes

    def __init__(self, cfg: Toy, seed: int) -> None:
        self.cfg = cfg
        self.spec = cfg.spec
        self._action: np.ndarray | None = None
        self._seed(seed)

    def _seed(self, seed: int) -> None:
        # One generator per row: restarting a row does not change the random numbers of the others.
        self.generators = [np.random.default_rng((abs(seed), i)) for i in range(self.cfg.envs)]
        self.elapsed = np.zeros(self.cfg.envs, dtype=np.int64)
        self.state = np.zeros((self.cfg.envs, self.state_size), dtype=np.float32)
        self.ended = np.zeros(self.cfg.envs, dtype=bool)  # next_step: rows that the next step resets
        self.steps_since_reset = 0

    @staticmethod
    def obs_width(cfg: Toy) -> int:
        """Return the number of columns of `obs`."""
        return 1

    @classmethod
    def obs_field(cls, cfg: Toy) -> Field:
        """Return shape and dtype of `obs`."""
        return Field((cls.obs_width(cfg),))

    @classmethod
    def action_spec(cls, cfg: Toy) -> Continuous | Discrete:
        """Return the actions. Raises BadInput if `discrete` is set and there are several continuous ones."""
        if cfg.discrete and cls.action_size > 1:
            raise BadInput(f"--env.discrete is set, but toy:{cfg.id} has only continuous actions.")
        return Discrete(2) if cfg.discrete else Continuous(cls.action_size)

    @staticmethod
    def time_limit(cfg: Toy) -> int:
        """Return the number of steps after which an episode is truncated."""
        return cfg.limit

    def init_rows(self, rows: np.ndarray) -> None:
        """Set the initial state of `rows` (int64 [K])."""

    def observe(self) -> np.ndarray:
        """Return `obs`, [N, obs_width]: here elapsed steps / `limit`."""
        return self.time_column()

    def time_column(self) -> np.ndarray:
        """Return elapsed steps / `limit`, [N, 1]."""
        return (self.elapsed[:, None] / self.cfg.limit).astype(np.float32)

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Update the state of every row; return (reward [N], terminated [N]).

        `action` is [N], or [N, action_size] where that is above 1, in [-1, 1].
        """
        return np.ones(self.cfg.envs, np.float32), np.zeros(self.cfg.envs, dtype=bool)

    def discrete_effect(self, action: np.ndarray) -> np.ndarray:
        """Return what discrete actions [N] are for `advance`: 0 acts as -1, 1 as +1."""
        return (action * 2 - 1).astype(np.float32)

    def reset(self, seed: int) -> NumPyStep:
        """Start a new episode in every env; all rows have `valid` False."""
        self._seed(seed)
        self.init_rows(np.arange(self.cfg.envs))
        false = np.zeros(self.cfg.envs, dtype=bool)
        obs = self._obs()
        return self._make_step(obs, obs, np.zeros(self.cfg.envs, np.float32), false, false, false)

    def send(self, action: np.ndarray) -> None:
        """Start a step; `recv` computes it."""
        self._action = action

    def recv(self) -> NumPyStep:
        """Return the result of the last `send`. Raises BadInput if there was none."""
        if self._action is None:
            raise BadInput(f"recv() of env '{self.spec.id}' was called without a send() before it.")
        if isinstance(self.spec.action, Discrete):
            action = self.discrete_effect(self._action)
        else:
            action = self._action.clip(-1, 1).astype(np.float32)
            action = action[:, 0] if self.action_size == 1 else action
        self._action = None
        self.steps_since_reset += 1
        old_elapsed, old_state = self.elapsed.copy(), self.state.copy()
        reward, terminated = self.advance(action)
        self.elapsed = self.elapsed + 1
        valid = ~self.ended
        truncated = (self.elapsed >= self.time_limit(self.cfg)) & ~terminated
        terminated, truncated, reward = terminated & valid, truncated & valid, reward * valid
        if bool(self.ended.any()):  # next_step: the action is ignored in these rows, which are reset
            self.elapsed[self.ended], self.state[self.ended] = old_elapsed[self.ended], old_state[self.ended]
            self._restart(np.flatnonzero(self.ended))
        done = terminated | truncated
        next_obs = obs = self._obs()
        if self.cfg.autoreset == "next_step":
            self.ended = done
        elif bool(done.any()):
            self._restart(np.flatnonzero(done))
            obs = self._obs()
        return self._make_step(obs, next_obs, reward, terminated, truncated, valid)

    def step(self, action: np.ndarray) -> NumPyStep:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: np.ndarray) -> NumPyObs:
        """Restart the envs `rows` and return their first observations."""
        self._restart(rows)
        return {name: value[rows] for name, value in self._obs().items()}

    def close(self) -> None:
        """Do nothing: a toy env holds no resources."""

    def _restart(self, rows: np.ndarray) -> None:
        self.ended = self.ended.copy()
        self.ended[rows] = False
        self.elapsed[rows] = 0
        self.init_rows(rows)

    def _obs(self) -> NumPyObs:
        obs = {OBS: self.observe()}
        if self.cfg.privileged:
            obs[PRIVILEGED] = self.time_column()
        return obs

    def _make_step(
        self,
        obs: NumPyObs,
        next_obs: NumPyObs,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        valid: np.ndarray,
    ) -> NumPyStep:
        return NumPyStep(obs, next_obs, reward, terminated, truncated, valid)

    def sample_uniform(self, rows: np.ndarray, low: float, high: float) -> np.ndarray:
        """Return a uniform sample from [low, high) for each of `rows`, from the generator of the row."""
        samples = [self.generators[i].random(dtype=np.float32) for i in rows.tolist()]
        return np.array(samples, dtype=np.float32) * np.float32(high - low) + np.float32(low)


class Countdown(Clock):
    """Reward 1 per step until a counter, initially uniform in 1..limit, is 0; always terminates.

    `obs` is counter / limit; the value at counter k is (1 - gamma^k) / (1 - gamma).
    """

    truncates = False

    @staticmethod
    def time_limit(cfg: Toy) -> int:
        """Return a number of steps that no episode reaches."""
        return cfg.limit + 1

    def init_rows(self, rows: np.ndarray) -> None:
        """Sample the counter."""
        count = np.floor(self.sample_uniform(rows, 1, self.cfg.limit + 1))
        self.state[rows, 0] = count.clip(max=self.cfg.limit)

    def observe(self) -> np.ndarray:
        """Return counter / limit."""
        return self.state[:, :1] / np.float32(self.cfg.limit)

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Decrement the counter."""
        self.state[:, 0] -= 1
        return np.ones(self.cfg.envs, np.float32), self.state[:, 0] <= 0


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

    def init_rows(self, rows: np.ndarray) -> None:
        """Start at the left end."""
        self.state[rows, 0] = 0

    def observe(self) -> np.ndarray:
        """Return the one-hot position."""
        position: np.ndarray = self.state[:, :1] == np.arange(self.cfg.limit)
        return position.astype(np.float32)

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Move one position to the right or to the left."""
        last = self.cfg.limit - 1
        self.state[:, 0] = (self.state[:, 0] + np.where(action > 0, 1, -1)).clip(0, last)
        at_goal = self.state[:, 0] == last
        return at_goal.astype(np.float32), at_goal


class PointMass(Clock):
    """A point in [-1, 1] moves by a tenth of the action; reward 1 - (position - goal)^2, at best about 1."""

    @staticmethod
    def obs_width(cfg: Toy) -> int:
        """Return two columns: position and goal."""
        return 2

    def init_rows(self, rows: np.ndarray) -> None:
        """Sample position and goal uniformly from [-1, 1]."""
        self.state[rows, 0] = self.sample_uniform(rows, -1, 1)
        self.state[rows, 1] = self.sample_uniform(rows, -1, 1)

    def observe(self) -> np.ndarray:
        """Return position and goal."""
        return self.state.copy()

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Move, then compute the reward from the new distance to the goal."""
        self.state[:, 0] = (self.state[:, 0] + np.float32(0.1) * action).clip(-1, 1)
        distance = self.state[:, 0] - self.state[:, 1]
        return 1 - np.square(distance), np.zeros(self.cfg.envs, dtype=bool)


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
        return Field((1, cls.SIDE, cls.SIDE), "uint8")

    def init_rows(self, rows: np.ndarray) -> None:
        """Sample both coordinates of point and goal uniformly from [-1, 1]."""
        for column in range(self.state_size):
            self.state[rows, column] = self.sample_uniform(rows, -1, 1)

    def observe(self) -> np.ndarray:
        """Return the image; a blob's brightness falls linearly with the distance along each axis."""
        pixels = np.linspace(-1.2, 1.2, self.SIDE, dtype=np.float32)
        image = np.zeros((self.cfg.envs, self.SIDE, self.SIDE), np.float32)
        for (radius, brightness), centre in ((self.POINT, self.state[:, :2]), (self.GOAL, self.state[:, 2:])):
            x, y = ((1 - np.abs(pixels - centre[:, k, None]) / radius).clip(0) for k in (0, 1))
            image += brightness * y[:, :, None] * x[:, None, :]
        return image.clip(max=255).astype(np.uint8)[:, None]

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Move, then compute the reward from the new distance to the goal."""
        self.state[:, :2] = (self.state[:, :2] + np.float32(self.SPEED) * action).clip(-1, 1)
        distance = np.linalg.norm(self.state[:, :2] - self.state[:, 2:], axis=1)
        return (1 - distance).clip(0), np.zeros(self.cfg.envs, dtype=bool)


class Faulty(Clock):
    """A Clock that returns NaN or infinity as `Toy.faults` lists; the reset is step 0.

    Each fault occurs once after every reset.
    """

    def _make_step(
        self,
        obs: NumPyObs,
        next_obs: NumPyObs,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        valid: np.ndarray,
    ) -> NumPyStep:
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

    def send(self, action: np.ndarray) -> None:
        """Start a step and its timer."""
        self._ready_at = time.monotonic() + self.cfg.seconds
        super().send(action)

    def recv(self) -> NumPyStep:
        """Sleep until `seconds` after `send`, then return the result."""
        time.sleep(max(0.0, self._ready_at - time.monotonic()))
        return super().recv()
