"""Short runs on a real task of choices: they fail if values have the wrong sign, action or weight."""

import pytest

import troop


@pytest.mark.parametrize("recipe", ["dqn", "rainbow"])
def test_catch_is_learned_from_its_pixels(recipe, tmp_path):
    pytest.importorskip("envpool")
    summary = troop.train(
        recipe, env="Catch-v0", env_steps=5_000, target=0.8, run=tmp_path / "run", quiet=True,
        evaluation__env_steps=500, evaluation__episodes=64,
    )  # fmt: skip
    assert summary.return_mean > 0.5  # chance is about -0.6
    assert summary.skipped_updates == 0
