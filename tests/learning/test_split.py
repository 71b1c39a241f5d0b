"""Critics and policy that learn concurrently learn as well as in turn, in one thread or in processes."""

import pytest

import troop


@pytest.mark.parametrize("recipe, engine", [("pql", "inline"), ("pql", "processes"), ("pql-d", "processes")])
def test_recipe_learns_point_mass(recipe, engine, tmp_path):
    run = tmp_path / "run"
    summary = troop.train(
        recipe, "toy:PointMass", engine=engine, engine__threads=1, env_steps=6000, target=6.5, run=run,
        quiet=True, evaluation__env_steps=1500, evaluation__episodes=64,
    )  # fmt: skip
    assert summary.return_mean > 5.5  # a policy that does not move gets about 3.3, the optimum is about 8
    assert summary.skipped_updates == 0 and summary.restarts == 0
