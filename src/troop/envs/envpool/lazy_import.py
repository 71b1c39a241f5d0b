"""Import of EnvPool without its task families: all of them take seconds to import, and a run uses one."""

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
    """Import EnvPool and return it; a family is imported when one of its tasks is built.

    Raises SetupProblem if EnvPool is missing or cannot be imported.
    """
    try:
        with _families_deferred():
            import envpool
    except ImportError as error:
        if not has_envpool():
            raise SetupProblem("EnvPool is not installed; try: pip install 'trooprl[envpool]'.") from error
        raise SetupProblem(f"EnvPool is installed but cannot be imported: {error}") from error
    # EnvPool declares bounds in double precision, and Gymnasium warns about each one that it rounds.
    warnings.filterwarnings("ignore", message=".*precision lowered by casting", category=UserWarning)
    module: ModuleType = envpool
    return module


def has_envpool() -> bool:
    """Return whether EnvPool is installed."""
    return importlib.util.find_spec("envpool") is not None


@contextlib.contextmanager
def _families_deferred() -> Iterator[None]:
    """While active, importing EnvPool runs only the `registration` module of each family.

    Unexecuted placeholder packages in `sys.modules` stand in for the families and are removed afterwards, so
    that the first use of a family imports it normally.
    """
    placeholders = {} if "envpool" in sys.modules else _placeholder_packages()
    sys.modules.update(placeholders)
    try:
        yield
    finally:
        for name, package in placeholders.items():
            if sys.modules.get(name) is package:
                del sys.modules[name]
            parent, _, last = name.rpartition(".")
            if getattr(sys.modules.get(parent), last, None) is package:
                delattr(sys.modules[parent], last)


def _placeholder_packages() -> dict[str, ModuleType]:
    """Return an unexecuted package for every folder of EnvPool that has a `registration` module."""
    packages: dict[str, ModuleType] = {}
    envpool_spec = importlib.util.find_spec("envpool")
    if envpool_spec is None or envpool_spec.origin is None:
        return packages
    root = Path(envpool_spec.origin).parent
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
