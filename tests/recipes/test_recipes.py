import dataclasses

import pytest
import torch

from troop import api
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.envs import EnvPool
from troop.recipes import RECIPES, RecipeArgs, find

# Envs, rows per env, gamma, v_max, n, updates per step, std_min, std_max, policy_noise of the paper's table.
PAPER = {
    "G1JoystickFlatTerrain-v1": (1024, 10_240, 0.97, 10.0, 1, 2, 0.001, 0.4, 0.001),
    "T1JoystickRoughTerrain-v1": (1024, 10_240, 0.97, 10.0, 1, 2, 0.001, 0.4, 0.001),
    "Go1JoystickFlatTerrain-v1": (1024, 10_240, 0.97, 10.0, 1, 8, 0.2, 0.8, 0.2),
    "Go1Getup-v1": (1024, 10_240, 0.97, 10.0, 1, 8, 0.2, 0.8, 0.2),
    "CheetahRun-v1": (1024, 10_240, 0.97, 500.0, 3, 2, 0.1, 0.4, 0.1),
}


@pytest.mark.parametrize("env", PAPER)
def test_fasttd3_paper_has_the_settings_of_the_papers_table(env):
    experiment = api.make_experiment("fasttd3-paper", env)
    algorithm, system = experiment.algorithm, experiment.system
    assert (
        experiment.env.envs,
        system.replay_capacity // experiment.env.envs,
        algorithm.gamma,
        algorithm.v_max,
        algorithm.n_step,
        system.schedule.updates_per_step,
        algorithm.std_min,
        algorithm.std_max,
        algorithm.policy_noise,
    ) == PAPER[env]
    assert algorithm.v_min == -algorithm.v_max and algorithm.atoms == 101 and algorithm.tau == 0.1
    assert (
        system.schedule.batch_size == 32_768 and system.learning_starts == 10 and algorithm.policy_delay == 2
    )
    assert (algorithm.actor_lr, algorithm.weight_decay, algorithm.lr_end) == (3e-4, 0.1, 1.0)
    assert not algorithm.layer_norm and not algorithm.clip_actions and not algorithm.target_policy


CONTINUOUS = [
    "fasttd3", "fasttd3-cpu", "fasttd3-paper", "fasttd3-simbav2", "td3", "td3-paper", "ddpg", "ddpg-paper",
    "sac", "fastsac", "td3-gru", "sac-gru",
    "flashsac", "ddpg-sync", "apex-dpg", "pql", "pql-d", "pql-sac", "pql-flashsac",
]  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_recipes_train_humanoids_on_one_reward_and_evaluate_them_on_another(device):
    envs = [find(name).make(RecipeArgs("G1JoystickFlatTerrain-v1", 16, device)).env for name in CONTINUOUS]
    assert {(env.reward, env.settings) for env in envs} == {("tuned", (("push_enable", False),))}
    evaluation = {dataclasses.replace(env.for_evaluation(), threads=0, last_step=False) for env in envs}
    assert evaluation == {EnvPool("G1JoystickFlatTerrain-v1", 16, settings=(("push_enable", False),))}


def test_only_g1_and_t1_get_the_tuned_reward():
    for name in ("fasttd3", "apex-dpg"):
        env = api.make_experiment(name, "Go1JoystickFlatTerrain-v1").env
        assert (env.settings, env.reward) == ((), "default")


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_fits_its_default_env_and_its_config_round_trips(name):
    experiment = api.make_experiment(name)
    experiment = dataclasses.replace(experiment, until=Until(env_steps=1))
    experiment.check()
    assert type(experiment).from_dict(experiment.to_dict()) == experiment
    nodes = experiment.system.program(experiment.algorithm, experiment.env, experiment.settings()).nodes
    acting = {"trainer", "actor0", "bundle0", "worker0", "actor", "runner0"}
    assert "evaluator" in nodes and nodes.keys() & acting


def test_number_of_envs_is_an_argument():
    assert api.make_experiment("fasttd3", "Pendulum-v1", envs=7).env.envs == 7


def test_unknown_recipe_raises_with_similar_names():
    with pytest.raises(BadInput, match="fasttd3"):
        find("fastd3")


def test_fastsac_has_the_published_settings():
    experiment = find("fastsac").make(RecipeArgs("G1JoystickFlatTerrain-v1", device="cuda"))
    algorithm, system = experiment.algorithm, experiment.system
    assert (experiment.env.envs, system.replay_capacity // experiment.env.envs) == (4096, 1024)
    assert (system.schedule.batch_size, system.schedule.updates_per_step, algorithm.policy_delay) == (
        8192,
        8,
        4,
    )
    assert (algorithm.gamma, algorithm.tau, algorithm.n_step, algorithm.atoms) == (0.97, 0.125, 1, 101)
    assert (algorithm.v_min, algorithm.v_max, algorithm.normalize_rewards) == (-20.0, 20.0, False)
    assert (algorithm.actor_hidden, algorithm.critic_hidden) == ((512, 256, 128), (768, 384, 192))
    assert (algorithm.activation, algorithm.layer_norm, algorithm.actor_init) == ("silu", True, 0.0)
    assert (algorithm.log_std_min, algorithm.log_std_max) == (-5.0, 0.0)
    assert (algorithm.alpha_init, algorithm.target_entropy_ratio, algorithm.alpha_lr) == (0.001, 0.0, 3e-4)
    assert (algorithm.beta2, algorithm.weight_decay, algorithm.actor_lr) == (0.95, 0.001, 3e-4)
    assert (
        not algorithm.clipped_double_q and algorithm.policy_q == "auto"
    )  # hence separate targets and the mean of the critics


def test_sac_has_the_papers_settings():
    experiment = find("sac").make(RecipeArgs("HalfCheetah-v5", device="cuda"))
    algorithm, system = experiment.algorithm, experiment.system
    assert system.schedule.updates_per_step == experiment.env.envs and system.schedule.batch_size == 256
    assert (algorithm.actor_hidden, algorithm.critic_hidden) == ((256, 256), (256, 256))
    assert (algorithm.tau, algorithm.gamma, algorithm.n_step, algorithm.policy_delay) == (0.005, 0.99, 1, 1)
    assert {algorithm.actor_lr, algorithm.critic_lr, algorithm.alpha_lr} == {3e-4}
    assert (algorithm.target_entropy_ratio, algorithm.atoms, algorithm.weight_decay) == (1.0, 0, 0.0)
    assert algorithm.random_steps == 10_000 == system.learning_starts * experiment.env.envs


@pytest.mark.parametrize("env, updates", [("G1JoystickFlatTerrain-v1", 2), ("Go1Getup-v1", 8)])
def test_simbav2_has_the_settings_of_fasttd3s_code(env, updates):
    experiment = find("fasttd3-simbav2").make(RecipeArgs(env, device="cuda"))
    algorithm, system = experiment.algorithm, experiment.system
    assert (algorithm.net, algorithm.critic_hidden, algorithm.actor_hidden) == (
        "simbav2_port",
        (512, 512),
        (256,),
    )
    assert (system.schedule.batch_size, system.schedule.updates_per_step, algorithm.weight_decay) == (
        8192,
        updates,
        0.0,
    )
    assert algorithm.actor_lr * algorithm.lr_end == pytest.approx(3e-5)
    assert (
        algorithm.lr_updates == 100_000 * updates
        and experiment.env.envs == 1024
        and experiment.recipe == "fasttd3-simbav2"
    )


def test_ddpg_sync_has_the_settings_of_the_pql_paper():
    experiment = find("ddpg-sync").make(RecipeArgs("HalfCheetah-v5", device="cuda"))
    algorithm, system = experiment.algorithm, experiment.system
    assert (experiment.env.envs, system.replay_capacity, system.learning_starts) == (4096, 5_000_000, 32)
    assert (system.schedule.batch_size, system.schedule.updates_per_step, algorithm.policy_delay) == (
        8192,
        8,
        1,
    )
    assert (algorithm.n_step, algorithm.gamma, algorithm.tau, algorithm.atoms) == (3, 0.99, 0.05, 0)
    assert (algorithm.policy_noise, algorithm.noise_clip) == (0.8, 0.2)
    assert (algorithm.std_min, algorithm.std_max, algorithm.max_grad_norm) == (0.05, 0.8, 0.5)
    assert (algorithm.actor_lr, algorithm.critic_lr, algorithm.activation) == (5e-4, 5e-4, "elu")
    assert algorithm.critic_hidden == algorithm.actor_hidden == (512, 256, 128)
    assert not algorithm.target_policy and algorithm.clipped_double_q


@pytest.mark.parametrize("name", ["sac", "fastsac", "fasttd3-simbav2", "ddpg-sync"])
@pytest.mark.parametrize(
    "env",
    [
        "Pendulum-v1",
        "WalkerWalk-v1",
        "HalfCheetah-v5",
        "G1JoystickFlatTerrain-v1",
        "LunarLanderContinuous-v3",
    ],
)
def test_small_recipes_fit_families_of_envs(name, env):
    experiment = api.make_experiment(name, env)
    experiment.check()
    assert max(experiment.algorithm.critic_hidden) <= 256 and experiment.system.schedule.overlap
    assert experiment.system.replay_capacity <= 1_000_000


@pytest.mark.parametrize("envs", [1, 3, 32, 100])
@pytest.mark.parametrize(
    "name, warm_up, end", [("dqn", 50_000, 0.1), ("double-dqn", 50_000, 0.01), ("c51", 50_000, 0.01)]
)
def test_dqn_family_on_atari_anneals_epsilon_and_updates_as_dqn_zoo(name, warm_up, end, envs):
    """Epsilon decreases in a million env steps after the warm-up; four env steps have one update."""
    experiment = api.make_experiment(name, "Pong-v5", envs=envs)
    exploration, schedule = experiment.algorithm.exploration, experiment.system.schedule
    value = torch.zeros(1)
    for env_steps, epsilon in (
        (0, 1),
        (warm_up, 1),
        (550_000, (1 + end) / 2),
        (1_050_000, end),
        (10**8, end),
    ):
        assert exploration.update(value, None, env_steps).item() == pytest.approx(epsilon)
    assert experiment.system.learning_starts * envs == pytest.approx(warm_up, abs=envs)
    vector_steps = 1000
    updates = sum(schedule.updates_after(step) for step in range(1, vector_steps + 1))
    assert updates == vector_steps * envs // 4


def test_rainbow_on_atari_explores_by_noise_alone_and_learns_after_20_000_env_steps():
    experiment = api.make_experiment("rainbow", "Pong-v5", envs=1)
    assert experiment.system.learning_starts == 20_000 and experiment.algorithm.target_update_period == 2000
    assert experiment.system.schedule.updates_per_step == 0.25
    values = {experiment.algorithm.exploration.update(torch.zeros(1), None, n).item() for n in (0, 10**6)}
    assert values == {1.0}  # the noise at its full scale, and epsilon 0


@pytest.mark.parametrize("name", ["dqn", "rainbow", "dqn-cpu", "gorila-dqn"])
def test_small_recipes_anneal_epsilon_from_the_first_step(name):
    assert api.make_experiment(name).algorithm.epsilon_delay == 0


@pytest.mark.parametrize("name, random_steps", [("td3", 25_000), ("ddpg", 10_000)])
@pytest.mark.parametrize("envs", [1, 8, 7])
def test_td3_and_ddpg_start_with_random_actions_and_learn_after_them(name, random_steps, envs):
    experiment = api.make_experiment(name, "Pendulum-v1", envs=envs)
    assert experiment.algorithm.random_steps == random_steps
    assert 0 <= experiment.system.learning_starts * envs - random_steps < envs


@pytest.mark.parametrize("name", ["fasttd3", "td3", "ddpg", "pql", "pql-d", "apex-dpg", "ddpg-sync"])
def test_deterministic_actors_are_kept_out_of_saturation_at_a_known_reward_scale(name):
    algorithm = api.make_experiment(name, "BallInCupCatch-v1").algorithm
    assert algorithm.preactivation_penalty == 1.0
    assert algorithm.normalize_rewards and algorithm.experience.scale_rewards_to == 10.0
    assert algorithm.noise_repeats == 0  # follows from the time limit


@pytest.mark.parametrize("name", ["fasttd3-paper", "td3-paper", "ddpg-paper"])
@pytest.mark.parametrize("env", ["BallInCupCatch-v1", "G1JoystickFlatTerrain-v1"])
def test_papers_recipes_have_no_penalty_and_no_held_noise(name, env):
    algorithm = api.make_experiment(name, env).algorithm
    assert (algorithm.preactivation_penalty, algorithm.noise_repeats) == (0.0, 1)
    assert not algorithm.normalize_rewards


@pytest.mark.parametrize("name", ["td3-gru", "sac-gru"])
def test_recipes_with_memory_have_the_papers_settings_on_a_gpu(name):
    experiment = find(name).make(RecipeArgs("HopperStand-v1", device="cuda"))
    algorithm, system = experiment.algorithm, experiment.system
    assert (algorithm.sequence_length, algorithm.core_size, algorithm.embedding) == (64, 128, 64)
    assert (algorithm.actor_hidden, algorithm.critic_hidden) == ((256, 256), (256, 256))
    assert (algorithm.actor_lr, algorithm.critic_lr, algorithm.tau, algorithm.gamma) == (
        3e-4,
        3e-4,
        0.005,
        0.99,
    )
    assert (system.schedule.batch_size, system.schedule.updates_per_step) == (64, experiment.env.envs)
    assert system.replay_capacity * (algorithm.sequence_length - algorithm.overlap) == 1_000_000
    assert experiment.env.last_step and api.make_experiment(name, "Pendulum-v1").env.last_step


@pytest.mark.parametrize("name", ["fasttd3", "sac", "flashsac", "td3", "td3-gru", "sac-gru"])
def test_settings_do_not_depend_on_the_task_within_a_suite(name):
    tasks = ("BallInCupCatch-v1", "CheetahRun-v1", "HumanoidWalk-v1", "Ant-v5", "Pendulum-v1")
    assert len({api.make_experiment(name, task).algorithm for task in tasks}) == 1
