"""Algorithms over sequences with continuous actions: learning, state, row-wise acting, every system."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from troop.algorithms import SACGRUConfig, TD3GRUConfig
from troop.core.batch import SequenceSpec, Trajectory
from troop.core.env import Continuous, EnvSpec, Field
from troop.core.errors import BadInput
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline
from troop.envs import Toy
from troop.replay.prioritized import PriorityConfig
from troop.roles.learner import LearnerConfig
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import PQL, Apex, OnPolicy, Sync

SMALL = {
    "sequence_length": 6,
    "burn_in": 2,
    "overlap": 3,
    "embedding": 8,
    "core_size": 8,
    "actor_hidden": (8,),
    "critic_hidden": (16,),
    "critic_lr": 3e-3,
    "normalize_observations": True,
}
ALGORITHMS = {
    "td3-gru": TD3GRUConfig(**SMALL),
    "td3-gru, held noise, scaled": TD3GRUConfig(n_step=3, noise_repeats=4, normalize_rewards=True, **SMALL),
    "sac-gru": SACGRUConfig(**SMALL),
    "sac-gru, three steps": SACGRUConfig(n_step=3, layer_norm=True, policy_delay=2, **SMALL),
}
SPEC = EnvSpec("test", {"obs": Field((4,)), "privileged": Field((2,))}, Continuous(3), 5)


@pytest.fixture(params=ALGORITHMS, ids=str)
def config(request):
    return ALGORITHMS[request.param]


def learner(config, seed=0):
    torch.manual_seed(seed)
    return config.algorithm(SPEC)


def batch(policy, seed=0, streams=16):
    """Rewards are a function of the step before, and every step terminates, so the target is known."""
    random, steps = torch.Generator().manual_seed(seed), 6
    obs = {name: torch.randn(steps + 1, streams, *x.shape, generator=random) for name, x in SPEC.obs.items()}
    reward = torch.zeros(steps, streams)
    reward[1:] = obs["obs"][: steps - 1, :, 0]
    flags = torch.ones(steps, streams, dtype=torch.bool)
    return Trajectory(
        obs=obs,
        action=torch.rand(steps, streams, 3, generator=random) * 2 - 1,
        reward=reward + obs["privileged"][:-1, :, 0],
        discount=torch.zeros(steps, streams),
        ended=flags,
        valid=flags,
        started=torch.zeros(steps + 1, streams, dtype=torch.bool),
        final_obs={name: x[0, :0] for name, x in obs.items()},
        final_index=torch.empty(0, dtype=torch.int64),
        state=policy.initial_state(streams),
        index=torch.arange(streams),
    )


def leaves(tree, path=""):
    if isinstance(tree, dict):
        return {k: v for key, x in tree.items() for k, v in leaves(x, f"{path}/{key}").items()}
    return {path: tree}


def test_loss_of_a_fixed_batch_that_needs_memory_decreases(config):
    agent = learner(config)
    losses = [float(agent.update(batch(agent.policy)).metrics["loss/critic"]) for _ in range(250)]
    assert all(math.isfinite(x) for x in losses) and losses[-1] < 0.2 * losses[0]


def test_metrics_and_priorities_are_detached(config):
    agent = learner(config)
    for _ in range(2):
        result = agent.update(batch(agent.policy))
    assert all(isinstance(x, torch.Tensor) and x.numel() == 1 for x in result.metrics.values())
    assert not any(x.requires_grad for x in (*result.metrics.values(), result.priority))
    assert result.priority.shape == (16,) and (result.priority > 0).all()
    assert agent.update(replace(batch(agent.policy), index=None)).priority is None


@pytest.mark.reliability("R1")
def test_a_restored_algorithm_continues_bit_equal(config):
    agent, other = learner(config), learner(config, seed=9)
    for seed in range(3):
        agent.update(batch(agent.policy, seed))
    other.load_state_dict(copy.deepcopy(agent.state_dict()))
    for one in (agent, other):
        torch.manual_seed(4)
        for seed in range(5):
            one.update(batch(one.policy, seed))
    here, there = leaves(agent.state_dict()), leaves(other.state_dict())
    assert here.keys() == there.keys()
    for path, value in here.items():
        assert isinstance(value, torch.Tensor | int | float | str | bool), path
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(there[path])), path


def test_acting_is_row_wise_and_needs_no_privileged_observation(config):
    agent = learner(config)
    agent.update(batch(agent.policy))
    alone = config.policy(SPEC)
    alone.load_state_dict(agent.policy.state_dict())
    states, still = [alone.initial_state(6), *(alone.initial_state(3) for _ in range(2))], torch.zeros(6)
    for step in range(3):
        obs = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        whole = alone.act({"obs": obs}, states[0], still)
        parts = [
            alone.act({"obs": rows}, state, still[:3])
            for rows, state in zip(obs.split(3), states[1:], strict=True)
        ]
        assert torch.allclose(whole.action, torch.cat([part.action for part in parts]), atol=1e-6)
        assert whole.action.shape == (6, 3) and whole.action.abs().max() <= 1
        states = [whole.state, *(part.state for part in parts)]


def test_a_skipped_update_leaves_the_weights(config):
    agent = learner(config)
    bad = batch(agent.policy)
    bad.reward[4, 3] = float("nan")
    before = [x.detach().clone() for x in agent.critic.parameters()]
    result = agent.update(bad)
    assert float(result.metrics["count/skipped_updates"]) == 1 and int(agent.consecutive_skips) == 1
    assert all(torch.equal(x, y) for x, y in zip(agent.critic.parameters(), before, strict=True))


PRIORITY = PriorityConfig(alpha=0.6, beta=0.4)
APEX = {
    "actors": 2,
    "weight_sync_steps": 10,
    "learner": LearnerConfig(batch_size=4, prefetch=2, publish_every=3),
    "replay_capacity": 60,
    "learning_starts": 8,
    "priority": PRIORITY,
}
SYSTEMS = {
    "sync": Sync(UpdateSchedule(4, 2), 60, learning_starts=2, recreate_every=20, priority=PRIORITY),
    "sync, overlap": Sync(UpdateSchedule(4, 2, overlap=True), 60, learning_starts=2, recreate_every=20),
    "apex": Apex(samples_per_insert=2.0, recreate_every=20, **APEX),
    "apex, shards": Apex(samples_per_insert=2.0, replay_shards=2, recreate_every=20, **APEX),
}
ENVS = {
    "clock": Toy("Clock", 4, limit=9, autoreset="next_step"),
    "countdown": Toy("Countdown", 4, limit=40),
    "privileged": Toy("PointMass", 4, limit=9, privileged=True, last_step=True),
}
SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=10**9))


def host_of(system, config, env):
    return Inline().make_host(SYSTEMS[system].program(config, ENVS[env], SETTINGS), 3)


def losses_of(host, rounds):
    metrics = [step for _ in range(rounds) for step in host.step_all()]
    assert sum(float(m.get("count/skipped_updates", 0)) for m in metrics) == 0
    return torch.tensor([float(m["loss/critic"]) for m in metrics if "loss/critic" in m])


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("env", ENVS)
def test_systems_make_updates_and_can_be_resumed(system, config, env):
    host = host_of(system, config, env)
    first = losses_of(host, 45)
    saved = copy.deepcopy(host.state_dict())
    rest = losses_of(host, 30)
    final = copy.deepcopy(host.state_dict())
    host.close()
    assert len(first) > 10 and len(rest) > 10 and torch.isfinite(torch.cat((first, rest))).all()
    resumed = host_of(system, config, env)
    resumed.load_state_dict(saved)
    again = losses_of(resumed, 30)
    if system.startswith("sync"):  # Ape-X requests batches ahead, which a resumed learner requests anew
        assert torch.equal(again, rest)
        for name, x in final["policy"].items():
            assert torch.equal(x, resumed.state_dict()["policy"][name]), name
    assert len(again) > 10
    resumed.close()


def test_other_systems_refuse_sequences(config):
    assert isinstance(config.experience, SequenceSpec)
    for system in (OnPolicy(), PQL()):
        with pytest.raises(BadInput):
            system.program(config, ENVS["clock"], SETTINGS)
