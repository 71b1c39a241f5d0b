"""Fixtures of the documentation tests: an empty directory for each page and a finished run."""

import sys

import pytest
from page_blocks import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_ext"))


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """The directory of a short finished run, for pages that continue a run they did not start."""
    from page_runner import shortened

    from troop.cli.main import run

    path = tmp_path_factory.mktemp("template") / "run"
    with shortened():
        assert run(["train", "fasttd3", "--env", "Pendulum-v1", "--env-steps", "64", "--run", str(path)]) == 0
    return path


@pytest.fixture
def empty_directory(tmp_path, monkeypatch):
    """An empty current directory from which Python can import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path
