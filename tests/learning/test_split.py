"""Critics and policy that learn apart get as far as they do in turn, in one thread or in processes."""

import pytest

import troop


@pytest.mark.parametrize("recipe, engine", [("pql", "inline"), ("pql", "processes"), ("pql-d", "processes")])
def test_a_point_finds_its_goal(recipe, engine, tmp_path):
    run = tmp_path / "run"
    summary = troop.train(
        recipe, "toy:PointMass", engine=engine, engine__threads=1, env_steps=6000, target=6.5, run=run,
        quiet=True, evaluation__env_steps=1500, evaluation__episodes=64,
    )  # fmt: skip
    assert summary.return_mean > 5.5  # one that stands still has about 3.3, the best possible about 8
    assert summary.skipped_updates == 0 and summary.restarts == 0
