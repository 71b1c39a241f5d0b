"""Action repeats, smaller, grey and stacked images: the usual preprocessing of pixels, for any backend."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from troop.core.config import bounded
from troop.core.env import EnvSpec, Field
from troop.core.errors import BadInput
from troop.core.numpy_env import NumPyEnv, NumPyObs, NumPyStep, replace_rows

LUMA = (0.299, 0.587, 0.114)  # brightness of red, green and blue (ITU-R BT.601)


@dataclass(frozen=True)
class FrameConfig:
    """What is done to the uint8 images of an env, and for how many steps an action is repeated."""

    repeat: int = bounded(1, low=1, high=64)
    """Steps of the simulator for which an action is repeated; their rewards are summed."""
    shrink: int = bounded(1, low=1, high=16)
    """Factor by which images are made smaller: a pixel is the mean of a square of pixels of this side."""
    gray: bool = False
    """Replace red, green and blue by their brightness."""
    stack: int = bounded(1, low=1, high=16)
    """Frames that an image observation holds, oldest first; the first one of an episode is repeated."""

    def spec(self, spec: EnvSpec) -> EnvSpec:
        """Return the spec of the env with these settings. Raises BadInput if an image is too small."""
        if self == FrameConfig():
            return spec
        obs = {name: self._field(field, spec.id) for name, field in spec.obs.items()}
        limit = None if spec.episode_limit is None else -(-spec.episode_limit // self.repeat)
        return dataclasses.replace(spec, obs=obs, episode_limit=limit)

    def wrap(self, env: NumPyEnv, background: bool = False) -> NumPyEnv:
        """Return the env with these settings; `background` repeats actions in a thread of its own."""
        return env if self == FrameConfig() else FrameEnv(self, env, background)

    def convert(self, images: np.ndarray) -> np.ndarray:
        """Return frames [N, c, h, w] of images uint8 [N, C, H, W], shrunk and grey, not stacked."""
        frames = images
        if self.gray and images.shape[1] == 3:
            frames = np.tensordot(images, np.array(LUMA, np.float32), ((1,), (0,)))[:, None]
        if self.shrink > 1:
            frames = _block_mean(frames, self.shrink)
        return images if frames is images else np.rint(frames).astype(np.uint8)

    def _field(self, field: Field, env: str) -> Field:
        if not _is_image(field):
            return field
        if field.stack > 1:
            raise BadInput(
                f"Env '{env}' stacks {field.stack} frames itself; --env.frames.stack, --env.frames.shrink "
                "and --env.frames.gray are for envs that return single frames."
            )
        channels, height, width = field.shape
        if min(height, width) < self.shrink:
            raise BadInput(
                f"--env.frames.shrink is {self.shrink}; env '{env}' has images of {height}x{width} pixels."
            )
        channels = 1 if self.gray and channels == 3 else channels
        shape = (channels * self.stack, height // self.shrink, width // self.shrink)
        return Field(shape, field.dtype_name, self.stack)


def _is_image(field: Field) -> bool:
    return len(field.shape) == 3 and field.dtype_name == "uint8"


def _block_mean(images: np.ndarray, side: int) -> np.ndarray:
    """Return the float32 means of squares of `side` x `side` pixels; pixels beyond the last are left out."""
    height, width = (size // side * side for size in images.shape[2:])
    total = np.zeros((*images.shape[:2], height // side, width // side), np.float32)
    for row in range(side):
        for column in range(side):
            total += images[:, :, row:height:side, column:width:side]
    return total / np.float32(side * side)


class FrameEnv:
    """A NumPyEnv in same-step autoreset mode, whatever the mode of the wrapped env.

    A repeated action ends with the episode. The envs that ended continue until the others are through; then
    they are restarted, so that every episode begins with its first frame.
    """

    def __init__(self, cfg: FrameConfig, env: NumPyEnv, background: bool) -> None:
        self.cfg, self.env, self.spec = cfg, env, cfg.spec(env.spec)
        self._names = [name for name, field in env.spec.obs.items() if _is_image(field)]
        self._stacks: NumPyObs = {}
        self._action: np.ndarray | None = None
        self._executor = ThreadPoolExecutor(1) if background else None
        self._pending: Future[NumPyStep] | None = None

    def reset(self, seed: int) -> NumPyStep:
        """Start a new episode in every env; all rows have `valid` False."""
        if self._pending is not None:
            wait([self._pending])  # the thread must not step the envs while they are reset
        self._pending = self._action = None
        step = self.env.reset(seed)
        obs = self._begin(step.obs)
        return dataclasses.replace(step, obs=obs, next_obs=obs)

    def send(self, action: np.ndarray) -> None:
        """Start a step; it runs in the background if the env was wrapped so, else in `recv`."""
        self._action = action
        if self._executor is not None:
            self._pending = self._executor.submit(self._advance, action)

    def recv(self) -> NumPyStep:
        """Return the result of the last `send`. Raises BadInput if there was none."""
        if self._action is None:
            raise BadInput(f"recv() of env '{self.spec.id}' was called without a send() before it.")
        action, pending = self._action, self._pending
        self._action = self._pending = None
        return self._advance(action) if pending is None else pending.result()

    def step(self, action: np.ndarray) -> NumPyStep:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: np.ndarray) -> NumPyObs:
        """Restart the envs `rows` and return their first observations."""
        first = self._begin(self.env.restart(rows))
        for name in self._names:
            self._stacks[name] = replace_rows(self._stacks[name], rows, first[name])
        return first

    def close(self) -> None:
        """Close the wrapped env; further calls have no effect."""
        if self._executor is not None:
            self._executor.shutdown()
        self.env.close()

    def _begin(self, obs: NumPyObs) -> NumPyObs:
        """Return first observations: each frame `stack` times. A reset of all envs also sets the stacks."""
        first = {
            name: np.tile(self.cfg.convert(x), (1, self.cfg.stack, 1, 1)) if name in self._names else x
            for name, x in obs.items()
        }
        if len(next(iter(first.values()))) == self.spec.envs:
            self._stacks = {name: first[name] for name in self._names}
        return first

    def _advance(self, action: np.ndarray) -> NumPyStep:
        step = self.env.step(action)
        reward, terminated, truncated, valid = step.reward, step.terminated, step.truncated, step.valid
        final, faults = step.next_obs, step.faults
        for _ in range(self.cfg.repeat - 1):
            active = ~(terminated | truncated) & valid
            if not bool(active.any()):
                break
            step = self.env.step(action)
            valid, faults = valid & (step.valid | ~active), faults + step.faults
            reward = reward + step.reward * active
            terminated, truncated = terminated | step.terminated & active, truncated | step.truncated & active
            final = {
                name: np.where(active.reshape(-1, *[1] * (x.ndim - 1)), step.next_obs[name], x)
                for name, x in final.items()
            }
        return self._finish(NumPyStep(step.obs, final, reward, terminated, truncated, valid, faults))

    def _finish(self, step: NumPyStep) -> NumPyStep:
        """Stack the frames of a repeated action and restart the envs whose episodes ended."""
        next_obs = dict(step.next_obs)
        for name in self._names:
            frame, old = self.cfg.convert(next_obs[name]), self._stacks[name]
            next_obs[name] = np.concatenate((old[:, frame.shape[1] :], frame), 1)
            self._stacks[name] = next_obs[name]
        obs = next_obs
        # A row that is not valid begins an episode within the repeats: begin it anew with its first frame.
        ended = step.terminated | step.truncated | ~step.valid
        if bool(ended.any()):
            rows = np.flatnonzero(ended)
            first = self.restart(rows)
            obs = {name: replace_rows(x, rows, first[name]) for name, x in next_obs.items()}
        terminated, truncated = step.terminated & step.valid, step.truncated & step.valid
        return NumPyStep(
            obs, next_obs, step.reward * step.valid, terminated, truncated, step.valid, step.faults
        )
