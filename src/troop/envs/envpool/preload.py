"""Importing this module imports EnvPool if it is available; the fork server imports it before it forks."""

import contextlib

from troop.envs.envpool.lazy_import import import_envpool

with contextlib.suppress(Exception):  # a process that uses EnvPool raises the error itself
    import_envpool()
