"""Gymnasium envs with a camera, joints and several discrete actions at once."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Robot(gymnasium.Env):
    """The reward is 1 if every action equals what an observation shows, else 0; ten steps.

    The first action is shown by the camera (a bright column), the second by the joints.
    """

    def __init__(self, binary=False):
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (20, 24, 3), np.uint8),
                "joints": spaces.Box(-1, 1, (2,), np.float32),
                "privileged": spaces.Box(-1, 1, (1,), np.float32),
            }
        )
        self.action_space = spaces.MultiBinary(2) if binary else spaces.MultiDiscrete([3, 2], start=[1, 5])
        self.first = 0 if binary else np.array([1, 5])
        self.choices = (2, 2) if binary else (3, 2)

    def observe(self):
        self.goal = self.np_random.integers(0, self.choices)
        camera = np.zeros((20, 24, 3), np.uint8)
        camera[:, 8 * self.goal[0] : 8 * self.goal[0] + 6] = 200
        joints = np.array([2.0 * self.goal[1] - 1, 0.3], np.float32)
        return {"camera": camera, "joints": joints, "privileged": np.zeros(1, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = float(np.array_equal(np.asarray(action) - self.first, self.goal))
        self.steps += 1
        return self.observe(), reward, False, self.steps == 10, {}
