"""The rules of the house (docs/architecture.md), read from the source."""

import ast
import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import troop

ROOT = Path(troop.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in FILES}
MAY_IMPORT = {
    "core": set(),
    "functional": set(),
    "nets": set(),
    "replay": {"core"},
    "envs": {"core"},
    "algorithms": {"core", "functional", "nets"},
    "roles": {"core"},
    "systems": {"core", "replay", "roles"},
    "engines": {"core", "logs"},
    "logs": set(),
    "runs": {"core"},
}
FREE = {
    "cli",
    "recipes",
    "bench",
    "compare",
    "experiment",
    "run_recorder",
    "api",
    "__init__",
    "__main__",
}  # may import everything
ONLY_UNDER = {
    "ray": "engines",
    "multiprocessing": "engines",
    "torch.distributed": "engines",
    "gymnasium": "envs",
    "envpool": "envs",
}
PURE = ("algorithms", "functional", "nets")
NO_IO = {"time", "logging", "os", "subprocess", "threading", "socket", "io", "pathlib", "sys"}


def room(path):
    """The folder of a file, or its own name if it stands at the top."""
    return path.split("/")[0].removesuffix(".py")


def imports(path):
    """Every module named by an import statement, and `module.name` for from-imports."""
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def definitions(path, kinds=(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
    return [node for node in ast.walk(TREES[path]) if isinstance(node, kinds)]


def starts(name, module):
    return name == module or name.startswith(f"{module}.")


def test_every_room_is_known():
    assert {room(path) for path in TREES} <= set(MAY_IMPORT) | FREE


@pytest.mark.parametrize("path", [p for p in TREES if room(p) in MAY_IMPORT])
def test_imports_point_only_where_the_house_allows(path):
    allowed = MAY_IMPORT[room(path)] | {room(path)}
    for name in imports(path):
        if starts(name, "troop"):
            assert name.split(".")[1:2][0] in allowed, f"{path} imports {name}"
        elif room(path) == "core":
            known = name.split(".")[0]
            assert known in {"torch", "numpy"} | sys.stdlib_module_names, f"{path} imports {name}"


@pytest.mark.parametrize("path", TREES)
def test_processes_and_simulators_stay_in_their_rooms(path):
    for name in imports(path):
        for module, home in ONLY_UNDER.items():
            assert not starts(name, module) or room(path) in (home, "bench"), f"{path} imports {name}"
        assert room(path) not in PURE or name.split(".")[0] not in NO_IO, f"{path} imports {name}"


@pytest.mark.parametrize("path", TREES)
def test_nothing_dangerous_is_called(path):
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = (
                [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            )
            assert not {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"} & set(named), path
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in {"eval", "exec", "torch.load", "torch.save", "yaml.load", "os.system"}, (
            f"{path}: {called}"
        )
        for keyword in node.keywords:
            assert not (keyword.arg in {"shell", "allow_pickle"} and ast.unparse(keyword.value) == "True"), (
                f"{path}: {called}"
            )
        if room(path) in PURE:
            assert called not in {"print", "open", "input"}, f"{path}: {called}"


@pytest.mark.parametrize("path", TREES)
def test_files_and_functions_fit_on_their_pages(path):
    assert len((ROOT / path).read_text().splitlines()) <= 400
    for node in definitions(path, (ast.FunctionDef, ast.AsyncFunctionDef)):
        lines = node.end_lineno - node.lineno + 1
        limit = 50 if room(path) == "systems" and node.name == "program" else 80
        assert lines <= limit, f"{path}: {node.name} has {lines} lines"


@pytest.mark.parametrize("path", TREES)
def test_names_say_what_things_are(path):
    vague = {"utils", "util", "helpers", "helper", "common", "base", "manager"}
    names = [Path(path).stem, *(node.name for node in definitions(path))]
    assert not vague & {name.lower().strip("_") for name in names}
    assert not [name for name in names if name.endswith(("Manager", "Base", "Utils", "_v2"))]


@pytest.mark.parametrize("path", [p for p in TREES if not p.endswith("__init__.py")])
def test_everything_public_says_what_it_is(path):
    assert ast.get_docstring(TREES[path]), f"{path} has no docstring"
    public = [TREES[path], *(n for n in TREES[path].body if isinstance(n, ast.ClassDef))]
    for holder in public:
        for node in holder.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path}: {node.name} has no docstring"


def configs():
    for path in TREES:
        if room(path) in {"core", "algorithms", "envs", "systems", "roles", "engines", "replay"}:
            module = importlib.import_module(
                "troop." + path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            )
            for kind in vars(module).values():
                if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__:
                    yield kind


def test_defaults_lie_inside_their_bounds():
    checked = 0
    for kind in configs():
        for field in dataclasses.fields(kind):
            value, bounds = field.default, field.metadata
            for number in value if isinstance(value, tuple) else (value,):
                if not bounds or number is None:
                    continue
                where = f"{kind.__name__}.{field.name} = {number}"
                assert number >= bounds.get("low", number) and number <= bounds.get("high", number), where
                assert "above" not in bounds or number > bounds["above"], where
                assert "below" not in bounds or number < bounds["below"], where
                checked += 1
    assert checked > 30


def test_importing_troop_imports_nothing_heavy():
    heavy = ("torch", "gymnasium", "envpool", "numpy", "ray")
    code = f"import sys, troop; print([name for name in {heavy} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
