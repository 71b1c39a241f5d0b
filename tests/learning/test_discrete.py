"""Short runs on a task with discrete actions: they fail if values get a wrong sign, action or weight."""

import pytest

import troop


@pytest.mark.parametrize("recipe", ["dqn", "rainbow"])
def test_recipe_learns_catch_from_pixels(recipe, tmp_path):
    pytest.importorskip("envpool")
    summary = troop.train(
        recipe, env="Catch-v0", env_steps=5_000, target=0.8, run=tmp_path / "run", quiet=True,
        evaluation__env_steps=500, evaluation__episodes=64,
    )  # fmt: skip
    assert summary.return_mean > 0.5  # a random policy gets about -0.6
    assert summary.skipped_updates == 0
