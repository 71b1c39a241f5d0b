"""The process in which a filmed env lives; it asks its parent for every action."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import IO, Any

import numpy as np
import torch

from troop.core.env import Step
from troop.envs.envpool.adapter import EnvPool, EnvPoolEnv
from troop.envs.envpool.catalog import modules
from troop.envs.gymnasium.adapter import Gymnasium, GymnasiumEnv
from troop.envs.video.pipe import read_message, write_message

Draw = Callable[[], np.ndarray]


def main() -> None:
    """Film what the parent orders."""
    # Backends print to standard output; only messages may go there.
    to_parent = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from_parent = sys.stdin.buffer
    order, _ = read_message(from_parent)
    try:
        context = _open_gl(order)  # kept alive until the end
    except Exception as error:  # each GL backend fails in its own way
        write_message(to_parent, {"kind": "no_gl", "text": f"{type(error).__name__}: {error}"})
        return
    try:
        _film(order, from_parent, to_parent)
    except (EOFError, BrokenPipeError):
        return  # the parent lost interest
    except Exception as error:  # told to the parent, whatever it is
        write_message(to_parent, {"kind": "error", "text": f"{type(error).__name__}: {error}"})
    del context


def _open_gl(order: dict[str, Any]) -> Any:  # noqa: ANN401 - a mujoco.GLContext, if one is needed
    if not _is_mujoco(order):
        return None
    import mujoco

    context = mujoco.GLContext(*order["size"])
    context.make_current()
    return context


def _is_mujoco(order: dict[str, Any]) -> bool:
    return order["backend"] == "envpool" and modules().get(order["id"], "").startswith("envpool.mujoco")


def _film(order: dict[str, Any], from_parent: IO[bytes], to_parent: IO[bytes]) -> None:
    env, draw = _build(order)
    step: Step = env.reset(order["seed"])
    total, count = 0.0, 0
    for count in range(1, order["steps"] + 1):
        if (count - 1) % order["stride"] == 0:
            write_message(to_parent, {"kind": "frame"}, [draw()])
        arrays = [value.numpy() for value in step.obs.values()]
        write_message(to_parent, {"kind": "obs", "names": list(step.obs)}, arrays)
        _, (action,) = read_message(from_parent)
        step = env.step(torch.from_numpy(action))
        total += float(step.reward)
        if bool(step.terminated) or bool(step.truncated):
            break
    write_message(to_parent, {"kind": "end", "return": total, "steps": count})
    env.close()


def _build(order: dict[str, Any]) -> tuple[EnvPoolEnv | GymnasiumEnv, Draw]:
    settings = tuple((name, value) for name, value in order["settings"])
    width, height = order["size"]
    if order["backend"] == "envpool":
        cfg = EnvPool(order["id"], envs=1, threads=1, settings=settings, slim_assets=False)
        pool = EnvPoolEnv(
            cfg, order["seed"], "cpu", render_mode="rgb_array", render_width=width, render_height=height
        )
        return pool, lambda: _draw(pool.pool, _is_mujoco(order) and "render_camera_id" not in dict(settings))
    shown = (*settings, ("render_mode", "rgb_array"))
    single = GymnasiumEnv(Gymnasium(order["id"], 1, "next_step", settings=shown), order["seed"], "cpu")
    return single, lambda: np.asarray(single.vector.render()[0], dtype=np.uint8)


def _draw(pool: Any, follow: bool) -> np.ndarray:  # noqa: ANN401 - EnvPool's classes are made at run time
    """A picture, from the model's first camera if it has one: that one follows a robot that walks away."""
    try:
        picture = pool.render(camera_id=0) if follow else pool.render()
    except IndexError:
        picture = pool.render()
    return np.asarray(picture[0], dtype=np.uint8)


if __name__ == "__main__":
    main()
