"""Token authentication of Ray: a private token for a local Ray, the token of the cluster otherwise."""

from __future__ import annotations

import functools
import importlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

from troop.core.errors import BadInput, SetupProblem
from troop.engines.private_folder import private_folder

TOKEN_HELP = "run `ray get-auth-token --generate` on the head node and copy ~/.ray/auth_token to every other"


def configure_authentication(address: str, insecure: bool) -> None:
    """Set the environment variables from which Ray reads its authentication mode and its token.

    Raises BadInput if RAY_AUTH_MODE disables tokens, SetupProblem if there is no token for a cluster.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "").lower()
    if insecure:
        if mode != "token":
            os.environ["RAY_AUTH_MODE"] = "disabled"
        return
    if mode not in ("", "token"):
        raise BadInput(f"RAY_AUTH_MODE is {mode!r}; unset it, or pass --engine.insecure.")
    os.environ["RAY_AUTH_MODE"] = "token"
    if _has_token():
        return
    if address != "local":
        raise SetupProblem(f"This machine has no Ray token: {TOKEN_HELP}, or pass --engine.insecure.")
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(_private_token())


def reload_ray_config() -> None:
    """Let Ray read its settings again; an earlier import of Ray read them before the token was set."""
    with suppress(ImportError, AttributeError):
        importlib.import_module("ray._raylet").Config.initialize("")


def _has_token() -> bool:
    if os.environ.get("RAY_AUTH_TOKEN"):
        return True
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(path).is_file() if path else (Path.home() / ".ray" / "auth_token").is_file()


@functools.cache  # Ray reads its token once per process
def _private_token() -> Path:
    path = private_folder() / "token"
    path.write_text(secrets.token_hex(32))
    path.chmod(0o600)
    return path
