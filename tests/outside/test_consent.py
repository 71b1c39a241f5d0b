"""A run directory is data from a stranger: nothing is imported or called because a file names it."""

import json
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

import troop
from troop.api import make_experiment
from troop.cli.main import run
from troop.core.errors import BadInput
from troop.core.user_code import is_allowed
from troop.envs import Gymnasium
from troop.experiment import Experiment

MODULE = """
import pathlib
import gymnasium
import numpy as np
from gymnasium import spaces

pathlib.Path("imported").touch()


class Counter(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, limit=5, bonus=0.0):
        self.limit, self.bonus = limit, bonus

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        over = self.limit is not None and self.steps >= self.limit
        return np.zeros(2, np.float32), 1.0 + self.bonus, False, over, {}


class NoEnv:
    def __init__(self, **kwargs):
        pathlib.Path("called").touch()


def make_counter(limit=3):
    pathlib.Path("called").touch()
    return Counter(limit)


def make_annotated(limit: int = 4) -> gymnasium.Env:
    return Counter(limit)


def remove_all(**kwargs):
    pathlib.Path("called").touch()
"""


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """The working directory, with a module whose import and calls leave files."""
    (tmp_path / "stranger_code.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("stranger_code", None)


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory):
    """A small run directory, to be copied."""
    return train(tmp_path_factory.mktemp("toy") / "run", "toy:PointMass")


def train(path, env):
    troop.train("sac", env, envs=2, env_steps=40, run=path, quiet=True, evaluation__max_episode_steps=8)
    return path


def with_env(path, id, settings=()):
    """Let config.json name another env, as an attacker would."""
    config = json.loads((path / "config.json").read_text())
    config["env"] = {"kind": "Gymnasium", "id": id, "envs": 2, "settings": [list(item) for item in settings]}
    (path / "config.json").write_text(json.dumps(config))


VERBS = [["eval"], ["play"], ["export"], ["resume", "--env-steps", "60"]]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    ("id", "settings"),
    [
        ("os:system", [("command", "touch called")]),
        ("subprocess:getoutput", [("cmd", "touch called")]),
        ("stranger_code:Counter", []),
        ("stranger_code:remove_all", []),
        ("{cwd}/stranger_code.py:Counter", []),
        ("troop.cli.main:run", []),
    ],
)
@pytest.mark.reliability("C4")
def test_env_named_by_a_file_is_neither_imported_nor_called(stranger, toy_run, verb, id, settings, capsys):
    path = Path(shutil.copytree(toy_run, stranger / "run"))
    with_env(path, id.format(cwd=stranger), settings)
    assert run([verb[0], str(path), *verb[1:]]) == 2
    error = capsys.readouterr().err
    assert error.startswith("troop: ") and len(error.strip().splitlines()) == 1
    module = id.format(cwd=stranger).rpartition(":")[0]
    assert module in error and ("--allow" in error) == (module not in ("os", "subprocess"))
    assert not (stranger / "imported").exists() and not (stranger / "called").exists()
    with pytest.raises(BadInput):
        troop.load_policy(path)


@pytest.mark.parametrize("field", ["algorithm", "system", "engine", "env"])
@pytest.mark.parametrize(
    "kind", ["stranger_code:NoEnv", "subprocess:Popen", "importlib.machinery:ModuleSpec"]
)
@pytest.mark.reliability("C4")
def test_classes_named_by_a_file_are_not_imported(stranger, field, kind):
    config = make_experiment("sac", "toy:PointMass").to_dict() | {field: {"kind": kind, "args": ["true"]}}
    with pytest.raises(BadInput, match="outside Troop" if "stranger" in kind else "standard library"):
        Experiment.from_dict(config)
    assert not (stranger / "imported").exists()
    if "stranger" in kind:
        with pytest.raises(BadInput, match="not a dataclass"):
            Experiment.from_dict(config, allow=["stranger_code"])
        assert not (stranger / "called").exists()


@pytest.mark.parametrize("place", ["list", "dotted key"])
@pytest.mark.reliability("C4")
def test_an_allowed_name_does_not_hide_another_one_at_the_same_path(stranger, place):
    (stranger / "trusted_code.py").touch()
    config = make_experiment("sac", "toy:PointMass").to_dict()
    bad, good = {"kind": "stranger_code:NoEnv"}, {"kind": "trusted_code:Config"}
    if place == "list":
        config["env"]["faults"] = [bad, good]
    else:
        config["system"]["schedule"]["overlap"] = bad
        config["system"]["schedule.overlap"] = good
    with pytest.raises(BadInput, match="stranger_code:NoEnv as "):
        Experiment.from_dict(config, allow=["trusted_code"])
    assert not (stranger / "imported").exists()


@pytest.mark.reliability("C4")
def test_networks_named_by_a_file_are_not_imported(stranger):
    config = make_experiment("sac", "toy:PointMass").to_dict()
    config["algorithm"]["net"] = "stranger_code:remove_all"
    with pytest.raises(BadInput, match=r"stranger_code:remove_all as algorithm\.net"):
        Experiment.from_dict(config)
    assert not (stranger / "imported").exists()


def test_allowed_module_gives_its_networks_but_not_its_other_callables(stranger):
    with open("stranger_code.py", "a") as file:
        file.write("from torch import nn\ndef make_net(shape, outputs) -> nn.Module:\n    ...\n")
    config = make_experiment("sac", "toy:PointMass").to_dict()
    for name in ("remove_all", "NoEnv", "pathlib"):
        config["algorithm"]["net"] = f"stranger_code:{name}"
        with pytest.raises(BadInput, match=r"not annotated to return a torch\.nn\.Module"):
            Experiment.from_dict(config, allow=["stranger_code"])
    assert Experiment.from_dict(config, allow=["stranger_code:pathlib"])  # the user's own decision
    config["algorithm"]["net"] = "stranger_code:make_net"
    assert Experiment.from_dict(config, allow=["stranger_code"])
    assert not (stranger / "called").exists()


@pytest.mark.parametrize("entry", ["os", "os:system", "subprocess", "importlib.machinery"])
def test_standard_library_is_never_allowed(stranger, toy_run, entry, capsys):
    path = Path(shutil.copytree(toy_run, stranger / "run"))
    with_env(path, "os:system", [("command", "touch called")])
    assert run(["eval", str(path), "--allow", entry]) == 2
    assert "standard library" in capsys.readouterr().err
    with pytest.raises(BadInput, match="standard library"):
        make_experiment("sac", "os:system")
    assert not (stranger / "called").exists()


def test_allowed_module_gives_its_envs_but_not_its_other_callables(stranger, capsys):
    path = train(stranger / "run", "stranger_code:Counter")
    assert run(["eval", str(path), "--episodes", "2", "--allow", "stranger_code", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["return_mean"] == 5
    for id, message in [
        ("stranger_code:remove_all", "not annotated to return a gymnasium.Env"),
        ("stranger_code:make_counter", "not annotated to return a gymnasium.Env"),
        ("stranger_code:NoEnv", "no subclass of gymnasium.Env"),
        ("stranger_code:pathlib", "neither registers"),
    ]:
        with_env(path, id)
        assert run(["eval", str(path), "--allow", "stranger_code"]) == 2
        assert message in capsys.readouterr().err
    assert not (stranger / "called").exists()
    for id, allow, length in [
        ("stranger_code:make_annotated", "stranger_code", 4),
        ("stranger_code:make_counter", "stranger_code:make_counter", 3),
    ]:
        with_env(path, id)
        assert troop.evaluate(path, episodes=2, allow=[allow])["length_mean"] == length


def test_env_given_anew_replaces_the_one_of_the_file(stranger, capsys):
    path = train(stranger / "run", "stranger_code:Counter")
    with_env(path, "os:system", [("command", "touch called")])
    assert run(["eval", str(path), "--episodes", "2", "--env", "stranger_code:make_counter", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["length_mean"] == 3
    import stranger_code

    assert troop.evaluate(path, episodes=2, env=stranger_code.Counter)["length_mean"] == 5
    assert troop.load_policy(path, env=stranger_code.Counter).spec.envs == 2


def test_the_same_env_given_anew_keeps_its_settings(stranger):
    path = stranger / "run"
    fields = {"env__settings": (("limit", 4),), "evaluation__max_episode_steps": 8}
    troop.train("sac", "stranger_code:Counter", envs=2, env_steps=40, run=path, quiet=True, **fields)
    import stranger_code

    for env in ("stranger_code:Counter", stranger_code.Counter):
        assert troop.evaluate(path, episodes=2, env=env)["length_mean"] == 4
    config = Gymnasium("stranger_code:Counter", settings=(("limit", 6),))
    assert troop.evaluate(path, episodes=2, env=config)["length_mean"] == 6


def test_resume_needs_the_same_consent(stranger, capsys):
    path = train(stranger / "run", "stranger_code:Counter")
    assert run(["resume", str(path), "--env-steps", "80"]) == 2
    assert "--allow stranger_code" in capsys.readouterr().err
    assert run(["resume", str(path), "--env-steps", "80", "--allow", "stranger_code"]) == 0
    assert troop.resume(path, env_steps=120, allow=["stranger_code"], quiet=True).env_steps >= 120


def test_cluster_named_by_a_file_is_not_joined(stranger, toy_run, capsys):
    path = Path(shutil.copytree(toy_run, stranger / "run"))
    config = json.loads((path / "config.json").read_text())
    config["engine"] = {"kind": "Ray", "address": "ray://198.51.100.7:10001"}
    (path / "config.json").write_text(json.dumps(config))
    assert run(["resume", str(path), "--env-steps", "80"]) == 2
    assert "--allow ray://198.51.100.7:10001" in capsys.readouterr().err


def test_folder_named_by_a_file_is_not_written(stranger, toy_run, capsys):
    path, folder = Path(shutil.copytree(toy_run, stranger / "run")), stranger / "elsewhere"
    config = json.loads((path / "config.json").read_text())
    config["system"]["replay_dir"] = str(folder)
    (path / "config.json").write_text(json.dumps(config))
    assert run(["resume", str(path), "--env-steps", "80"]) == 2
    assert f"--allow {folder}" in capsys.readouterr().err
    assert not folder.exists()
    assert run(["resume", str(path), "--env-steps", "80", "--allow", str(folder)]) == 0


@pytest.mark.parametrize("where", ["experiment", "flags", "variants"])
def test_comparison_of_a_stranger_writes_into_no_other_folder(stranger, where, monkeypatch, capsys):
    from troop.compare.plan import ComparisonPlan

    folder, experiment = str(stranger / "elsewhere"), make_experiment("sac", "toy:PointMass").to_dict()
    if where == "experiment":
        experiment["system"]["replay_dir"] = folder
    plan = ComparisonPlan(
        env="toy:PointMass",
        minutes=None,
        env_steps=40,
        seeds=1,
        thresholds=(),
        machine={},
        recipes={"sac": experiment},
        flags=("--replay-dir", folder) if where == "flags" else (),
        variants={"mine": ("td3", f"--system.replay-dir={folder}")} if where == "variants" else {},
    )
    (stranger / "comparison").mkdir()
    plan.write(stranger / "comparison")
    monkeypatch.setattr("troop.compare.session.Session.run", lambda self: 0)
    assert run(["compare", "--run", str(stranger / "comparison")]) == 2
    assert f"--allow {folder}" in capsys.readouterr().err
    run(["compare", "--run", str(stranger / "comparison"), "--allow", folder])
    assert "--allow" not in capsys.readouterr().err


@pytest.mark.parametrize("where", ["experiment", "env", "flags", "id", "variants"])
@pytest.mark.reliability("C4")
def test_comparison_of_a_stranger_imports_nothing(stranger, where, capsys):
    from troop.compare.plan import ComparisonPlan

    experiment = make_experiment("sac", "toy:PointMass").to_dict()
    fields = {"env": "toy:PointMass", "flags": (), "variants": {}}
    if where == "experiment":
        experiment["env"] = {"kind": "Gymnasium", "id": "stranger_code:Counter"}
    elif where == "id":
        fields |= {"env": "gym:Pendulum-v1", "flags": ("--env.id", "stranger_code:Counter")}
    else:
        fields[where] = {
            "env": "stranger_code:Counter",
            "flags": ("--seed=1", "--algorithm=stranger_code:NoEnv"),
            "variants": {"mine": ("stranger_code:RECIPE", "--gamma", "0.9")},
        }[where]
    plan = ComparisonPlan(
        minutes=None, env_steps=40, seeds=1, thresholds=(), machine={}, recipes={"sac": experiment}, **fields
    )
    (stranger / "comparison").mkdir()
    plan.write(stranger / "comparison")
    assert run(["compare", "td3", "--run", str(stranger / "comparison")]) == 2
    assert "--allow stranger_code" in capsys.readouterr().err
    assert not (stranger / "imported").exists()


@pytest.mark.parametrize("where", ["experiment", "env"])
def test_comparison_calls_no_other_function_of_an_allowed_module(stranger, where, capsys):
    from troop.compare.plan import ComparisonPlan

    id, experiment = "stranger_code:remove_all", make_experiment("sac", "toy:PointMass").to_dict()
    if where == "experiment":
        experiment["env"] = {"kind": "Gymnasium", "id": id}
    env = id if where == "env" else "toy:PointMass"
    plan = ComparisonPlan(
        env,
        minutes=None,
        env_steps=40,
        seeds=1,
        thresholds=(),
        machine={},
        flags=(),
        recipes={"sac": experiment},
    )
    (stranger / "comparison").mkdir()
    plan.write(stranger / "comparison")
    assert run(["compare", "td3", "--run", str(stranger / "comparison"), "--allow", "stranger_code"]) == 2
    assert "not annotated to return a gymnasium.Env" in capsys.readouterr().err
    assert not (stranger / "called").exists()


@pytest.mark.parametrize("where", ["experiment", "flags", "variants"])
@pytest.mark.parametrize("address", ["198.51.100.7:6379", "cluster.example:6379", "ray://198.51.100.7:10001"])
@pytest.mark.reliability("C4")
def test_comparison_of_a_stranger_joins_no_cluster(stranger, where, address, monkeypatch, capsys):
    from troop.compare.plan import ComparisonPlan

    engine, flags = {"kind": "Ray", "address": address}, ("--engine", "ray", f"--engine.address={address}")
    experiment = make_experiment("sac", "toy:PointMass").to_dict()
    plan = ComparisonPlan(
        env="toy:PointMass",
        minutes=None,
        env_steps=40,
        seeds=1,
        thresholds=(),
        machine={},
        recipes={"sac": experiment | ({"engine": engine} if where == "experiment" else {})},
        flags=flags if where == "flags" else (),
        variants={"mine": ("td3", *flags)} if where == "variants" else {},
    )
    (stranger / "comparison").mkdir()
    plan.write(stranger / "comparison")
    monkeypatch.setattr("troop.compare.session.Session.run", lambda self: 0)
    assert run(["compare", "--run", str(stranger / "comparison")]) == 2
    assert f"--allow {address.partition(':6379')[0]}" in capsys.readouterr().err
    run(["compare", "--run", str(stranger / "comparison"), "--allow", address])
    assert "--allow" not in capsys.readouterr().err


def test_suite_of_a_stranger_imports_nothing(stranger, capsys):
    folder = stranger / "suite"
    folder.mkdir()
    for suite in ("stranger_code:Counter", None):
        content = {"suite": suite, "tasks": ["stranger_code:Counter"], "left_out": {}, "version": 1}
        (folder / "suite.json").write_text(json.dumps(content))
        assert run(["suite", "--run", str(folder), "--recipes", "sac"]) == 2
    assert not (stranger / "imported").exists()


@pytest.mark.parametrize(
    ("name", "allow", "expected"),
    [
        ("my_pkg.envs:A", "my_pkg", True),
        ("my_pkg.envs:A", "my_pkg.envs", True),
        ("my_pkg.envs:A", "my_pkg.envs:A", True),
        ("my_pkg.envs:A", "my_pkg.envs:B", False),
        ("my_pkg_evil:A", "my_pkg", False),
        ("my_pkg:A", "my_pkg.envs", False),
        ("/a/b/file.py:A", "/a/b/file.py", True),
        ("/a/b/file.py:A", "/a/b/../b/file.py", True),
        ("/a/b/file.py:A", "/a/b", False),
        ("/a/b/file.py:A", "file", False),
        ("/a/evil/file.py:A", "/a/b/file.py", False),
    ],
)
def test_allow_covers_packages_modules_files_and_names(name, allow, expected):
    assert is_allowed(name, [allow]) is expected


@pytest.mark.parametrize(
    "id", ["a b:c", "stranger_code:", ":x", "x:y:z", "stranger_code:a\nb", "../x:y", "\0.py:x"]
)
def test_malformed_names_are_reported_in_one_sentence(stranger, toy_run, id, capsys):
    path = Path(shutil.copytree(toy_run, stranger / "run"))
    with_env(path, id)
    assert run(["eval", str(path), "--allow", "stranger_code"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
