"""A cue in the first step, the question for it 20 steps later: the state must pass through the replay."""

import pytest

import troop


@pytest.mark.parametrize("recipe", ["r2d2", "seed-r2d2"])
def test_recipe_learns_to_remember_a_cue(recipe, tmp_path):
    run = tmp_path / "run"
    options = {"env_steps": 60_000, "target": 0.9, "run": run, "quiet": True, "env__last_step": False}
    summary = troop.train(recipe, env="Cue-v0", **options)
    assert summary.return_mean > 0.8  # a policy without memory gets 0 on average
    assert summary.skipped_updates == 0 and summary.restarts == 0
