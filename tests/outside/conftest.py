"""The example package, installed into a directory of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from troop.core import user_code

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_algorithm"


@pytest.fixture(scope="session")
def installed_example(tmp_path_factory):
    """Install examples/own_algorithm with pip, without a network, and return the directory."""
    folder = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, folder / "source")
    flags = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *flags, "--target", str(folder / "site"), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder / "site"


@pytest.fixture
def munchausen(installed_example, tmp_path, monkeypatch):
    """The working directory; the package `munchausen` and its entry points are installed."""
    monkeypatch.setattr(sys, "path", [str(installed_example), *sys.path])
    monkeypatch.setenv("PYTHONPATH", ":".join([str(installed_example), *filter(None, sys.path)]))
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    forget()


def forget():
    """Forget the package, also one of this name that another test has imported, and its entry points."""
    user_code.entry_points.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "munchausen"]:
        del sys.modules[name]
