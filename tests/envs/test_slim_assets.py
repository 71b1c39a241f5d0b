import subprocess
import sys
from pathlib import Path

import pytest
import torch

from troop.envs import EnvPool
from troop.envs.envpool import slim_assets

envpool = pytest.importorskip("envpool")


@pytest.mark.parametrize("id", ["WalkerWalk-v1", "G1JoystickFlatTerrain-v1"])
def test_slim_and_stock_assets_yield_the_same_rollout(id):
    slim, stock = EnvPool(id, 2, 1).make(0), EnvPool(id, 2, 1, slim_assets=False).make(0)
    assert slim.env.env._layout.base_path != stock.env.env._layout.base_path
    slim_step, stock_step = slim.reset(0), stock.reset(0)
    random = torch.Generator().manual_seed(0)
    for _ in range(50):
        assert torch.equal(slim_step.reward, stock_step.reward)
        assert all(torch.equal(slim_step.obs[name], stock_step.obs[name]) for name in slim_step.obs)
        action = torch.rand(2, slim.spec.action.size, generator=random) * 2 - 1
        slim_step, stock_step = slim.step(action), stock.step(action)
    slim.close()
    stock.close()


def _registry_entry(id):
    from envpool.registration import registry

    path, _, kwargs = registry.specs[id]
    return path, kwargs["base_path"]


def test_two_processes_can_build_the_copy_at_once(tmp_path):
    code = (
        "import sys; from pathlib import Path; from troop.envs.envpool.slim_assets import _slim_copy;"
        "print(_slim_copy(Path(sys.argv[1]), 'mujoco/assets_dmc'))"
    )
    _, stock = _registry_entry("WalkerWalk-v1")
    environment = {**__import__("os").environ, "XDG_CACHE_HOME": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, stock], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    copies = {process.communicate()[0].strip() for process in processes}
    assert len(copies) == 1 and Path(copies.pop()).is_dir()
    assert len(list((tmp_path / "troop").iterdir())) == 1


def test_an_unwritable_cache_falls_back_to_stock_assets_with_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    path, stock = _registry_entry("WalkerWalk-v1")
    assert slim_assets.slim_base_path("WalkerWalk-v1", path, stock) == stock
    assert "stock" in caplog.text


def test_a_copy_that_differs_or_does_not_load_is_not_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path, stock = _registry_entry("WalkerWalk-v1")
    copy = slim_assets._slim_copy(Path(stock), "mujoco/assets_dmc")
    model = copy / "mujoco/assets_dmc/walker.xml"
    original = model.read_text()
    model.write_text(original.replace('damping=".1"', 'damping=".2"'))
    assert slim_assets.slim_base_path("WalkerWalk-v1", path, stock) == stock
    model.write_text("<mujoco><nonsense/></mujoco>")
    assert slim_assets.slim_base_path("WalkerRun-v1", path, stock) == stock
    model.write_text(original)
    assert slim_assets.slim_base_path("WalkerStand-v1", path, stock) == str(copy)


def test_other_families_use_the_stock_assets():
    path, stock = _registry_entry("HalfCheetah-v5")
    assert slim_assets.slim_base_path("HalfCheetah-v5", path, stock) == stock
