"""The tables of tasks: known envs, plausible references, and sources that can be checked on this machine."""

import gymnasium
import pytest

from troop.core.env import Continuous
from troop.core.errors import BadInput
from troop.envs import family, resolve
from troop.envs.atari_scores import SCORES
from troop.suites.classic import SOLVED
from troop.suites.random_returns import random_return
from troop.suites.registry import SUITES, find_suite, find_task, parse_suite

EVERY = [(name, task) for name in SUITES for task in find_suite(name).tasks]
IDS = [f"{name} {task.env}" for name, task in EVERY]


@pytest.mark.parametrize("name", SUITES)
def test_suite_has_distinct_tasks_with_sources(name):
    suite = find_suite(name)
    assert suite.name == name and len(set(suite.envs)) == len(suite.tasks) > 0
    assert {task.source for task in suite.tasks} <= set(suite.sources)


@pytest.mark.parametrize(("name", "task"), EVERY, ids=IDS)
def test_task_is_a_known_env_with_a_reference_above_random(name, task):
    assert resolve(task.env).id == task.env
    assert task.reference is None or task.reference > task.random


def test_sizes_and_families():
    sizes = {"dmc": 26, "dmc-12": 12, "gym-mujoco": 8, "classic": 9, "atari-5": 5}
    assert {name: len(find_suite(name).tasks) for name in SUITES} == sizes
    assert set(find_suite("dmc-12").tasks) < set(find_suite("dmc").tasks)
    assert {family(env) for env in find_suite("dmc").envs} == {"dmc"}
    assert {family(env) for env in find_suite("gym-mujoco").envs} == {"gym-mujoco"}


def test_dmc_tasks_have_vector_observations():
    for env in find_suite("dmc-12").envs:
        spec = resolve(env).spec
        assert len(spec.obs["obs"].shape) == 1 and isinstance(spec.action, Continuous)


@pytest.mark.parametrize(
    "task", [t for t in find_suite("classic").tasks if t.source == SOLVED], ids=lambda t: t.env
)
def test_classic_references_are_the_thresholds_of_gymnasium(task):
    assert task.reference == gymnasium.spec(task.env).reward_threshold


def test_atari_references_are_the_published_scores():
    for task in find_suite("atari-5").tasks:
        assert (task.random, task.reference) == SCORES[task.env.removesuffix("-v5")]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "Reacher-v5"])
def test_random_return_agrees_with_the_table(env):
    mean, error = random_return(env, episodes=60, seed=5)
    task, _ = find_task(env)
    assert abs(mean - task.random) < 4 * error * (1 + 60 / 200) ** 0.5


def test_random_return_is_reproducible():
    assert random_return("CartPole-v1", episodes=5) == random_return("CartPole-v1", episodes=5)


def test_find_task_in_any_suite():
    task, citation = find_task("CheetahRun-v1")
    assert task.env == "CheetahRun-v1" and "TD-MPC2" in citation
    assert find_task("toy:Clock") is None


def test_suite_is_a_name_or_a_list_of_envs():
    assert parse_suite("dmc-12") == ("dmc-12", find_suite("dmc-12").envs)
    assert parse_suite("Pendulum-v1,toy:Clock,Pendulum-v1") == (None, ("Pendulum-v1", "toy:Clock"))
    assert parse_suite("CartPole-v1") == (None, ("CartPole-v1",))
    for text, message in [
        ("dmc12", "'dmc-12'"),
        ("CartPole-v1,Pendulm-v1", "'Pendulum-v1'"),
        (",", "SUITE is ','"),
    ]:
        with pytest.raises(BadInput, match=message):
            parse_suite(text)
