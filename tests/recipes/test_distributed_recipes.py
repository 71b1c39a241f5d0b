"""The recipes of Ape-X and Gorila have the settings that their papers state."""

import pytest

from troop.cli.train import MANY_HOSTS
from troop.engines import Processes
from troop.recipes import RECIPES, find
from troop.recipes.recipe import RecipeArgs


def make(recipe, env, device="cpu"):
    return find(recipe).make(RecipeArgs(env, device=device))


def test_apex_dqn_on_atari_has_the_papers_settings():
    run = make("apex-dqn", "Pong-v5")
    algorithm, system = run.algorithm, run.system
    assert algorithm.double and algorithm.dueling and algorithm.net == "nature" and algorithm.hidden == (512,)
    assert (algorithm.n_step, algorithm.gamma, algorithm.target_update_period) == (3, 0.99, 2500)
    assert (algorithm.lr, algorithm.decay, algorithm.eps, algorithm.centered) == (6.25e-5, 0.95, 1.5e-7, True)
    assert (algorithm.loss, algorithm.max_grad_norm) == ("squared", 40.0)
    assert (system.learner.batch_size, system.learner.prefetch, system.weight_sync_steps) == (512, 16, 100)
    assert (system.replay_capacity, system.learning_starts, system.samples_per_insert) == (
        2_000_000,
        50_000,
        0.0,
    )
    assert (system.epsilon_base, system.epsilon_alpha, system.initial_priority) == (0.4, 7.0, "td_error")
    assert (system.priority.alpha, system.priority.beta, system.priority.beta_end) == (0.6, 0.4, 0.4)
    assert dict(run.env.settings)["reward_clip"] and dict(run.env.settings)["episodic_life"]
    assert isinstance(run.engine, Processes) and system.chunk_length * run.env.envs <= 50


def test_apex_dpg_on_a_gpu_has_the_papers_settings():
    run = make("apex-dpg", "HumanoidStand-v1", "cuda")
    algorithm, system = run.algorithm, run.system
    assert (algorithm.n_step, algorithm.atoms, algorithm.critics, algorithm.actor_carries_critic) == (
        3,
        0,
        1,
        True,
    )
    assert (algorithm.actor_lr, algorithm.critic_lr) == (1e-4, 1e-4)
    assert (algorithm.actor_hidden, algorithm.critic_hidden) == ((300, 200), (400, 300))
    assert algorithm.std_min == algorithm.std_max == 0.3  # the same noise in all actors
    assert algorithm.action_gradient_clip == 1.0 and algorithm.random_steps == 0
    assert (system.learner.batch_size, system.replay_capacity, system.samples_per_insert) == (
        256,
        1_000_000,
        0.0,
    )


def test_gorila_dqn_on_atari_has_the_papers_settings():
    run = make("gorila-dqn", "Pong-v5")
    algorithm, system = run.algorithm, run.system
    assert (algorithm.target_update_period, algorithm.epsilon_steps) == (60_000, 1_000_000)  # global updates
    assert (algorithm.epsilon_start, algorithm.epsilon_end, algorithm.gamma) == (1.0, 0.1, 0.99)
    assert not algorithm.double and not algorithm.dueling and system.priority.alpha == 0
    assert (system.replay_capacity, system.schedule.batch_size, system.schedule.updates_per_step) == (
        1_000_000,
        32,
        run.env.envs,
    )


@pytest.mark.parametrize("recipe, env", [("apex-dqn", "CartPole-v1"), ("apex-dpg", "CartpoleSwingup-v1")])
def test_small_recipes_limit_samples_per_insert(recipe, env):
    run = make(recipe, env)
    assert (
        run.system.actors == 4
        and run.system.samples_per_insert > 0
        and run.system.replay_capacity <= 1_000_000
    )


@pytest.mark.parametrize("name", RECIPES)
def test_command_line_can_tell_by_name_which_recipes_run_in_processes(name):
    assert isinstance(make(name, None).engine, Processes) == name.startswith(MANY_HOSTS)
