"""Every system with every algorithm it supports, in one process: number of updates, and reproducibility."""

import copy

import pytest
import torch

from troop.algorithms import DQNConfig, FlashSACConfig, SACConfig, TD3Config
from troop.core.errors import BadInput
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline
from troop.envs import Toy
from troop.roles.learner import LearnerConfig
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import PQL, Apex, DataParallel, Gorila, Sync

SMALL = {"actor_hidden": (8,), "critic_hidden": (8,), "v_min": -10.0, "v_max": 10.0}
ALGORITHMS = {
    "fast_td3": TD3Config(atoms=11, **SMALL),
    "fast_td3, three steps": TD3Config(atoms=11, n_step=3, **SMALL),
    "td3": TD3Config(atoms=0, target_policy=True, delay_targets=True, **SMALL),
    "ddpg": TD3Config(atoms=0, critics=1, policy_delay=1, policy_noise=0.0, target_policy=True, **SMALL),
    "fast_td3, simbav2": TD3Config(atoms=11, net="simbav2", **SMALL),
    "sac": SACConfig(actor_carries_critic=True, **SMALL),
    "flash_sac": FlashSACConfig(actor_width=4, critic_width=4, atoms=11, n_step=3),
}
SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2))
SYSTEMS = {  # with the updates of fifty rounds: two per round, after six rows per env
    "sync": (Sync(UpdateSchedule(16, 2), replay_capacity=400, learning_starts=6, recreate_every=20), 2 * 45),
    "sync, overlap": (
        Sync(UpdateSchedule(16, 2, overlap=True), replay_capacity=400, learning_starts=6),
        2 * 44,
    ),
    "data-parallel": (
        DataParallel(
            2,
            replays=Sync(UpdateSchedule(16, 2), replay_capacity=400, learning_starts=6, recreate_every=20),
        ),
        2 * 45,
    ),
}
ENVS = {
    "clock": Toy("Clock", 4, limit=9, autoreset="next_step"),
    "countdown": Toy("Countdown", 4, limit=40),
    "privileged": Toy("PointMass", 4, limit=9, privileged=True),
}


def run_fifty_rounds(system, algorithm, env):
    """Return the metrics of all steps and the final state."""
    host = Inline().make_host(system.program(algorithm, env, SETTINGS), 3)
    metrics = [step for _ in range(50) for step in host.step_all()]
    host.close()
    return metrics, copy.deepcopy(host.state_dict())


def critic_losses(metrics):
    return torch.tensor([float(m["loss/critic"]) for m in metrics if "loss/critic" in m])


def check_equal_runs(runs):
    """Check that two runs have equal losses, policies and states of the random generator."""
    (losses, state), (other_losses, other_state) = runs
    assert torch.equal(losses, other_losses)
    assert torch.equal(state["rng"]["cpu"], other_state["rng"]["cpu"])
    assert state["policy"].keys() == other_state["policy"].keys()
    assert all(torch.equal(x, other_state["policy"][name]) for name, x in state["policy"].items())


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("env", ENVS)
def test_sync_makes_the_expected_updates_and_is_reproducible(system, algorithm, env):
    (config, expected), runs = SYSTEMS[system], []
    if system == "data-parallel" and algorithm == "flash_sac":
        with pytest.raises(BadInput, match="would not stay equal"):
            config.program(ALGORITHMS[algorithm], ENVS[env], SETTINGS)
        return
    for _ in range(2):
        metrics, state = run_fifty_rounds(config, ALGORITHMS[algorithm], ENVS[env])
        assert sum(m.get("count/updates", 0) for m in metrics) == expected
        assert sum(float(m.get("count/skipped_updates", 0)) for m in metrics) == 0
        losses = critic_losses(metrics)
        assert torch.isfinite(losses).all()
        runs.append((losses, state))
    check_equal_runs(runs)


DISCRETE_ENVS = {
    "clock": Toy("Clock", 4, limit=9, discrete=True, autoreset="next_step"),
    "countdown": Toy("Countdown", 3, limit=12, discrete=True),
}
VALUE_ALGORITHMS = {
    "dqn": DQNConfig(hidden=(8,), target_update_period=7, optimizer="adam"),
    "double, three steps": DQNConfig(hidden=(8,), double=True, n_step=3, tau=0.1, optimizer="adam"),
}
APEX = {
    "actors": 3,
    "chunk_length": 4,
    "weight_sync_steps": 10,
    "learner": LearnerConfig(batch_size=8, prefetch=2, publish_every=3),
    "replay_capacity": 900,
    "learning_starts": 40,
}
DISTRIBUTED = {
    "apex": Apex(samples_per_insert=2.0, **APEX),
    "apex, free-running": Apex(samples_per_insert=0.0, **APEX),
    "apex, shards": Apex(samples_per_insert=2.0, replay_shards=2, **APEX),
    "apex, max priority": Apex(samples_per_insert=2.0, initial_priority="max", recreate_every=11, **APEX),
    "gorila": Gorila(
        UpdateSchedule(8, 2), replay_capacity=300, learning_starts=6, servers=2, recreate_every=15
    ),
    "gorila, shared replay": Gorila(
        UpdateSchedule(8, 2), replay_capacity=300, learning_starts=6, shared_replay=True, chunk_length=3
    ),
}


def inserted_and_sampled(state):
    """Return the rows inserted into and sampled from all replays."""
    return tuple(
        sum(v for k, v in state.items() if k.endswith(f".{name}")) for name in ("inserted", "sampled")
    )


@pytest.mark.parametrize("system", DISTRIBUTED)
@pytest.mark.parametrize("algorithm", VALUE_ALGORITHMS)
@pytest.mark.parametrize("env", DISCRETE_ENVS)
def test_distributed_system_makes_the_expected_updates_and_is_reproducible(system, algorithm, env):
    config, envs, runs = DISTRIBUTED[system], DISCRETE_ENVS[env].envs, []
    for _ in range(2):
        metrics, state = run_fifty_rounds(config, VALUE_ALGORITHMS[algorithm], DISCRETE_ENVS[env])
        steps, updates = (
            sum(m.get(f"count/{name}", 0) for m in metrics) for name in ("env_steps", "updates")
        )
        inserted, sampled = inserted_and_sampled(state)
        if system == "gorila":  # two updates per round and bundle, after six rows per env
            assert updates == 2 * 2 * 45
        elif system == "apex, free-running":  # one update per round after the warm-up
            assert inserted <= steps and 20 < updates < 45
        else:
            assert updates == sampled // 8 or system == "apex, shards"
            ratio = 2.0 if "apex" in system else 8 * 2 / envs
            learning_starts = 40 if "apex" in system else 6 * 2 * envs
            slack = 4 * 8 + ratio * (4 * envs * 3)  # the tolerance, and a chunk of each actor
            assert abs(sampled - ratio * (inserted - learning_starts)) <= slack
            assert updates > 5 and inserted <= steps
        losses = critic_losses(metrics)
        assert torch.isfinite(losses).all() and len(losses) > 5
        runs.append((losses, state))
    check_equal_runs(runs)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_distributed_systems_run_algorithms_with_continuous_actions(algorithm):
    """Rows of algorithms whose policies output no values start with the largest priority."""
    env = ENVS["privileged"]
    metrics, _ = run_fifty_rounds(Apex(samples_per_insert=2.0, **APEX), ALGORITHMS[algorithm], env)
    assert sum(m.get("count/updates", 0) for m in metrics) > 20
    metrics, _ = run_fifty_rounds(DISTRIBUTED["gorila"], ALGORITHMS[algorithm], env)
    assert sum(m.get("count/updates", 0) for m in metrics) == 180


SPLIT_ALGORITHMS = {
    "fast_td3": ALGORITHMS["fast_td3"],
    "three steps, scaled": TD3Config(atoms=11, n_step=3, normalize_rewards=True, **SMALL),
    "scalar": TD3Config(atoms=0, n_step=3, policy_noise=0.2, **SMALL),
    "element-wise": TD3Config(atoms=11, categorical_min="elementwise_min", **SMALL),
    "sac": SACConfig(actor_hidden=(8,), critic_hidden=(8,)),
    "flash_sac": FlashSACConfig(actor_width=4, critic_width=4, atoms=11),
}
SPLIT_SYSTEMS = {
    "pql": PQL(4.0, 2.0, batch_size=16, replay_capacity=400, learning_starts=6, recreate_every=20),
    "pql, free-running": PQL(batch_size=16, replay_capacity=400, learning_starts=6, free_running=True),
    "pql, chunks": PQL(
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
    [("pql", algorithm, env) for algorithm in SPLIT_ALGORITHMS for env in ("clock", "privileged")]
    + [(system, "three steps, scaled", "countdown") for system in SPLIT_SYSTEMS],
)
def test_pql_makes_the_expected_updates_and_is_reproducible(system, algorithm, env):
    config, runs = SPLIT_SYSTEMS[system], []
    for _ in range(2):
        metrics, state = run_fifty_rounds(config, SPLIT_ALGORITHMS[algorithm], ENVS[env])
        assert sum(float(m.get("count/skipped_updates", 0)) for m in metrics) == 0
        steps = state["transitions.inserted"] / 4 - 6  # vector steps after the warm-up
        assert state["observations.inserted"] == state["transitions.inserted"]
        slack = max(config.tolerance, config.chunk_length) + config.chunk_length
        for learner, count, critic_updates in (
            ("critic", "updates", 1),
            ("policy", "policy_updates", config.beta_pv),
        ):
            updates = sum(m.get(f"count/{count}", 0) for m in metrics)
            assert updates == state[f"{learner}.counts"]["updates"] and updates > 3
            expected = steps if config.free_running else steps * config.beta_av / critic_updates
            assert abs(updates - expected) <= slack * max(1.0, config.beta_av)
        losses = [
            torch.tensor([float(m[name]) for m in metrics if name in m])
            for name in ("loss/critic", "loss/policy")
        ]
        assert all(len(values) > 3 and values.isfinite().all() for values in losses)
        runs.append((torch.cat(losses), state))
    check_equal_runs(runs)
