"""Toy envs that need memory: the first observation of an episode decides the reward of its last action."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from troop.core.env import Continuous, Discrete
from troop.envs.toy.envs import Clock

if TYPE_CHECKING:
    from troop.envs.toy.config import Toy


class Recall(Clock):
    """A cue of -1 or 1 at the first step; reward 1 if the action of the last step has its sign, else -1.

    In between the observation shows only the time: a policy without memory has the mean return 0.
    """

    state_size = 1
    truncates = False

    @staticmethod
    def obs_width(cfg: Toy) -> int:
        """Return 2: the cue, which is 0 after the first step, and elapsed steps / `limit`."""
        return 2

    @staticmethod
    def time_limit(cfg: Toy) -> int:
        """Return more than `limit`: episodes terminate."""
        return cfg.limit + 1

    def init_rows(self, rows: np.ndarray) -> None:
        """Draw the cues of `rows`."""
        for row in rows.tolist():
            self.state[row] = 2 * self.generators[row].integers(2) - 1

    def observe(self) -> np.ndarray:
        """Return the cue or 0, and the time."""
        cue = np.where(self.elapsed[:, None] == 0, self.state, np.float32(0))
        return np.concatenate((cue, self.time_column()), 1)

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compare the last action with the cue."""
        last = self.elapsed + 1 >= self.cfg.limit
        reward = np.where(last, np.where(action * self.state[:, 0] > 0, 1, -1), 0)
        return reward.astype(np.float32), last


class Cue(Clock):
    """One of `cues` cues in the first observation, and the question for it `delay` steps later.

    The action at the question gets the reward 1 if it is the number of the cue, else -1 / (cues - 1), and
    ends the episode; other actions have no effect. The observations in between are all equal: a random
    policy, and every policy without memory, has the mean return 0.
    """

    state_size = 1
    truncates = False

    @staticmethod
    def obs_width(cfg: Toy) -> int:
        """Return one column per cue, 0 after the first step, and one that is 1 at the question."""
        return cfg.cues + 1

    @classmethod
    def action_spec(cls, cfg: Toy) -> Continuous | Discrete:
        """Return one action per cue."""
        return Discrete(cfg.cues)

    @staticmethod
    def time_limit(cfg: Toy) -> int:
        """Return more than an episode's steps: episodes terminate."""
        return cfg.delay + 2

    def discrete_effect(self, action: np.ndarray) -> np.ndarray:
        """Return the actions unchanged: numbers of cues."""
        return action

    def init_rows(self, rows: np.ndarray) -> None:
        """Draw the cues of `rows`."""
        for row in rows.tolist():
            self.state[row] = self.generators[row].integers(self.cfg.cues)

    def observe(self) -> np.ndarray:
        """Return the cue as a one-hot, or zeros, and whether the question is asked."""
        cue = self.state == np.arange(self.cfg.cues)
        shown, asked = self.elapsed[:, None] == 0, self.elapsed[:, None] == self.cfg.delay
        return np.concatenate((cue & shown, asked), 1).astype(np.float32)

    def advance(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compare the action at the question with the cue."""
        asked = self.elapsed == self.cfg.delay
        answer = np.where(action == self.state[:, 0], 1.0, -1.0 / (self.cfg.cues - 1))
        return np.where(asked, answer, 0.0).astype(np.float32), asked
