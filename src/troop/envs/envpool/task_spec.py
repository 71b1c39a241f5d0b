"""EnvPool's own spec of a task, with checked settings."""

from __future__ import annotations

from typing import Any

from troop.core.config import suggest
from troop.core.errors import BadInput, SetupProblem
from troop.envs.envpool.lazy_import import import_envpool
from troop.envs.settings import Setting
from troop.envs.unknown_env import unknown_env

RENDER_OPTIONS = {"render_mode", "from_pixels", "render_width", "render_height", "render_camera_id"}
# Options that the adapter sets itself; `EnvPool.settings` may not contain them.
ADAPTER_OPTIONS = (
    "num_envs",
    "batch_size",
    "num_threads",
    "seed",
    "env_seed",
    "gym_reset_return_info",
    "max_num_players",
)


def envpool_spec(id: str, settings: tuple[Setting, ...]) -> Any:  # noqa: ANN401
    """Return EnvPool's own spec of a task with these settings.

    Raises BadInput for an unknown id or setting, SetupProblem if a library that the task needs is missing.
    """
    envpool = import_envpool()
    if id not in envpool.list_all_envs():
        raise unknown_env(id, envpool.list_all_envs())
    try:
        known = set(envpool.make_spec(id).config._fields) | RENDER_OPTIONS
    except ImportError as error:
        raise SetupProblem(f"EnvPool task '{id}' needs a library that is not installed: {error}") from error
    for name, _ in settings:
        if name in ADAPTER_OPTIONS or name not in known:
            similar = suggest(name, known - set(ADAPTER_OPTIONS), 1)
            hint = f"; did you mean '{similar[0]}'?" if similar else "."
            raise BadInput(f"EnvPool task '{id}' has no setting '{name}'{hint}")
    try:
        return envpool.make_spec(id, **dict(settings))
    except (RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"EnvPool rejects the settings {dict(settings)} of '{id}': {error}") from error
