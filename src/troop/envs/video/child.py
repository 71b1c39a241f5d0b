"""The process that steps and renders the env of a video; its parent chooses every action."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from troop.core.numpy_env import NumPyEnv
from troop.envs.envpool.adapter import EnvPool, EnvPoolEnv
from troop.envs.envpool.catalog import modules
from troop.envs.frames import FrameConfig
from troop.envs.gymnasium.adapter import Gymnasium, GymnasiumEnv
from troop.envs.hidden_columns import HiddenColumnsEnv
from troop.envs.last_step import LastStepEnv
from troop.envs.pipe import read_message, write_message

Render = Callable[[], np.ndarray]


def main() -> None:
    """Read a request from standard input, play one episode, and send its frames to standard output."""
    # Backends print to standard output, which is reserved for messages: redirect prints to standard error.
    to_parent = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from_parent = sys.stdin.buffer
    request, _ = read_message(from_parent)
    try:
        context = _open_gl(request)  # must stay alive until the end
    except Exception as error:  # each GL backend raises its own error
        write_message(to_parent, {"kind": "no_gl", "text": f"{type(error).__name__}: {error}"})
        return
    try:
        _play(request, from_parent, to_parent)
    except (EOFError, BrokenPipeError):
        return  # the parent has closed the pipe
    except Exception as error:  # any error is reported to the parent
        write_message(to_parent, {"kind": "error", "text": f"{type(error).__name__}: {error}"})
    del context


def _open_gl(request: dict[str, Any]) -> Any:  # noqa: ANN401 - a mujoco.GLContext, or None
    if not _is_mujoco(request):
        return None
    import mujoco

    context = mujoco.GLContext(*request["size"])
    context.make_current()
    return context


def _is_mujoco(request: dict[str, Any]) -> bool:
    return request["backend"] == "envpool" and modules().get(request["id"], "").startswith("envpool.mujoco")


def _play(request: dict[str, Any], from_parent: IO[bytes], to_parent: IO[bytes]) -> None:
    simulator, render = _build(request)
    env: NumPyEnv = FrameConfig(**request["frames"]).wrap(simulator)
    env = HiddenColumnsEnv(env, tuple(request["hide"])) if request["hide"] else env
    env = LastStepEnv(env) if request["last_step"] else env
    step = env.reset(request["seed"])
    total, count = 0.0, 0
    for count in range(1, request["steps"] + 1):
        if (count - 1) % request["stride"] == 0:
            write_message(to_parent, {"kind": "frame"}, [render()])
        arrays = list(step.obs.values())
        write_message(to_parent, {"kind": "obs", "names": list(step.obs)}, arrays)
        _, (action,) = read_message(from_parent)
        step = env.step(action)
        total += float(step.reward[0])
        if bool(step.terminated[0] or step.truncated[0]):
            break
    write_message(to_parent, {"kind": "end", "return": total, "steps": count})
    env.close()


def _build(request: dict[str, Any]) -> tuple[EnvPoolEnv | GymnasiumEnv, Render]:
    settings = tuple((name, value) for name, value in request["settings"])
    width, height = request["size"]
    if request["backend"] == "envpool":
        cfg = EnvPool(request["id"], envs=1, threads=1, settings=settings, slim_assets=False)
        env = EnvPoolEnv(
            cfg, request["seed"], render_mode="rgb_array", render_width=width, render_height=height
        )
        first_camera = _is_mujoco(request) and "render_camera_id" not in dict(settings)
        return env, lambda: _render(env.pool, first_camera)
    settings = (*settings, ("render_mode", "rgb_array"))
    single = GymnasiumEnv(Gymnasium(request["id"], 1, "next_step", settings=settings), request["seed"])
    return single, lambda: np.asarray(single.vector.render()[0], dtype=np.uint8)


def _render(pool: Any, first_camera: bool) -> np.ndarray:  # noqa: ANN401 - EnvPool's classes are made at run time
    """Render a frame, preferably with the model's first camera, which follows a robot that walks away."""
    try:
        frames = pool.render(camera_id=0) if first_camera else pool.render()
    except IndexError:  # the model has no camera
        frames = pool.render()
    return np.asarray(frames[0], dtype=np.uint8)


if __name__ == "__main__":
    main()
