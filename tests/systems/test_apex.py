import copy
import dataclasses
import statistics

import numpy as np
import pytest
import torch
from watching import RunObserver

from troop.algorithms import C51Config, RainbowConfig
from troop.algorithms.dqn import DQNConfig
from troop.algorithms.td3 import TD3Config
from troop.core.batch import TrajectorySpec
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.core.exploration import LinearSchedule, PerEpisodeUniform
from troop.core.program import construct
from troop.engines import Processes
from troop.engines.host import Host
from troop.envs import Toy
from troop.experiment import Experiment
from troop.roles.learner import LearnerConfig
from troop.systems import Gorila, Sync
from troop.systems.apex import Apex
from troop.systems.components import epsilon_ladder, exploration_rates, ramp
from troop.systems.settings import Evaluation, RunSettings

SETTING = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=10**9, longest=100))
DQN = DQNConfig(hidden=(8,), n_step=3, double=True, optimizer="adam", target_period=9)
SMALL = Apex(
    actors=2,
    chunk_length=4,
    weight_sync_steps=10,
    learner=LearnerConfig(8, 2, 3),
    replay_capacity=800,
    learning_starts=40,
    samples_per_insert=2.0,
)
CLOCK = Toy("Clock", 2, limit=100_000, discrete=True)  # its observation counts its steps


def test_the_ladder_has_the_papers_numbers():
    thirty_two = epsilon_ladder(32)
    assert [round(x, 4) for x in thirty_two[:4]] == [0.4, 0.3252, 0.2645, 0.215]
    assert round(thirty_two[-1], 6) == 0.000655
    eight = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.0041, 0.00164, 0.000655]
    assert epsilon_ladder(8) == pytest.approx(eight, rel=2e-3)
    many = epsilon_ladder(360)
    assert round(statistics.median(many), 4) in (0.0162, 0.0163) and round(statistics.mean(many), 4) == 0.0626
    assert epsilon_ladder(1) == [0.4] and epsilon_ladder(2, 0.5, 1.0) == [0.5, 0.25]


def test_who_draws_a_noise_gets_a_ramp_and_who_holds_still_keeps_it():
    assert exploration_rates(PerEpisodeUniform(0.1, 0.5), 5, 0.4, 7.0) == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.5]
    )
    assert exploration_rates(PerEpisodeUniform(0.3, 0.3), 3, 0.4, 7.0) == pytest.approx([0.3] * 3)
    assert exploration_rates(LinearSchedule(1.0, 1.0, 1), 2, 0.4, 7.0) == [1.0, 1.0]
    assert exploration_rates(LinearSchedule(1.0, 0.1, 100), 4, 0.4, 7.0) == epsilon_ladder(4)
    assert exploration_rates(LinearSchedule(2.0, 1.02, 100), 4, 0.4, 7.0) == [
        1 + x for x in epsilon_ladder(4)
    ]
    assert ramp(1, 0.0, 1.0) == [0.5]


def built(system, algorithm=DQN, env=CLOCK, setting=SETTING):
    roles = {}
    for name, node in system.program(algorithm, env, setting).nodes.items():
        roles[name] = construct(node.build, roles.__getitem__)
    return roles


def explored(roles):
    actors = [role for name, role in roles.items() if name.startswith("actor")]
    return [torch.cat([c.explore for c in actor.sampler.collectors]).tolist() for actor in actors]


def test_all_envs_of_all_actors_share_one_ladder_and_each_actor_has_rungs_from_top_to_bottom():
    per_actor = explored(built(dataclasses.replace(SMALL, actors=4)))
    assert sorted(
        (x for exploration_rates in per_actor for x in exploration_rates), reverse=True
    ) == pytest.approx(epsilon_ladder(8))
    assert all(max(exploration_rates) > 8 * min(exploration_rates) for exploration_rates in per_actor)


def test_streams_of_actors_do_not_overlap_with_or_without_shards():
    roles = built(dataclasses.replace(SMALL, actors=5, replay_shards=2))
    streams = {0: [], 1: []}
    for i in range(5):
        actor = roles[f"actor{i}"]
        assert actor.store is roles["replay1" if i % 2 else "replay"]
        streams[i % 2] += torch.cat(actor.sampler.streams()).tolist()
    assert sorted(streams[0]) == list(range(6)) and sorted(streams[1]) == list(range(4))
    assert roles["replay"].store.streams.streams == 6 and roles["replay1"].store.streams.streams == 4


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"replay_shards": 3}, "--system.replay-shards is 3; it must be at most the 2 actors"),
        ({"tolerance": 3}, "--system.tolerance is 3; it must be 0 or at least 4"),
        ({"learning_starts": 800}, "--system.learning-starts is 800; it must be below the capacity, 800"),
        ({"replay_capacity": 45}, "--system.replay-capacity is 45; with 4 env streams it must be at least"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_starts(changes, said):
    with pytest.raises(BadInput, match=said):
        dataclasses.replace(SMALL, **changes).program(DQN, CLOCK, SETTING)


def test_algorithms_that_want_trajectories_are_refused():
    class Wants(TD3Config):
        experience = TrajectorySpec(8)

    with pytest.raises(BadInput, match="Wants wants trajectories"):
        SMALL.program(Wants(), Toy("Clock", 2), SETTING)


@pytest.mark.parametrize("system", [SMALL, Gorila(), Sync()], ids=["apex", "gorila", "sync"])
def test_nothing_is_started_or_left_of_a_pair_that_cannot_be(system, tmp_path, monkeypatch):
    class Wants(TD3Config):
        experience = TrajectorySpec(8)

    monkeypatch.setattr(Processes, "run", None)
    run = Experiment(Toy("Clock", 2), Wants(), system, Processes(), Until(env_steps=10))
    with pytest.raises(
        BadInput, match="Wants wants trajectories; this system hands out transitions"
    ) as caught:
        run.run(tmp_path / "run")
    assert caught.value.exit_code == 2 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "algorithm, told",
    [
        (DQN, True),
        (DQNConfig(hidden=(8,), noisy=0.5), True),
        (C51Config(hidden=(8,), atoms=5), False),
        (RainbowConfig(hidden=(8,), atoms=5), False),
    ],
)
def test_new_rows_have_a_priority_of_their_own_only_where_the_learner_has_the_same_kind(algorithm, told):
    host = Host(
        dataclasses.replace(SMALL, replay_capacity=4000, learning_starts=300).program(
            algorithm, CLOCK, SETTING
        ),
        3,
    )
    pieces, add = [], host.roles["replay"].add
    for i in range(2):
        host.roles[f"actor{i}"].store.add = lambda piece: (pieces.append(piece), add(piece))
    for _ in range(60):
        host.round()
    assert len(pieces) > 5 and all((piece.priority is not None) == told for piece in pieces)
    leaves = host.roles["replay"].store.waiting[host.roles["replay"].store.waiting > 0]
    assert told or np.allclose(leaves, (1 + 1e-6) ** 0.6)  # the largest there was: none was learned from yet


def numbers(state, limit=100_000):
    """The step that each row of each stream says it was made in, and which rows are closing ones."""
    streams = state["streams"]
    rows, flags, heads = streams["rows"], streams["flags"], streams["heads"].tolist()
    assert max(heads) < streams["length"], "the ring has wrapped"
    return [
        ((rows[s, :head, 0] * limit).round().long().tolist(), (flags[s, :head] & 4).bool().tolist())
        for s, head in enumerate(heads)
    ]


def test_every_row_reaches_the_replay_once_and_in_order():
    host = Host(dataclasses.replace(SMALL, replay_capacity=4000).program(DQN, CLOCK, SETTING), 3)
    for _ in range(200):
        host.round()
    for steps, closing in numbers(host.state_dict()["replay.replay"]):
        assert steps == list(range(len(steps))) and not any(closing) and len(steps) > 40


def test_no_window_reaches_across_the_death_of_an_actor():
    program = dataclasses.replace(SMALL, replay_capacity=4000, learning_starts=10).program(
        DQN, CLOCK, SETTING
    )
    host = Host(program, 3)
    for _ in range(60):
        host.round()
    host.roles["actor1"] = construct(program.nodes["actor1"].build, host.roles.__getitem__)
    for _ in range(60):
        host.round()
    (_, whole), (_, also), *restarted = numbers(host.state_dict()["replay.replay"])
    assert not any(whole) and not any(also)
    for steps, closing in restarted:
        at = closing.index(True)
        assert steps[: at + 1] == list(range(at + 1)) and sum(closing) == 1
        assert steps[at + 1 :] == list(range(len(steps) - at - 1))
    batch = host.roles["replay"].store.sample(2000)
    before, after = (100_000 * obs["obs"][:, 0] for obs in (batch.obs, batch.next_obs))
    ahead = (after - before).round()
    assert ahead.min() >= 1 and ahead.max() == 3 and torch.allclose(batch.discount, 0.99**ahead)


def rounds(host, count):
    moved = [m for _ in range(count) for m in host.round()]
    return [float(m["loss/critic"]) for m in moved if "loss/critic" in m]


def leaves(state, path=""):
    if isinstance(state, dict):
        return {k: v for key, x in state.items() for k, v in leaves(x, f"{path}/{key}").items()}
    if isinstance(state, list):
        return {k: v for i, x in enumerate(state) for k, v in leaves(x, f"{path}/{i}").items()}
    return {path: state}


@pytest.mark.parametrize("env", ["same_step", "next_step"])
@pytest.mark.parametrize("limited", [0.0, 2.0])
def test_a_resumed_run_is_bit_equal_to_one_that_was_not_stopped(env, limited):
    config = Toy("PointMass", 3, limit=7, discrete=True, autoreset=env)
    system = dataclasses.replace(SMALL, recreate_every=20, samples_per_insert=limited)
    whole, first, second = (Host(system.program(DQN, config, SETTING), 3) for _ in range(3))
    torch.manual_seed(1)
    losses = rounds(whole, 90)
    torch.manual_seed(1)
    before = rounds(first, 43)
    state = copy.deepcopy(first.state_dict())
    torch.manual_seed(12345)
    second.load_state_dict(state)
    assert second.notes() == []
    assert before + rounds(second, 47) == losses and len(losses) > 30
    one, two = leaves(whole.state_dict()), leaves(second.state_dict())
    assert one.keys() == two.keys()
    for key, x in one.items():
        if key.endswith("/waiting"):
            continue  # what stands where no row was written yet has no meaning
        same = (
            torch.allclose(x, two[key], 0, 0, equal_nan=True)
            if isinstance(x, torch.Tensor)
            else x == two[key]
        )
        assert same, key


def test_it_runs_in_processes_and_loses_nothing():
    system = dataclasses.replace(SMALL, replay_capacity=400_000, samples_per_insert=4.0, chunk_length=8)
    watch = RunObserver()
    program = system.program(DQN, CLOCK, SETTING)
    result = Processes(threads=1, log_s=0.2).run(program, Until(env_steps=1500), 3, watch)
    assert result.status == "done" and result.counters.restarts == 0
    streams = numbers(watch.state["replay.replay"])
    for steps, closing in streams:
        assert steps == list(range(len(steps))) and not any(closing)
    kept = sum(len(steps) for steps, _ in streams)
    assert kept == watch.state["replay.inserted"] and 1200 < kept <= result.counters.env_steps
    assert watch.state["replay.sampled"] // 8 - result.counters.updates in range(3)  # some were asked ahead
    owed = 4.0 * (kept - system.learning_starts)
    assert abs(watch.state["replay.sampled"] - owed) < 16 + 4.0 * 8 * 4 * 5
    assert watch.evaluations and watch.state["weights.version"] > 0
    lags = [line["policy/lag"] for line in watch.lines if "policy/lag" in line]
    assert lags and all(lag > 0 for lag in lags)
