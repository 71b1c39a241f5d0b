"""Imported for its effect: EnvPool is loaded, in a process from which those that use it are forked."""

import contextlib

from troop.envs.envpool.lazy_import import import_envpool

with contextlib.suppress(Exception):  # whoever needs it will say so
    import_envpool()
