"""Trajectories that do not fit the memory are refused before the run starts, with a number that would fit."""

import dataclasses

import pytest

from troop import trajectory_memory
from troop.api import make_experiment
from troop.core.errors import SetupProblem


def test_bytes_of_a_step_of_images():
    spec = make_experiment("ppo", "Pong-v5").env.spec
    assert trajectory_memory.step_bytes(spec) == 4 * 84 * 84 + 8 + trajectory_memory.STEP_BYTES


@pytest.mark.parametrize("recipe, flag", [("impala", "--unroll-length"), ("ppo", "--rollout-length")])
def test_long_trajectories_are_refused_with_a_length_that_fits(recipe, flag, monkeypatch):
    monkeypatch.setattr(trajectory_memory, "free_memory", lambda: 10**9)
    run = make_experiment(recipe, "Pong-v5")
    trajectory_memory.check_trajectory_memory(run)
    name = flag.removeprefix("--").replace("-", "_")
    long = dataclasses.replace(run, algorithm=dataclasses.replace(run.algorithm, **{name: 50_000}))
    with pytest.raises(SetupProblem, match=f"need .* GB and 1.0 GB are free; {flag} ") as refused:
        trajectory_memory.check_trajectory_memory(long)
    fitting = int(str(refused.value).split(flag)[1].split()[0])
    trajectory_memory.check_trajectory_memory(
        dataclasses.replace(run, algorithm=dataclasses.replace(run.algorithm, **{name: fitting}))
    )


def test_a_batch_of_too_many_streams_is_refused(monkeypatch):
    monkeypatch.setattr(trajectory_memory, "free_memory", lambda: 10**9)
    run = make_experiment("impala", "Pong-v5")
    large = dataclasses.replace(run, system=dataclasses.replace(run.system, batch_size=10**6))
    with pytest.raises(SetupProblem, match="--batch-size"):
        trajectory_memory.check_trajectory_memory(large)


def test_replays_are_checked_elsewhere(monkeypatch):
    monkeypatch.setattr(trajectory_memory, "free_memory", lambda: 0)
    trajectory_memory.check_trajectory_memory(make_experiment("td3", "Pendulum-v1"))
