"""The recipes of FlashSAC: the paper's table on a GPU, small networks on a CPU."""

import pytest

from troop import api
from troop.engines import Processes
from troop.recipes import RecipeArgs, find
from troop.systems import PQL


@pytest.mark.parametrize("env, gamma", [("G1JoystickFlatTerrain-v1", 0.97), ("WalkerWalk-v1", 0.99)])
def test_flashsac_has_the_papers_settings(env, gamma):
    experiment = find("flashsac").make(RecipeArgs(env, device="cuda"))
    algorithm, system = experiment.algorithm, experiment.system
    assert (experiment.env.envs, system.replay_capacity, system.learning_starts) == (1024, 10_000_000, 98)
    assert (system.schedule.batch_size, system.schedule.updates_per_step, algorithm.policy_delay) == (
        2048,
        2,
        2,
    )
    assert experiment.until.env_steps == 50_000_000 and algorithm.random_steps == 100_000
    assert (algorithm.gamma, algorithm.n_step, algorithm.tau) == (gamma, 1, 0.01)
    assert (algorithm.actor_width, algorithm.critic_width, algorithm.blocks) == (128, 256, 2)
    assert (algorithm.atoms, algorithm.v_max, algorithm.normalize_rewards) == (101, 5.0, True)
    assert (algorithm.target_std, algorithm.alpha_init, algorithm.alpha_min) == (0.15, 0.01, 0.0)
    assert (algorithm.log_std_min, algorithm.log_std_max) == (-10.0, 2.0)
    assert (algorithm.noise_exponent, algorithm.noise_repeats) == (2.0, 16)
    assert {algorithm.actor_lr, algorithm.critic_lr, algorithm.alpha_lr} == {3e-4}
    assert (algorithm.lr_end, algorithm.batch_norm_momentum, algorithm.actor_init) == (0.5, 0.01, 0.0)
    assert algorithm.lr_updates == pytest.approx(97_500, rel=1e-3)


ENVS = ["Pendulum-v1", "WalkerWalk-v1", "HalfCheetah-v5", "G1JoystickFlatTerrain-v1", "toy:PointMass"]


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("name", ["flashsac", "pql-flashsac"])
def test_small_recipes_fit_families_of_envs(name, env):
    experiment = api.make_experiment(name, env)
    experiment.check()
    algorithm, system = experiment.algorithm, experiment.system
    assert (algorithm.actor_width, algorithm.critic_width, algorithm.batch_norm_momentum) == (32, 64, 0.05)
    assert 1_000_000 <= system.replay_capacity <= 10_000_000
    assert system.learning_starts * experiment.env.envs >= 1000
    assert algorithm.random_steps == system.learning_starts * experiment.env.envs
    program = system.program(algorithm, experiment.env, experiment.settings())
    assert "evaluator" in program.nodes


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_pql_flashsac_keeps_the_ratios_of_flashsac(device):
    base, split = (
        find(name).make(RecipeArgs("WalkerWalk-v1", device=device)) for name in ("flashsac", "pql-flashsac")
    )
    assert isinstance(split.system, PQL) and isinstance(split.engine, Processes)
    assert split.algorithm == base.algorithm and split.recipe == "pql-flashsac"
    assert split.system.beta_av == base.system.schedule.updates_per_step
    assert split.system.beta_pv == base.algorithm.policy_delay
    assert split.system.batch_size == base.system.schedule.batch_size
    assert split.system.learning_starts == base.system.learning_starts and split.env.envs == base.env.envs
