"""Films of a policy. The env lives in a child process: MuJoCo aborts its process where it cannot draw."""

from __future__ import annotations

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
from troop.envs.video.pipe import read_message, write_message

NO_GL = (
    "cannot be drawn on this machine: MuJoCo needs OpenGL; install it with "
    "`apt-get install libegl1 libgl1-mesa-dri` and `pip install 'trooprl[video]'`"
)


@dataclass(frozen=True)
class Recording:
    """One filmed episode: every `stride`-th picture of it, uint8 [H, W, 3]."""

    frames: list[np.ndarray]
    stride: int
    episode_return: float
    steps: int


def record(
    env: EnvConfig,
    act: Callable[[Obs], Tensor],
    *,
    seed: int = 0,
    steps: int | None = None,
    frames: int = 120,
    size: tuple[int, int] = (480, 360),
) -> Recording:
    """Film one episode of `env`, as it is judged, under `act` (observations of one row to one action).

    At most `frames` pictures of `size` (width, height) are drawn, evenly over the episode's longest possible
    length or `steps`: a humanoid takes 0.7 s a picture in software. Gymnasium envs choose their own size.
    """
    if frames < 1:
        raise BadInput(f"A film of {frames} frames cannot be; ask for at least 1.")
    env = env.for_evaluation()
    longest = min(steps or 10**9, env.spec.episode_limit or 1000)
    stride = math.ceil(longest / frames)
    order = _order(env) | {"seed": seed, "steps": longest, "stride": stride, "size": list(size)}
    variables = dict(os.environ)
    if sys.platform == "linux":
        variables.setdefault("MUJOCO_GL", "egl")
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "troop.envs.video.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=variables,
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            return _direct(child.stdin, child.stdout, order, act)
        except (EOFError, BrokenPipeError) as error:
            child.wait(timeout=30)
            said.seek(0)
            reason = said.read().decode(errors="replace").strip().splitlines()[-1:]
            detail = f" ({reason[0]})" if reason else ""
            raise SetupProblem(f"Env '{env.id}' {NO_GL}{detail}.") from error
        finally:
            child.stdin.close()
            child.stdout.close()
            if child.poll() is None:
                child.kill()
            child.wait()


def _order(env: EnvConfig) -> dict[str, Any]:
    if isinstance(env, EnvPool | Gymnasium):
        backend = "envpool" if isinstance(env, EnvPool) else "gymnasium"
        return {"backend": backend, "id": env.id, "settings": [list(pair) for pair in env.settings]}
    raise SetupProblem(
        f"Env '{env.id}' has no picture of itself; only EnvPool and Gymnasium envs can be filmed."
    )


def _direct(
    to_child: IO[bytes], from_child: IO[bytes], order: dict[str, Any], act: Callable[[Obs], Tensor]
) -> Recording:
    write_message(to_child, order)
    frames: list[np.ndarray] = []
    while True:
        header, arrays = read_message(from_child)
        if header["kind"] == "frame":
            frames.append(arrays[0])
        elif header["kind"] == "obs":
            obs = {name: torch.from_numpy(array) for name, array in zip(header["names"], arrays, strict=True)}
            with torch.no_grad():
                action = act(obs)
            write_message(to_child, {"kind": "action"}, [action.detach().cpu().numpy()])
        elif header["kind"] == "end":
            return Recording(frames, int(order["stride"]), float(header["return"]), int(header["steps"]))
        elif header["kind"] == "no_gl":
            raise SetupProblem(f"Env '{order['id']}' {NO_GL} ({header['text']}).")
        else:
            raise SetupProblem(f"Env '{order['id']}' cannot be filmed: {header['text']}")


def write_video(path: str | Path, frames: list[np.ndarray], fps: float = 30) -> Path:
    """Write frames as `.mp4` or `.gif`, by the path's suffix; the folder is made."""
    path = Path(path)
    if path.suffix not in (".mp4", ".gif"):
        raise BadInput(f"Cannot write a film to '{path}'; name a .mp4 or a .gif file.")
    if not frames:
        raise BadInput("A film without frames cannot be written.")
    try:
        import imageio.v2 as imageio
    except ImportError as error:
        raise SetupProblem("Writing films needs imageio; try: pip install 'trooprl[video]'.") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    # H.264 wants even sides.
    even: list[Any] = [frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2] for frame in frames]
    if path.suffix == ".gif":
        imageio.mimsave(path, even, duration=1000 / fps, loop=0)
        return path
    try:
        imageio.mimsave(path, even, fps=fps, macro_block_size=2)
    except (ImportError, ValueError, OSError) as error:
        raise SetupProblem(f"Cannot write '{path}': {error}; try: pip install 'trooprl[video]'.") from error
    return path
