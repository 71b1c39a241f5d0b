"""The policy of every checkpoint, loaded as a user does, acts exactly as the live policy did then."""

import dataclasses

import pytest
import torch

from troop.api import load_policy, make_experiment
from troop.core.engine import Until
from troop.run_recorder import RunRecorder

ENVS = {
    "fasttd3": "toy:PointMass",
    "flashsac": "toy:PointMass",
    "rainbow": "Catch-v0",
}


@pytest.mark.reliability("R3")
@pytest.mark.parametrize("recipe", ENVS)
def test_policy_of_each_checkpoint_acts_as_the_live_one(recipe, tmp_path, monkeypatch):
    made = make_experiment(recipe, ENVS[recipe], engine="inline")
    made = dataclasses.replace(
        made,
        until=Until(env_steps=600),
        env=made.env.with_envs(4),
        evaluation=dataclasses.replace(made.evaluation, episodes=2, max_episode_steps=20),
        engine=dataclasses.replace(made.engine, threads=1, checkpoint_s=0.05),
    )
    torch.manual_seed(1)
    spec = made.env.spec
    obs = {name: torch.randint(0, 2, (16, *field.shape)).to(field.dtype) for name, field in spec.obs.items()}
    live, saves = {}, []
    build = RunRecorder.save

    def save(recorder, counters, state, last):
        build(recorder, counters, state, last)
        policy = live["host"].roles["trainer"].algorithm.policy
        expected = policy.act(obs, policy.initial_state(16), torch.zeros(16)).action
        loaded = load_policy(recorder.directory.path)
        saves.append((counters.updates, torch.equal(loaded.act(obs), expected)))

    from troop.engines import inline

    class ObservedHost(inline.Host):
        def __init__(self, *args):
            super().__init__(*args)
            live["host"] = self

    monkeypatch.setattr(inline, "Host", ObservedHost)
    monkeypatch.setattr(RunRecorder, "save", save)
    made.run(tmp_path / "run", quiet=True)
    assert len(saves) >= 2 and saves[-1][0] > 0  # the first, and the last with updates
    assert all(equal for _, equal in saves)
