import dataclasses

import pytest

from troop import api
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.recipes import RECIPES, find

# Envs, rows per env, gamma, v_max, n, updates, std_min, std_max, policy_noise of the paper's table.
PAPER = {
    "G1JoystickFlatTerrain-v1": (1024, 10_240, 0.97, 10.0, 1, 2, 0.001, 0.4, 0.001),
    "T1JoystickRoughTerrain-v1": (1024, 10_240, 0.97, 10.0, 1, 2, 0.001, 0.4, 0.001),
    "Go1JoystickFlatTerrain-v1": (1024, 10_240, 0.97, 10.0, 1, 8, 0.2, 0.8, 0.2),
    "Go1Getup-v1": (1024, 10_240, 0.97, 10.0, 1, 8, 0.2, 0.8, 0.2),
    "CheetahRun-v1": (128, 51_200, 0.99, 500.0, 3, 2, 0.1, 0.4, 0.1),
}


@pytest.mark.parametrize("env", PAPER)
def test_the_papers_numbers_are_the_papers(env):
    made = api.experiment("fasttd3-paper", env)
    algorithm, system = made.algorithm, made.system
    assert (
        made.env.envs,
        system.capacity // made.env.envs,
        algorithm.gamma,
        algorithm.v_max,
        algorithm.n_step,
        system.rhythm.updates,
        algorithm.std_min,
        algorithm.std_max,
        algorithm.policy_noise,
    ) == PAPER[env]
    assert algorithm.v_min == -algorithm.v_max and algorithm.atoms == 101 and algorithm.tau == 0.1
    assert system.rhythm.batch == 32_768 and system.warmup == 10 and algorithm.policy_delay == 2
    assert (algorithm.actor_lr, algorithm.weight_decay, algorithm.lr_end) == (3e-4, 0.1, 1.0)
    assert not algorithm.layer_norm and not algorithm.clip_actions and not algorithm.target_policy


def test_humanoids_get_the_tuned_reward_and_others_do_not():
    assert ("energy_scale", -5e-5) in api.experiment("fasttd3", "G1JoystickFlatTerrain-v1").env.settings
    assert api.experiment("fasttd3", "Go1JoystickFlatTerrain-v1").env.settings == ()


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_fits_its_first_env_and_survives_its_own_config(name):
    made = api.experiment(name)
    made = dataclasses.replace(made, until=Until(env_steps=1))
    made.check()
    assert type(made).from_dict(made.to_dict()) == made
    nodes = made.system.program(made.algorithm, made.env, made.setting()).nodes
    assert "evaluator" in nodes and nodes.keys() & {"trainer", "actor0", "bundle0", "actor"}


def test_envs_are_as_many_as_asked_for():
    assert api.experiment("fasttd3", "Pendulum-v1", envs=7).env.envs == 7


def test_an_unknown_recipe_gets_the_nearest():
    with pytest.raises(BadInput, match="fasttd3"):
        find("fastd3")
