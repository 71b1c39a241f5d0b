"""Toy envs with known values, which the critics must learn."""

import pytest
import torch

from troop.algorithms.td3 import TD3Config
from troop.core.program import construct
from troop.core.system import Evaluation, RunSettings
from troop.envs import Toy
from troop.roles.update_schedule import UpdateSchedule
from troop.systems.sync import Sync

GAMMA = 0.8
QUICK = {
    "gamma": GAMMA,
    "tau": 0.2,
    "actor_hidden": (32,),
    "critic_hidden": (64,),
    "critic_lr": 5e-3,
    "actor_lr": 1e-5,  # actions have no effect here: keep the actor from following critic errors
    "weight_decay": 0.0,
    "v_min": -1.0,
    "v_max": 7.0,
    "atoms": 41,
    "policy_noise": 0.1,
}


def train_algorithm(env, rounds=250, **changes):
    torch.manual_seed(0)
    cfg = TD3Config(**(QUICK | changes))
    system = Sync(
        UpdateSchedule(batch_size=64, updates_per_step=2),
        replay_capacity=4_000,
        learning_starts=20,
        recreate_every=0,
    )
    program = system.program(cfg, env, RunSettings(1, "cpu", Evaluation(episodes=1)))
    trainer = construct(program.nodes["trainer"].build, {}.__getitem__)
    for _ in range(rounds):
        trainer.step()
    return trainer.algorithm


def values(algorithm, obs):
    """Return the reduced Q of the policy's own actions."""
    with torch.no_grad():
        x = algorithm.policy.normalizer(obs)
        outputs = algorithm.critic(x, algorithm.policy(x))
        return algorithm.policy.value(outputs)


@pytest.mark.parametrize("style, n", [("same_step", 1), ("next_step", 3)])
@pytest.mark.reliability("N5")
def test_time_limits_are_bootstrapped_so_the_clock_is_worth_one_over_one_minus_gamma(style, n):
    env = Toy("Clock", 4, limit=5, autoreset=style)
    found = values(train_algorithm(env, n_step=n), torch.arange(5).unsqueeze(1) / 5)
    assert found.tolist() == pytest.approx([1 / (1 - GAMMA)] * 5, abs=0.1)


def test_without_bootstrap_on_truncation_values_are_the_remaining_return():
    env = Toy("Clock", 4, limit=5)
    found = values(train_algorithm(env, bootstrap_on_truncation=False), torch.arange(5).unsqueeze(1) / 5)
    left = [sum(GAMMA**i for i in range(5 - elapsed)) for elapsed in range(5)]
    assert found.tolist() == pytest.approx(left, abs=0.1)


@pytest.mark.parametrize("style, n, atoms", [("same_step", 1, 0), ("next_step", 3, 41)])
@pytest.mark.reliability("N5")
def test_terminated_episodes_are_worth_the_remaining_return(style, n, atoms):
    env = Toy("Countdown", 4, limit=5, autoreset=style)
    found = values(train_algorithm(env, n_step=n, atoms=atoms), torch.arange(1, 6).unsqueeze(1) / 5)
    left = [sum(GAMMA**i for i in range(count)) for count in range(1, 6)]
    assert found.tolist() == pytest.approx(left, abs=0.1)


@pytest.mark.reliability("N5")
def test_chain_is_solved_and_valued_at_the_discounted_reward():
    env = Toy("Chain", 8, limit=4)
    agent = train_algorithm(
        env, rounds=400, std_min=0.3, std_max=1.0, v_min=-0.5, v_max=1.5, tau=0.3, actor_lr=2e-3
    )
    places = torch.eye(4)[:3]
    assert (agent.policy(agent.policy.normalizer(places)) > 0).all()  # a wrong gradient sign would walk away
    assert values(agent, places).tolist() == pytest.approx([GAMMA**2, GAMMA, 1], abs=0.05)
