"""Short runs in processes: they fail if rows, weights or gradients do not arrive as they were sent."""

import pytest

import troop


@pytest.mark.parametrize("recipe, steps", [("apex-dqn", 12_000), ("gorila-dqn", 6_000)])
def test_catch_is_learned_by_many_processes(recipe, steps, tmp_path):
    pytest.importorskip("envpool")
    run = tmp_path / "run"
    summary = troop.train(recipe, env="Catch-v0", env_steps=steps, target=0.9, run=run, quiet=True)
    assert summary.return_mean > 0.5  # chance is about -0.6
    assert summary.skipped_updates == 0 and summary.restarts == 0
