import subprocess
import sys
from pathlib import Path

import pytest
import torch

from troop.envs import EnvPool
from troop.envs.envpool import slim_assets as module

envpool = pytest.importorskip("envpool")


@pytest.mark.parametrize("id", ["WalkerWalk-v1", "G1JoystickFlatTerrain-v1"])
def test_slim_and_stock_give_the_same_numbers(id):
    slim, stock = EnvPool(id, 2, 1).make(0), EnvPool(id, 2, 1, slim_assets=False).make(0)
    assert slim.env._plan.base_path != stock.env._plan.base_path
    one, two = slim.reset(0), stock.reset(0)
    random = torch.Generator().manual_seed(0)
    for _ in range(50):
        assert torch.equal(one.reward, two.reward)
        assert all(torch.equal(one.obs[name], two.obs[name]) for name in one.obs)
        action = torch.rand(2, slim.spec.action.size, generator=random) * 2 - 1
        one, two = slim.step(action), stock.step(action)
    slim.close()
    stock.close()


def _entry(id):
    from envpool.registration import registry

    path, _, kwargs = registry.specs[id]
    return path, kwargs["base_path"]


def test_two_processes_building_at_once_agree(tmp_path):
    code = (
        "import sys; from pathlib import Path; from troop.envs.envpool.slim_assets import _slim_copy;"
        "print(_slim_copy(Path(sys.argv[1]), 'mujoco/assets_dmc'))"
    )
    _, stock = _entry("WalkerWalk-v1")
    environment = {**__import__("os").environ, "XDG_CACHE_HOME": str(tmp_path)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, stock], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = {process.communicate()[0].strip() for process in both}
    assert len(said) == 1 and Path(said.pop()).is_dir()
    assert len(list((tmp_path / "troop").iterdir())) == 1


def test_an_unwritable_cache_means_stock_and_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    path, stock = _entry("WalkerWalk-v1")
    assert module.slim_base_path("WalkerWalk-v1", path, stock) == stock
    assert "stock" in caplog.text


def test_a_copy_that_differs_or_does_not_load_is_not_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path, stock = _entry("WalkerWalk-v1")
    copy = module._slim_copy(Path(stock), "mujoco/assets_dmc")
    model = copy / "mujoco/assets_dmc/walker.xml"
    right = model.read_text()
    model.write_text(right.replace('damping=".1"', 'damping=".2"'))
    assert module.slim_base_path("WalkerWalk-v1", path, stock) == stock
    model.write_text("<mujoco><nonsense/></mujoco>")
    assert module.slim_base_path("WalkerRun-v1", path, stock) == stock
    model.write_text(right)
    assert module.slim_base_path("WalkerStand-v1", path, stock) == str(copy)


def test_other_families_keep_their_assets():
    path, stock = _entry("HalfCheetah-v5")
    assert module.slim_base_path("HalfCheetah-v5", path, stock) == stock
