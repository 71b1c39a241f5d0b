"""Every system with every algorithm it takes, on the inline host: updates as predicted, twice the same."""

import copy

import pytest
import torch

from troop.algorithms.dqn import DQNConfig
from troop.algorithms.sac import SACConfig
from troop.algorithms.td3 import TD3Config
from troop.engines.host import Host
from troop.envs import Toy
from troop.roles.learner import LearnerConfig
from troop.roles.trainer import UpdateSchedule
from troop.systems import PQL, Apex, Gorila
from troop.systems.settings import Evaluation, RunSettings
from troop.systems.sync import Sync

SMALL = {"actor_hidden": (8,), "critic_hidden": (8,), "v_min": -10.0, "v_max": 10.0}
ALGORITHMS = {
    "fast_td3": TD3Config(atoms=11, **SMALL),
    "fast_td3, three steps": TD3Config(atoms=11, n_step=3, **SMALL),
    "td3": TD3Config(atoms=0, target_policy=True, delay_targets=True, **SMALL),
    "ddpg": TD3Config(atoms=0, critics=1, policy_delay=1, policy_noise=0.0, target_policy=True, **SMALL),
    "fast_td3, simbav2": TD3Config(atoms=11, net="simbav2", **SMALL),
    "sac": SACConfig(actor_carries_critic=True, **SMALL),
}
SYSTEMS = {  # and how many updates fifty rounds make: two a round, the first when six rows an env are there
    "sync": (Sync(UpdateSchedule(16, 2), replay_capacity=400, learning_starts=6, recreate_every=20), 2 * 45),
    "sync, overlapping": (
        Sync(UpdateSchedule(16, 2, overlap=True), replay_capacity=400, learning_starts=6),
        2 * 44,
    ),
}
ENVS = {
    "clock": Toy("Clock", 4, limit=9, autoreset="next_step"),
    "countdown": Toy("Countdown", 4, limit=40),
    "privileged": Toy("PointMass", 4, limit=9, privileged=True),
}


def fifty_rounds(system, algorithm, env):
    host = Host(system.program(algorithm, env, RunSettings(3, "cpu", Evaluation(episodes=2))), 3)
    metrics = [moved for _ in range(50) for moved in host.round()]
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


CHOICES = {
    "clock": Toy("Clock", 4, limit=9, discrete=True, autoreset="next_step"),
    "countdown": Toy("Countdown", 3, limit=12, discrete=True),
}
VALUES = {
    "dqn": DQNConfig(hidden=(8,), target_period=7, optimizer="adam"),
    "double, three steps": DQNConfig(hidden=(8,), double=True, n_step=3, tau=0.1, optimizer="adam"),
}
PACE = LearnerConfig(batch_size=8, prefetch=2, publish_every=3)
APEX = {
    "actors": 3,
    "chunk_length": 4,
    "weight_sync_steps": 10,
    "learner": PACE,
    "replay_capacity": 900,
    "learning_starts": 40,
}
DISTRIBUTED = {
    "apex": Apex(samples_per_insert=2.0, **APEX),
    "apex, free": Apex(samples_per_insert=0.0, **APEX),
    "apex, shards": Apex(samples_per_insert=2.0, replay_shards=2, **APEX),
    "apex, largest priorities": Apex(
        samples_per_insert=2.0, initial_priority="max", recreate_every=11, **APEX
    ),
    "gorila": Gorila(
        UpdateSchedule(8, 2), replay_capacity=300, learning_starts=6, servers=2, recreate_every=15
    ),
    "gorila, shared replay": Gorila(
        UpdateSchedule(8, 2), replay_capacity=300, learning_starts=6, shared_replay=True, chunk_length=3
    ),
}


def inserted(state):
    """Rows and batches, as the stores counted them."""
    counts = {k: v for k, v in state.items() if k.endswith((".inserted", ".sampled"))}
    return sum(v for k, v in counts.items() if "ins" in k), sum(v for k, v in counts.items() if "sam" in k)


@pytest.mark.parametrize("system", DISTRIBUTED)
@pytest.mark.parametrize("algorithm", VALUES)
@pytest.mark.parametrize("env", CHOICES)
def test_many_roles_make_the_updates_predicted_and_twice_the_same(system, algorithm, env):
    config, envs, runs = DISTRIBUTED[system], CHOICES[env].envs, []
    for _ in range(2):
        metrics, state = fifty_rounds(config, VALUES[algorithm], CHOICES[env])
        steps, updates = (
            sum(m.get(f"count/{what}", 0) for m in metrics) for what in ("env_steps", "updates")
        )
        rows, drawn = inserted(state)
        if system == "gorila":  # two updates a round and bundle, the first when six rows an env are there
            assert updates == 2 * 2 * 45
        elif system == "apex, free":  # one a round from when the warm-up is over
            assert rows <= steps and 20 < updates < 45
        else:
            assert updates == drawn // 8 or system == "apex, shards"
            ratio = 2.0 if "apex" in system else 8 * 2 / envs
            warmup = 40 if "apex" in system else 6 * 2 * envs
            spare = 4 * 8 + ratio * (4 * envs * 3)  # tolerance, and a piece of each actor
            assert abs(drawn - ratio * (rows - warmup)) <= spare
            assert updates > 5 and rows <= steps
        losses = torch.tensor([float(m["loss/critic"]) for m in metrics if "loss/critic" in m])
        assert torch.isfinite(losses).all() and len(losses) > 5
        runs.append((losses, state["policy"], state["rng"]["cpu"]))
    (one, weights, random), (two, others, other_random) = runs
    assert torch.equal(one, two) and torch.equal(random, other_random)
    assert all(torch.equal(x, others[name]) for name, x in weights.items())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_noise_and_choices_take_the_same_roles(algorithm):
    """Algorithms whose policies tell no values get the largest priority."""
    metrics, _ = fifty_rounds(Apex(samples_per_insert=2.0, **APEX), ALGORITHMS[algorithm], ENVS["privileged"])
    assert sum(m.get("count/updates", 0) for m in metrics) > 20
    metrics, _ = fifty_rounds(DISTRIBUTED["gorila"], ALGORITHMS[algorithm], ENVS["privileged"])
    assert sum(m.get("count/updates", 0) for m in metrics) == 180


HALF = ("critic", "policy")
HALVES = {
    "fast_td3": ALGORITHMS["fast_td3"],
    "three steps, scaled": TD3Config(atoms=11, n_step=3, normalize_rewards=True, **SMALL),
    "scalar": TD3Config(atoms=0, n_step=3, policy_noise=0.2, **SMALL),
    "element-wise": TD3Config(atoms=11, categorical_min="elementwise_min", **SMALL),
    "sac": SACConfig(actor_hidden=(8,), critic_hidden=(8,)),
}
SPLIT = {
    "pql": PQL(4.0, 2.0, batch_size=16, replay_capacity=400, learning_starts=6, recreate_every=20),
    "pql, free": PQL(batch_size=16, replay_capacity=400, learning_starts=6, free_running=True),
    "pql, pieces": PQL(
        1.0,
        4.0,
        batch_size=16,
        replay_capacity=400,
        observation_capacity=90,
        learning_starts=6,
        chunk_length=3,
        overlap=True,
    ),
}


@pytest.mark.parametrize(
    "system, algorithm, env",
    [("pql", algorithm, env) for algorithm in HALVES for env in ("clock", "privileged")]
    + [(system, "three steps, scaled", "countdown") for system in SPLIT],
)
def test_two_halves_make_the_updates_predicted_and_twice_the_same(system, algorithm, env):
    config, runs = SPLIT[system], []
    for _ in range(2):
        metrics, state = fifty_rounds(config, HALVES[algorithm], ENVS[env])
        assert sum(float(m.get("count/skipped_updates", 0)) for m in metrics) == 0
        steps = state["transitions.inserted"] / 4 - 6  # vector steps since the warm-up
        assert state["observations.inserted"] == state["transitions.inserted"]
        spare = max(config.tolerance, config.chunk_length) + config.chunk_length
        for learner, updates, wanted in (
            ("critic", "updates", 1),
            ("policy", "policy_updates", config.beta_pv),
        ):
            made = sum(m.get(f"count/{updates}", 0) for m in metrics)
            assert made == state[f"{learner}.counts"]["updates"] and made > 3
            wanted = steps if config.free_running else steps * config.beta_av / wanted
            assert abs(made - wanted) <= spare * max(1.0, config.beta_av)
        losses = [[float(m[f"loss/{half}"]) for m in metrics if f"loss/{half}" in m] for half in HALF]
        assert all(len(found) > 3 and torch.tensor(found).isfinite().all() for found in losses)
        runs.append((losses, state["policy"], state["rng"]["cpu"]))
    (one, weights, random), (two, others, other_random) = runs
    assert one == two and torch.equal(random, other_random)
    assert all(torch.equal(x, others[name]) for name, x in weights.items())
