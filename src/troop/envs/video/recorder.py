"""Videos of a policy.

The env runs in a child process, because MuJoCo aborts the process if it cannot open an OpenGL context.
"""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from troop.core.env import EnvConfig, Obs
from troop.core.errors import BadInput, SetupProblem
from troop.envs.envpool.adapter import EnvPool
from troop.envs.gymnasium.adapter import Gymnasium
from troop.envs.pipe import read_message, write_message

NO_GL = (
    "cannot be rendered on this machine: MuJoCo needs OpenGL; install it with "
    "`apt-get install libegl1 libgl1-mesa-dri` and `pip install 'trooprl[video]'`"
)


@dataclass(frozen=True)
class EpisodeVideo:
    """Frames, return and length of one episode."""

    frames: list[np.ndarray]  # uint8 [H, W, 3], one every `stride` steps
    stride: int
    episode_return: float
    steps: int


def record_video(
    env: EnvConfig,
    act: Callable[[Obs], Tensor],
    *,
    seed: int = 0,
    steps: int | None = None,
    frames: int = 120,
    size: tuple[int, int] = (480, 360),
    on_frame: Callable[[int, int], None] = lambda frame, step: None,
) -> EpisodeVideo:
    """Play and render one episode of `env.for_evaluation()`; `act` maps observations [1, ...] to an action.

    The episode ends at the latest after `steps` or the time limit of the env (1,000 steps if it has none).
    Renders at most `frames` frames, evenly spaced over that length: software rendering of a humanoid takes
    0.7 s per frame. `size` is (width, height); Gymnasium envs use their own size. `on_frame` is called after
    each frame with its number, from 1, and the steps before it. Raises SetupProblem if the env cannot be
    rendered.
    """
    if frames < 1:
        raise BadInput(f"frames is {frames}; a video needs at least 1.")
    env = env.for_evaluation()
    max_steps = min(steps or 10**9, env.spec.episode_limit or 1000)
    stride = math.ceil(max_steps / frames)
    request = _env_request(env) | {"seed": seed, "steps": max_steps, "stride": stride, "size": list(size)}
    variables = dict(os.environ)
    if sys.platform == "linux":
        variables.setdefault("MUJOCO_GL", "egl")
    with tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", "troop.envs.video.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=variables,
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            return _serve_actions(child.stdin, child.stdout, request, act, on_frame)
        except (EOFError, BrokenPipeError) as error:
            child.wait(timeout=30)
            stderr.seek(0)
            last_line = stderr.read().decode(errors="replace").strip().splitlines()[-1:]
            detail = f" ({last_line[0]})" if last_line else ""
            raise SetupProblem(f"Env '{env.id}' {NO_GL}{detail}.") from error
        finally:
            child.stdin.close()
            child.stdout.close()
            if child.poll() is None:
                child.kill()
            child.wait()


def _env_request(env: EnvConfig) -> dict[str, Any]:
    if isinstance(env, EnvPool | Gymnasium):
        backend = "envpool" if isinstance(env, EnvPool) else "gymnasium"
        settings, frames = [list(pair) for pair in env.settings], dataclasses.asdict(env.frames)
        request = {"backend": backend, "id": env.id, "settings": settings, "frames": frames}
        return request | {"hide": list(env.hide), "last_step": env.last_step}
    raise SetupProblem(
        f"Env '{env.id}' cannot be rendered; videos are supported for EnvPool and Gymnasium envs."
    )


def _serve_actions(
    to_child: IO[bytes],
    from_child: IO[bytes],
    request: dict[str, Any],
    act: Callable[[Obs], Tensor],
    on_frame: Callable[[int, int], None],
) -> EpisodeVideo:
    """Send the request, answer every observation with an action, and collect the frames."""
    write_message(to_child, request)
    frames: list[np.ndarray] = []
    while True:
        header, arrays = read_message(from_child)
        if header["kind"] == "frame":
            frames.append(arrays[0])
            on_frame(len(frames), (len(frames) - 1) * int(request["stride"]))
        elif header["kind"] == "obs":
            obs = {name: torch.from_numpy(array) for name, array in zip(header["names"], arrays, strict=True)}
            with torch.no_grad():
                action = act(obs)
            write_message(to_child, {"kind": "action"}, [action.detach().cpu().numpy()])
        elif header["kind"] == "end":
            return EpisodeVideo(frames, int(request["stride"]), float(header["return"]), int(header["steps"]))
        elif header["kind"] == "no_gl":
            raise SetupProblem(f"Env '{request['id']}' {NO_GL} ({header['text']}).")
        else:
            raise SetupProblem(f"Env '{request['id']}' cannot be rendered: {header['text']}")


def write_video(path: str | Path, frames: list[np.ndarray], fps: float = 30) -> Path:
    """Write frames to an `.mp4` or `.gif` file, creating its directory, and return the path.

    Raises BadInput for another suffix or no frames, SetupProblem if it cannot be encoded.
    """
    path = Path(path)
    if path.suffix not in (".mp4", ".gif"):
        raise BadInput(f"Cannot write a video to '{path}'; the file name must end in .mp4 or .gif.")
    if not frames:
        raise BadInput(f"Cannot write '{path}'; there are no frames.")
    try:
        import imageio.v2 as imageio
    except ImportError as error:
        raise SetupProblem("Writing videos needs imageio; try: pip install 'trooprl[video]'.") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    # H.264 requires an even width and height.
    even: list[Any] = [frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2] for frame in frames]
    if path.suffix == ".gif":
        imageio.mimsave(path, even, duration=1000 / fps, loop=0)
        return path
    try:
        imageio.mimsave(path, even, fps=fps, macro_block_size=2)
    except (ImportError, ValueError, OSError) as error:
        raise SetupProblem(f"Cannot write '{path}': {error}; try: pip install 'trooprl[video]'.") from error
    return path
