"""Code outside Troop, named as `package.module:name` or `path/to/file.py:name`, and the consent to import it.

A name that the user gives, on the command line or as an argument in Python, is imported. A name in a file of
a run directory is imported only if the user allows its module: the directory may come from a stranger.
Modules of the standard library are never imported by name.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from troop.core.config import suggest
from troop.core.errors import BadInput

ENTRY_POINTS = ("troop.recipes", "troop.algorithms")
_NAME = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*|[^\0:]*[^\0:/]\.py):(?P<attribute>[\w./-]+)")
_importing: list[str] = []  # modules whose import has not ended
_imported_files: dict[str, str] = {}  # module name -> absolute path, of modules named by their file


def is_code_name(text: str) -> bool:
    """Whether `text` has the form `module:name` or `file.py:name`."""
    return _NAME.fullmatch(text) is not None and text.isprintable()


def split(name: str) -> tuple[str, str]:
    """Return module and attribute of a name; a file becomes an absolute path. BadInput if malformed."""
    match = _NAME.fullmatch(name)
    if match is None or not name.isprintable():
        raise BadInput(f"{name[:100]!r} is not of the form package.module:name or path/file.py:name.")
    return _absolute(match["module"]), match["attribute"]


def absolute_name(name: str) -> str:
    """Return `name` with the absolute path of its file, so that it holds in every working directory."""
    return ":".join(split(name))


def _absolute(module: str) -> str:
    return str(Path(module).resolve()) if module.endswith(".py") else module


def load(name: str) -> Any:  # noqa: ANN401 - any object
    """Import the module of `name` and return the object; BadInput if there is none."""
    module_name, attribute = split(name)
    module = import_module(module_name)
    if not hasattr(module, attribute):
        similar = suggest(attribute, vars(module), 1)
        hint = f"; did you mean '{similar[0]}'?" if similar else "."
        raise BadInput(f"Module '{module_name}' has no '{attribute}'{hint}")
    return getattr(module, attribute)


def import_module(name: str) -> ModuleType:
    """Import a module by its dotted name or the absolute path of its file.

    Modules in the working directory can be imported, but do not shadow installed ones. Raises BadInput for a
    module of the standard library, one that does not exist or one that raises.
    """
    _reject_standard_library(name)
    if name.endswith(".py"):
        return _import_file(Path(name))
    directory = os.getcwd()
    if directory not in sys.path and "" not in sys.path:
        sys.path.append(directory)
    return _import(name, f"There is no module '{name}' in '{directory}' or among the installed packages.")


def _import_file(path: Path) -> ModuleType:
    main = sys.modules.get("__main__")
    if main is not None and _is_file(main, path):  # the running script: importing it would run it again
        return main
    name = path.stem
    if not path.is_file():
        raise BadInput(f"There is no file '{path}'.")
    if not name.isidentifier():
        raise BadInput(f"'{path}' cannot be imported: '{name}' is not a module name; rename the file.")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as `python FILE` does
    module = _import(name, f"There is no file '{path}'.")
    if not _is_file(module, path):
        raise BadInput(f"'{path}' cannot be imported: another module is named '{name}'; rename the file.")
    _imported_files[name] = str(path)
    return module


def _is_file(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path


def _import(name: str, missing: str) -> ModuleType:
    try:
        _importing.append(name)
        return importlib.import_module(name)
    except BadInput:  # a run during the import
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise BadInput(missing) from error
        raise BadInput(f"Module '{name}' cannot be imported: {describe(error)}") from error
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise BadInput(f"Module '{name}' cannot be imported: {describe(error)}") from error
    finally:
        _importing.pop()


def reject_run_during_import() -> None:
    """Raise BadInput if a script starts a run while it is imported, which every process of a run does again.

    Without this, a script that is not guarded would start processes without end.
    """
    processes = sys.modules.get("multiprocessing.process")  # loaded in a process that it started
    imports_script = processes is not None and getattr(processes.current_process(), "_inheriting", False)
    if _importing or imports_script:
        script = f"Module '{_importing[-1]}'" if _importing else "The script"
        raise BadInput(
            f'{script} starts a run when it is imported; put this call below `if __name__ == "__main__":`.'
        )


def _reject_standard_library(module: str) -> None:
    if module.endswith(".py"):
        path, library = Path(module), Path(sysconfig.get_path("stdlib")).resolve()
        inside = path.is_relative_to(library) and not {"site-packages", "dist-packages"} & set(path.parts)
        standard = inside or path.stem in sys.stdlib_module_names
    else:
        standard = module.partition(".")[0] in sys.stdlib_module_names
    if standard:
        raise BadInput(f"'{module}' is a module of the standard library, which cannot be named here.")


def describe(error: BaseException) -> str:
    """Return type, message, file and line of an error of the user's code."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})."
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    location = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{location}."


def name_of(value: Any) -> str:  # noqa: ANN401 - a class or function
    """Return the name by which other processes and later commands import a class or function.

    Raises BadInput if it is not at the top level of its module.
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    loaded = sys.modules.get(module) if isinstance(module, str) else None
    if loaded is None or getattr(loaded, name, None) is not value:
        raise BadInput(
            f"{name or value!r} cannot be imported by name; define it at the top level of a module or script."
        )
    file = getattr(loaded, "__file__", None)
    path = str(Path(file).resolve()) if file else ""
    by_file = bool(path) and (module == "__main__" or _imported_files.get(str(module)) == path)
    return f"{path if by_file else module}:{name}"


def is_allowed(name: str, allow: Iterable[str]) -> bool:
    """Whether one of `allow` covers `name`: a package, a module, a file, a full name; or an entry point does.

    An installed package that registers the name as an entry point of Troop is a plug-in that the user chose.
    """
    module, attribute = split(name)
    for entry in allow:
        if is_code_name(entry):
            if absolute_name(entry) == f"{module}:{attribute}":
                return True
        elif module == _absolute(entry) or module.startswith(f"{entry}."):
            return True
    return any(name in entry_points(group).values() for group in ENTRY_POINTS)


def is_fully_allowed(name: str, allow: Iterable[str]) -> bool:
    """Whether one of `allow` is the full name `module:name`, not only its module or package."""
    return absolute_name(name) in [absolute_name(entry) for entry in allow if is_code_name(entry)]


def return_annotation(function: Any) -> object:  # noqa: ANN401 - any callable
    """Return the annotated result of a function; None if it has none or it cannot be resolved."""
    try:
        return get_type_hints(function).get("return")
    except Exception:  # an annotation that names something undefined
        return None


def require_allowed(names: Iterable[tuple[str, str]], allow: Iterable[str]) -> None:
    """Raise BadInput unless `allow` covers all `names`, each given with the field that holds it."""
    names, allow = tuple(names), tuple(allow)
    for entry in allow:
        _reject_standard_library(split(entry)[0] if is_code_name(entry) else _absolute(entry))
    for _, name in names:
        _reject_standard_library(split(name)[0])
    refused = [(field, name) for field, name in names if not is_allowed(name, allow)]
    if not refused:
        return
    found = ", ".join(f"{name} as {field}" for field, name in refused)
    modules = list(dict.fromkeys(split(name)[0] for _, name in refused))
    flags = " ".join(f"--allow {module}" for module in modules)
    raise BadInput(
        f"The run needs code outside Troop: {found}; if you trust this code, add {flags} "
        f"(in Python allow={modules!r})."
    )


@functools.cache
def entry_points(group: str) -> dict[str, str]:
    """Return name and `module:name` of every entry point of a group among the installed packages."""
    return {point.name: point.value for point in importlib.metadata.entry_points(group=group)}
