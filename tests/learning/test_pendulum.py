"""A short run on a real simulator: it fails if the policy minimizes the critic instead of maximizing it."""

import troop


def test_fasttd3_learns_pendulum(tmp_path):
    summary = troop.train("fasttd3", env="Pendulum-v1", env_steps=140_000, run=tmp_path / "run", quiet=True)
    # A random policy gets about -1,200, and one that minimizes the critic about -1,500.
    assert summary.return_mean > -500
    assert summary.skipped_updates == 0 and summary.env_faults == 0
