"""EnvPool without its families: importing all of them takes seconds, a run wants one."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from troop.core.errors import SetupProblem


def import_envpool() -> ModuleType:
    """EnvPool, or a SetupProblem that says how to get it; a family is imported when a task of it is made."""
    try:
        with _families_put_off():
            import envpool
    except ImportError as error:
        if not has_envpool():
            raise SetupProblem("EnvPool is not installed; try: pip install 'trooprl[envpool]'.") from error
        raise SetupProblem(f"EnvPool is installed but cannot be imported: {error}") from error
    # EnvPool's spaces have bounds in double precision, and Gymnasium warns of every one it rounds.
    warnings.filterwarnings("ignore", message=".*precision lowered by casting", category=UserWarning)
    module: ModuleType = envpool
    return module


def has_envpool() -> bool:
    """Whether EnvPool is installed."""
    return importlib.util.find_spec("envpool") is not None


@contextlib.contextmanager
def _families_put_off() -> Iterator[None]:
    """Inside, of a family's package only `registration` is executed, which names its tasks."""
    waiting = {} if "envpool" in sys.modules else _packages()
    sys.modules.update(waiting)
    try:
        yield
    finally:
        for name, package in waiting.items():
            if sys.modules.get(name) is package:
                del sys.modules[name]
            parent, _, last = name.rpartition(".")
            if getattr(sys.modules.get(parent), last, None) is package:
                delattr(sys.modules[parent], last)


def _packages() -> dict[str, ModuleType]:
    """A package for every family, found but not executed."""
    packages: dict[str, ModuleType] = {}
    found = importlib.util.find_spec("envpool")
    if found is None or found.origin is None:
        return packages
    root = Path(found.origin).parent
    for path in root.rglob("registration.py"):
        if (folder := path.parent) == root:
            continue
        name = ".".join(("envpool", *folder.relative_to(root).parts))
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is not None:
            packages[name] = importlib.util.module_from_spec(spec)
    return packages
