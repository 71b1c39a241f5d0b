import subprocess
import sys

import pytest

from troop.core.errors import BadInput, SetupProblem
from troop.envs import EnvPool, Gymnasium, Toy, family, list_envs, resolve
from troop.envs.envpool import catalog, lazy_import


def test_resolve_accepts_prefixed_and_bare_ids():
    pytest.importorskip("envpool")
    assert resolve("WalkerWalk-v1", 5) == EnvPool("WalkerWalk-v1", 5)
    assert resolve("envpool:Pong-v5") == EnvPool("Pong-v5")
    assert resolve("gym:CartPole-v1", 2) == Gymnasium("CartPole-v1", 2)
    assert resolve("toy:Chain", 3) == Toy("Chain", 3)
    assert resolve("Blackjack-v1").id == "Blackjack-v1"
    id = "gymnasium.envs.classic_control:PendulumEnv"
    assert resolve(id) == Gymnasium(id)
    with pytest.raises(BadInput, match=r"no module 'my\.module'"):
        resolve("my.module:Env")


@pytest.mark.parametrize(
    ("typo", "suggestion"),
    [
        ("WalkrWalk-v1", "WalkerWalk-v1"),
        ("envpool:HalfCheeta-v5", "HalfCheetah-v5"),
        ("gym:CartPol-v1", "CartPole-v1"),
        ("toy:Clok", "Clock"),
        ("walkerwalk-v1", "WalkerWalk-v1"),
    ],
)
def test_resolve_suggests_similar_ids(typo, suggestion):
    pytest.importorskip("envpool")
    with pytest.raises(BadInput, match=f"did you mean.*'{suggestion}'"):
        resolve(typo)


@pytest.mark.parametrize(
    ("id", "expected"),
    [
        ("WalkerWalk-v1", "dmc"),
        ("HalfCheetah-v5", "gym-mujoco"),
        ("G1JoystickFlatTerrain-v1", "playground"),
        ("MuJoCoPlayground/G1JoystickFlatTerrain-v1", "playground"),
        ("envpool:Pendulum-v1", "classic"),
        ("LunarLander-v3", "box2d"),
        ("Pong-v5", "atari"),
        ("BigfishEasy-v0", "procgen"),
        ("MiniGrid-Empty-5x5-v0", "minigrid"),
        ("Catch-v0", "toy-text"),
        ("D1Basic-v1", "vizdoom"),
        ("FetchReach-v4", "other"),
        ("toy:Clock", "toy"),
        ("gym:HalfCheetah-v5", "gymnasium"),
        ("my.module:Env", "gymnasium"),
    ],
)
def test_family_of_an_id(id, expected):
    pytest.importorskip("envpool")
    assert family(id) == expected


def test_list_envs_by_substring_and_by_glob():
    pytest.importorskip("envpool")
    assert ("WalkerWalk-v1", "envpool") in list_envs("walker")
    assert ("CartPole-v1", "gymnasium") in list_envs("cartpole-*")
    assert ("toy:Clock", "toy") in list_envs("")
    assert list_envs("nothing like it") == []


def test_cached_catalog_equals_the_registry_and_survives_a_damaged_file(tmp_path, monkeypatch):
    pytest.importorskip("envpool")
    from envpool.registration import registry

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):  # the second time it is read from the file
        catalog.modules.cache_clear()
        assert catalog.modules() == {id: entry[0] for id, entry in registry.specs.items()}
    (file,) = (tmp_path / "troop").iterdir()
    file.write_text("not JSON")
    catalog.modules.cache_clear()
    assert "WalkerWalk-v1" in catalog.modules()


def test_resolve_without_envpool(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    monkeypatch.setattr(catalog, "modules", dict)
    monkeypatch.setattr(lazy_import, "has_envpool", lambda: False)
    assert resolve("CartPole-v1") == Gymnasium("CartPole-v1")
    with pytest.raises(SetupProblem, match=r"pip install 'trooprl\[envpool\]'"):
        resolve("envpool:Pong-v5")


def test_importing_troop_envs_imports_no_backend():
    code = (
        "import sys, troop.envs; from troop.envs import resolve; resolve('toy:Clock');"
        "heavy = {'envpool', 'gymnasium', 'mujoco', 'imageio'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_lazy_import_loads_no_family_but_lists_all_tasks():
    pytest.importorskip("envpool")
    code = (
        "import sys; from troop.envs.envpool.lazy_import import import_envpool; lazy = import_envpool();"
        "import envpool.entry; loaded = [m for m in sys.modules if m.endswith(('_envpool', '_render'))];"
        "assert not loaded, loaded; names = lazy.list_all_envs();"
        "pool = lazy.make_gymnasium('CartPole-v1', num_envs=2); assert pool.reset()[0].shape == (2, 4);"
        "assert any('classic_control' in m for m in sys.modules) and 'envpool.jumanji' not in sys.modules;"
        "print(*sorted(names))"
    )
    plain = "import envpool; print(*sorted(envpool.list_all_envs()))"
    outputs = [
        subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, capture_output=True).stdout
        for script in (code, plain)
    ]
    assert outputs[0] == outputs[1]
