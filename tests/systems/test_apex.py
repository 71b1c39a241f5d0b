import copy
import dataclasses

import numpy as np
import pytest
import torch
from recording_observer import RecordingObserver
from small_systems import (
    APEX,
    DISCRETE_CLOCK,
    DQN,
    SETTINGS,
    TrajectoryConfig,
    build_roles,
    clock_steps,
    differing_paths,
    exploration_values,
    inline_host,
    step_rounds,
)

from troop.algorithms import C51Config, DQNConfig, RainbowConfig, TD3Config
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.core.exploration import EpsilonLadder
from troop.core.program import construct
from troop.engines import Processes
from troop.envs import Toy
from troop.experiment import Experiment
from troop.systems import Gorila, Sync


def test_envs_of_all_actors_share_one_ladder_and_each_actor_has_low_and_high_epsilons():
    system = dataclasses.replace(APEX, actors=4)
    roles = build_roles(system)
    per_actor = [exploration_values(roles[f"actor{i}"]).tolist() for i in range(4)]
    ladder = EpsilonLadder(system.epsilon_base, system.epsilon_alpha).values(8)
    assert sorted((x for values in per_actor for x in values), reverse=True) == pytest.approx(ladder)
    assert all(max(values) > 8 * min(values) for values in per_actor)


def test_base_and_alpha_of_the_ladder_are_settings():
    roles = build_roles(dataclasses.replace(APEX, actors=1, epsilon_base=0.5, epsilon_alpha=1.0))
    assert exploration_values(roles["actor0"]).tolist() == [0.5, 0.25]


def test_streams_of_actors_do_not_overlap_with_or_without_shards():
    roles = build_roles(dataclasses.replace(APEX, actors=5, replay_shards=2))
    streams = {0: [], 1: []}
    for i in range(5):
        actor = roles[f"actor{i}"]
        assert actor.replay is roles["replay1" if i % 2 else "replay"]
        streams[i % 2] += torch.cat(actor.sampler.streams()).tolist()
    assert sorted(streams[0]) == list(range(6)) and sorted(streams[1]) == list(range(4))
    storages = [roles[name].replay.storage for name in ("replay", "replay1")]
    assert [storage.num_streams for storage in storages] == [6, 4]
    assert {storage.length for storage in storages} == {APEX.replay_capacity // 10}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"replay_shards": 3}, r"--system.replay-shards is 3; it must be at most --system.actors, 2\."),
        ({"tolerance": 3}, "--system.tolerance is 3; it must be 0 or at least 4, half a batch"),
        (
            {"learning_starts": 800},
            "--system.learning-starts is 800; it must be below --system.replay-capacity, 800",
        ),
        ({"replay_capacity": 45}, "--system.replay-capacity is 45; with 4 envs it must be at least"),
    ],
)
def test_contradictory_settings_raise_before_anything_starts(changes, message):
    with pytest.raises(BadInput, match=message):
        dataclasses.replace(APEX, **changes).program(DQN, DISCRETE_CLOCK, SETTINGS)


def test_rewards_of_two_shards_are_divided_by_one_value():
    algorithm = TD3Config(actor_hidden=(8,), critic_hidden=(8,), atoms=11, normalize_rewards=True)
    host = inline_host(dataclasses.replace(APEX, replay_shards=2), algorithm, Toy("Clock", 2, limit=100))
    step_rounds(host, 60)
    shards = [host.roles["replay"], host.roles["replay1"]]
    shards[1].replay.reward_scale.returns.fill_(100.0)  # as if its envs had been paid more so far
    step_rounds(host, 60)
    one, two = (shard.replay.reward_scale.value.item() for shard in shards)
    batch = host.roles["learner"].source.sample(16)  # all rewards of Clock are 1
    assert two > 1.5 * one and len(batch.reward.unique()) == 1
    assert 1 / two < batch.reward[0].item() < 1 / one


def test_capacity_in_the_error_message_is_that_of_all_shards():
    system = dataclasses.replace(APEX, replay_shards=2, replay_capacity=45)
    with pytest.raises(BadInput, match=r"--system.replay-capacity is 45; with 4 envs"):
        system.program(DQN, DISCRETE_CLOCK, SETTINGS)


@pytest.mark.parametrize("system", [APEX, Gorila(), Sync()], ids=["apex", "gorila", "sync"])
def test_algorithm_that_learns_from_trajectories_is_rejected_before_anything_starts(
    system, tmp_path, monkeypatch
):
    monkeypatch.setattr(Processes, "run", None)
    name = type(system).__name__.lower()
    experiment = Experiment(Toy("Clock", 2), TrajectoryConfig(), system, Processes(), Until(env_steps=10))
    message = (
        f"TrajectoryConfig learns from trajectories, but the {name} system samples n-step transitions; use"
    )
    with pytest.raises(BadInput, match=message) as caught:
        experiment.run(tmp_path / "run")
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "algorithm, by_actor",
    [
        (DQN, True),
        (DQNConfig(hidden=(8,), noisy=0.5), True),
        (C51Config(hidden=(8,), atoms=5), False),
        (RainbowConfig(hidden=(8,), atoms=5), False),
    ],
)
def test_actors_compute_initial_priorities_only_if_they_are_td_errors_like_the_learners(algorithm, by_actor):
    system = dataclasses.replace(APEX, replay_capacity=4000, learning_starts=300)
    host = inline_host(system, algorithm)
    replay, rollouts = host.roles["replay"], []
    add = replay.add
    for i in range(2):
        host.roles[f"actor{i}"].replay.add = lambda rollout: (rollouts.append(rollout), add(rollout))
    step_rounds(host, 60)
    assert len(rollouts) > 5 and all(("priority" in rollout.extras) == by_actor for rollout in rollouts)
    leaves = replay.replay.pending[replay.replay.pending > 0]
    assert by_actor or np.allclose(leaves, (1 + 1e-6) ** 0.6)  # the largest priority before any update


def test_every_row_reaches_the_replay_once_and_in_order():
    host = inline_host(dataclasses.replace(APEX, replay_capacity=4000))
    step_rounds(host, 200)
    for steps, closing in clock_steps(host.state_dict()["replay.replay"]):
        assert steps == list(range(len(steps))) and not any(closing) and len(steps) > 40


def test_no_n_step_window_crosses_the_restart_of_an_actor():
    system = dataclasses.replace(APEX, replay_capacity=4000, learning_starts=10)
    host = inline_host(system)
    step_rounds(host, 60)
    node = system.program(DQN, DISCRETE_CLOCK, SETTINGS).nodes["actor1"]
    host.roles["actor1"] = construct(node.build, host.roles.__getitem__)
    step_rounds(host, 60)
    (_, closing0), (_, closing1), *restarted = clock_steps(host.state_dict()["replay.replay"])
    assert not any(closing0) and not any(closing1)
    for steps, closing in restarted:
        end = closing.index(True)
        assert steps[: end + 1] == list(range(end + 1)) and sum(closing) == 1
        assert steps[end + 1 :] == list(range(len(steps) - end - 1))
    batch = host.roles["replay"].replay.sample(2000)
    first, last = (100_000 * obs["obs"][:, 0] for obs in (batch.obs, batch.next_obs))
    steps = (last - first).round()
    assert steps.min() >= 1 and steps.max() == 3 and torch.allclose(batch.discount, 0.99**steps)


def critic_losses(host, rounds):
    return [float(m["loss/critic"]) for m in step_rounds(host, rounds) if "loss/critic" in m]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("samples_per_insert", [0.0, 2.0])
@pytest.mark.reliability("R2")
def test_resumed_run_is_bit_equal_to_an_uninterrupted_one(autoreset, samples_per_insert):
    env = Toy("PointMass", 3, limit=7, discrete=True, autoreset=autoreset)
    system = dataclasses.replace(APEX, recreate_every=20, samples_per_insert=samples_per_insert)
    uninterrupted, first, second = (inline_host(system, env=env) for _ in range(3))
    torch.manual_seed(1)
    losses = critic_losses(uninterrupted, 90)
    torch.manual_seed(1)
    losses_before = critic_losses(first, 43)
    state = copy.deepcopy(first.state_dict())
    torch.manual_seed(12345)
    second.load_state_dict(state)
    assert second.notes() == []
    assert losses_before + critic_losses(second, 47) == losses and len(losses) > 30
    # Pending priorities of slots that were never written have no meaning.
    assert differing_paths(uninterrupted.state_dict(), second.state_dict(), ignore=("/pending",)) == []


def test_run_in_processes_loses_no_row():
    system = dataclasses.replace(APEX, replay_capacity=400_000, samples_per_insert=4.0, chunk_length=8)
    observer = RecordingObserver()
    program = system.program(DQN, DISCRETE_CLOCK, SETTINGS)
    result = Processes(threads=1, log_s=0.2).run(program, Until(env_steps=1500), 3, observer)
    assert result.status == "done" and result.counters.restarts == 0
    streams = clock_steps(observer.state["replay.replay"])
    for steps, closing in streams:
        assert steps == list(range(len(steps))) and not any(closing)
    rows, sampled = sum(len(steps) for steps, _ in streams), observer.state["replay.sampled"]
    assert rows == observer.state["replay.inserted"] and 1200 < rows <= result.counters.env_steps
    assert sampled // 8 - result.counters.updates in range(3)  # some batches were prefetched
    target = 4.0 * (rows - system.learning_starts)
    assert abs(sampled - target) < 16 + 4.0 * 8 * 4 * 5
    assert observer.evaluations and observer.state["weights.version"] > 0
    lags = [line["policy/lag"] for line in observer.lines if "policy/lag" in line]
    assert lags and all(lag > 0 for lag in lags)
