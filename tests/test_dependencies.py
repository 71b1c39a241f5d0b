"""Lowest versions of dependencies: those with known holes are excluded."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Versions before these execute data or expose ports: CVE-2025-32434, CVE-2026-24747 (torch), CVE-2025-62593,
# CVE-2026-27482 (Ray); those of onnx write outside of the folder of a model (CVE-2025-51480).
SAFE = {"torch": (2, 10), "ray": (2, 54), "onnx": (1, 21)}
# Not dependencies; if one becomes a dependency, its lowest safe version is this.
OPTIONAL = {"wandb": (0, 29), "starlette": (1, 3, 1)}
NEVER = {"aim", "dm-reverb", "dill", "cloudpickle", "joblib", "hydra-core"}


def lowest_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    requirements = [*project["dependencies"], *(name for extra in extras for name in extra)]
    versions = {}
    for requirement in requirements:
        name, operator, version = re.match(
            r"([\w-]+)(?:\[[\w,]+\])?(?:([<>=]+)([\d.]+))?", requirement
        ).groups()
        number = tuple(map(int, version.split("."))) if operator == ">=" else ()
        versions[name.lower()] = number
    return versions


@pytest.mark.reliability("X14")
def test_dependencies_exclude_versions_with_known_holes():
    versions = lowest_versions()
    for name, safe in SAFE.items():
        assert versions[name] >= safe
    for name, safe in OPTIONAL.items():
        assert name not in versions or versions[name] >= safe
    assert not NEVER & set(versions)


@pytest.mark.reliability("X14")
def test_pinned_versions_are_not_older_than_the_lowest_ones():
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.M))
    for name, lowest in lowest_versions().items():
        if name in pinned and lowest:
            assert tuple(map(int, pinned[name].split("."))) >= lowest, name
