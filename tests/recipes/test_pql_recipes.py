"""The recipes of PQL have the settings of the paper's table and of its authors' code."""

import pytest

from troop import api
from troop.algorithms import SACConfig, TD3Config
from troop.engines import Processes
from troop.recipes import RecipeArgs, pql

NAMES = ("pql", "pql-d", "pql-sac")
# Learning rates, n, gamma, tau, gradient norm, weight decay: equal in all three.
SHARED = (5e-4, 5e-4, 3, 0.99, 0.05, 0.5, 0.01)


@pytest.mark.parametrize("name", NAMES)
def test_paper_experiment_has_the_papers_settings(name):
    experiment = pql.paper_experiment(name, RecipeArgs(device="cuda:0"))
    algorithm, system = experiment.algorithm, experiment.system
    assert (experiment.env.envs, system.batch_size, system.replay_capacity, system.learning_starts) == (
        4096,
        8192,
        5_000_000,
        32,
    )
    assert (system.beta_av, system.beta_pv, system.publish_every, system.chunk_length) == (8.0, 2.0, 1.0, 1)
    assert (
        not system.free_running and experiment.device == "cuda:0" and isinstance(experiment.engine, Processes)
    )
    rates = (algorithm.actor_lr, algorithm.critic_lr, algorithm.n_step, algorithm.gamma, algorithm.tau)
    assert (*rates, algorithm.max_grad_norm, algorithm.weight_decay) == SHARED
    assert algorithm.actor_hidden == algorithm.critic_hidden == (512, 256, 128)
    assert algorithm.activation == "elu" and not algorithm.layer_norm and algorithm.critics == 2
    assert (
        algorithm.normalize_observations
        and algorithm.clipped_double_q
        and algorithm.unsplittable_reason(experiment.env.spec) is None
    )


def test_noise_and_atoms_have_the_papers_values():
    for name in ("pql", "pql-d"):
        algorithm = pql.PAPER[name]
        assert isinstance(algorithm, TD3Config) and algorithm.clip_actions
        assert (algorithm.std_min, algorithm.std_max) == (0.05, 0.8)
        assert (algorithm.policy_noise, algorithm.noise_clip) == (0.8, 0.2)
    categorical = pql.PAPER["pql-d"]
    assert pql.PAPER["pql"].atoms == 0
    assert (categorical.atoms, categorical.v_min, categorical.v_max) == (51, -10.0, 10.0)
    assert categorical.categorical_min == "elementwise_min"
    sac = pql.PAPER["pql-sac"]
    assert isinstance(sac, SACConfig)
    assert (sac.alpha_lr, sac.log_std_min, sac.log_std_max) == (5e-3, -5.0, 5.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("env", ["CartpoleSwingup-v1", "HalfCheetah-v5", "toy:PointMass"])
def test_small_recipes_fit_every_family_of_envs(name, env):
    experiment = api.make_experiment(name, env)
    experiment.check()
    assert experiment.system.batch_size < 1000 and experiment.env.envs <= 128
    program = experiment.system.program(experiment.algorithm, experiment.env, experiment.settings())
    assert {"actor", "critic", "policy", "evaluator"} <= program.nodes.keys()
    assert experiment.algorithm.atoms > 1  # scalar critics do not find rare rewards
    assert experiment.system.priority.alpha > 0
    if name != "pql-sac":
        expected = "elementwise_min" if name == "pql-d" else "lower_mean"
        assert experiment.algorithm.categorical_min == expected
