"""Every system with every algorithm it takes, on the inline host: updates as predicted, twice the same."""

import copy

import pytest
import torch

from troop.algorithms.fast_td3 import FastTD3Config
from troop.engines.host import Host
from troop.envs import Toy
from troop.roles.trainer import Rhythm
from troop.systems.setting import Evaluation, Setting
from troop.systems.sync import Sync

SMALL = {"actor_hidden": (8,), "critic_hidden": (8,), "v_min": -10.0, "v_max": 10.0}
ALGORITHMS = {
    "fast_td3": FastTD3Config(atoms=11, **SMALL),
    "fast_td3, three steps": FastTD3Config(atoms=11, n_step=3, **SMALL),
    "td3": FastTD3Config(atoms=0, target_policy=True, delay_targets=True, **SMALL),
    "ddpg": FastTD3Config(atoms=0, critics=1, policy_delay=1, policy_noise=0.0, target_policy=True, **SMALL),
}
SYSTEMS = {  # and how many updates fifty rounds make: two a round, the first when six rows an env are there
    "sync": (Sync(Rhythm(16, 2), capacity=400, warmup=6, renewal=20), 2 * 45),
    "sync, overlapping": (Sync(Rhythm(16, 2, overlap=True), capacity=400, warmup=6), 2 * 44),
}
ENVS = {
    "clock": Toy("Clock", 4, limit=9, autoreset="next_step"),
    "countdown": Toy("Countdown", 4, limit=40),
    "privileged": Toy("PointMass", 4, limit=9, privileged=True),
}


def fifty_rounds(system, algorithm, env):
    host = Host(system.program(algorithm, env, Setting(3, "cpu", Evaluation(episodes=2))), 3)
    metrics = [host.round()[0] for _ in range(50)]
    host.close()
    return metrics, copy.deepcopy(host.state_dict())


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("env", ENVS)
def test_fifty_rounds_make_the_updates_predicted_and_twice_the_same(system, algorithm, env):
    (config, expected), runs = SYSTEMS[system], []
    for _ in range(2):
        metrics, state = fifty_rounds(config, ALGORITHMS[algorithm], ENVS[env])
        assert sum(m.get("count/updates", 0) for m in metrics) == expected
        assert sum(float(m.get("count/skipped_updates", 0)) for m in metrics) == 0
        losses = torch.tensor([float(m["loss/critic"]) for m in metrics if "loss/critic" in m])
        assert torch.isfinite(losses).all()
        runs.append((losses, state["policy"], state["rng"]["cpu"]))
    (one, weights, random), (two, others, other_random) = runs
    assert torch.equal(one, two) and torch.equal(random, other_random)
    assert all(torch.equal(x, others[name]) for name, x in weights.items())
