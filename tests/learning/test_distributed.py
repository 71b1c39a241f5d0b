"""Short runs in processes: they fail if rows, weights or gradients are corrupted on their way."""

import pytest

import troop


@pytest.mark.parametrize("recipe, steps", [("apex-dqn", 12_000), ("gorila-dqn", 6_000)])
def test_recipe_learns_catch_in_processes(recipe, steps, tmp_path):
    pytest.importorskip("envpool")
    run = tmp_path / "run"
    summary = troop.train(recipe, env="Catch-v0", env_steps=steps, target=0.9, run=run, quiet=True)
    assert summary.return_mean > 0.5  # a random policy gets about -0.6
    assert summary.skipped_updates == 0 and summary.restarts == 0
