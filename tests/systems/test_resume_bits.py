"""A run that is saved and loaded into new objects continues bit-equal to one that was not interrupted."""

import copy

import pytest
import torch
from small_systems import differing_paths, flatten_state

from troop.algorithms import DQNConfig, RainbowConfig, TD3Config
from troop.core.system import Evaluation, RunSettings
from troop.engines.host import Host
from troop.envs import EnvPool, Toy
from troop.replay.prioritized import PriorityConfig
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync

SETTINGS = RunSettings(1, "cpu", Evaluation(episodes=2))
TD3 = {
    "actor_hidden": (8,),
    "critic_hidden": (16,),
    "atoms": 11,
    "policy_noise": 0.1,
    "lr_end": 0.1,
    "lr_updates": 100,
    "normalize_rewards": True,
}
ENVS = {
    "toy same_step": Toy("PointMass", 3, limit=7),
    "toy next_step": Toy("Countdown", 3, limit=7, autoreset="next_step"),
    "pendulum": EnvPool("Pendulum-v1", 3, 1, (("max_episode_steps", 7),)),
}
UNIFORM = PriorityConfig()


def make_host(
    env,
    n_step=1,
    overlap=False,
    recreate_every=14,
    envs=None,
    replay_capacity=60,
    algorithm=None,
    priority=UNIFORM,
):
    system = Sync(
        UpdateSchedule(16, 2, overlap),
        replay_capacity=replay_capacity,
        learning_starts=4,
        recreate_every=recreate_every,
        priority=priority,
    )
    algorithm = algorithm or TD3Config(n_step=n_step, **TD3)
    return Host(system.program(algorithm, env.with_envs(envs or env.envs), SETTINGS), 1)


def step_losses(host, rounds):
    """Step this many rounds; return all losses."""
    metrics = [host.step_all()[0] for _ in range(rounds)]
    return [float(m[name]) for m in metrics for name in ("loss/critic", "loss/policy") if name in m]


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.reliability("R1")
def test_resumed_td3_is_bit_equal_to_an_uninterrupted_run(env, n_step, overlap):
    if env == "pendulum":
        pytest.importorskip("envpool")
    uninterrupted = make_host(ENVS[env], n_step, overlap)
    losses = step_losses(uninterrupted, 54)
    final_state = copy.deepcopy(uninterrupted.state_dict())
    uninterrupted.close()
    first = make_host(ENVS[env], n_step, overlap)
    losses_before = step_losses(first, 27)  # mid-episode, envs recreated once, the ring has wrapped around
    state = copy.deepcopy(first.state_dict())
    first.close()
    torch.manual_seed(12345)  # a new process has another state of the random generators
    second = make_host(ENVS[env], n_step, overlap)
    second.load_state_dict(state)
    assert second.notes() == []
    assert losses_before + step_losses(second, 27) == losses
    assert len(losses) > 50
    assert differing_paths(final_state, second.state_dict()) == []
    paths = set(flatten_state(final_state))
    for part in ("moments", "rng", "normalizer", "replay/storage/rows", "collector/explore", "scale/returns"):
        assert any(part in path for path in paths), part
    second.close()


VALUE_LEARNERS = {
    "dqn": (DQNConfig(hidden=(8,), epsilon_steps=100, target_update_period=7), UNIFORM),
    "prioritized": (
        DQNConfig(hidden=(8,), n_step=3, double=True, optimizer="adam"),
        PriorityConfig(alpha=0.6, beta_end=1.0, beta_anneal_batches=80, normalize_weights_by="buffer"),
    ),
    "rainbow": (RainbowConfig(hidden=(8,), target_update_period=7), PriorityConfig(alpha=0.5)),
}
DISCRETE_ENVS = {
    "cartpole": EnvPool("CartPole-v1", 3, 1, (("max_episode_steps", 9),)),
    "pixels": EnvPool("Catch-v0", 3, 1),
}


@pytest.mark.parametrize("env", DISCRETE_ENVS)
@pytest.mark.parametrize("learner", VALUE_LEARNERS)
@pytest.mark.reliability("R1")
def test_resumed_value_learner_is_bit_equal_including_priorities_and_noise(learner, env):
    pytest.importorskip("envpool")
    algorithm, priority = VALUE_LEARNERS[learner]

    def make():
        return make_host(DISCRETE_ENVS[env], overlap=True, algorithm=algorithm, priority=priority)

    uninterrupted = make()
    losses = step_losses(uninterrupted, 54)
    final_state = copy.deepcopy(uninterrupted.state_dict())
    first = make()
    losses_before = step_losses(first, 27)
    state = copy.deepcopy(first.state_dict())
    torch.manual_seed(12345)
    second = make()
    second.load_state_dict(state)
    assert second.notes() == []
    assert losses_before + step_losses(second, 27) == losses and len(losses) > 30
    assert differing_paths(final_state, second.state_dict()) == []
    if priority.alpha:
        assert any("leaves" in path for path in flatten_state(final_state))
    for host in (uninterrupted, first, second):
        host.close()


@pytest.mark.reliability("R4")
def test_resume_with_fewer_envs_continues_and_notes_the_dropped_rows():
    first = make_host(ENVS["toy same_step"], n_step=3, envs=4, replay_capacity=80)
    step_losses(first, 30)
    state = copy.deepcopy(first.state_dict())
    rows_before = len(first.roles["trainer"].replay)
    second = make_host(ENVS["toy same_step"], n_step=3, envs=2, replay_capacity=80)
    second.load_state_dict(state)
    dropped = rows_before - len(second.roles["trainer"].replay)
    replay_note, episode_note = second.notes()
    assert replay_note.startswith(f"dropped {dropped:,} replay rows") and dropped == rows_before // 2
    assert "all envs start new ones" in episode_note
    assert second.roles["trainer"].version == first.roles["trainer"].version
    assert all(abs(x) < 1e6 for x in step_losses(second, 10))


def test_resume_without_recorded_actions_ends_all_streams():
    first = make_host(ENVS["toy same_step"], recreate_every=0)
    step_losses(first, 20)
    second = make_host(ENVS["toy same_step"], recreate_every=0)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert len(second.notes()) == 1
    storage = second.roles["trainer"].replay.storage
    newest = [
        stream * storage.length + (int(written) - 1) % storage.length
        for stream, written in enumerate(storage.rows_written)
    ]
    assert (storage.flags[newest] & 7).tolist() == [4, 4, 4]  # closing rows


@pytest.mark.reliability("R1")
def test_two_runs_with_the_same_seed_are_bit_equal():
    results = []
    for _ in range(2):
        host = make_host(ENVS["toy next_step"])
        results.append((step_losses(host, 20), copy.deepcopy(host.state_dict())))
    (losses, state), (other_losses, other_state) = results
    assert losses == other_losses and differing_paths(state, other_state) == []
