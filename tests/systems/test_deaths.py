"""Hosts of Ape-X and Gorila are killed while they work: the run continues and no row is corrupted."""

import dataclasses
import itertools
import os

import pytest
from host_killer import HostKiller, host_processes
from small_systems import APEX, DQN, GORILA
from traced_env import TracedEnvConfig, check_replay_rows, steps_taken

from troop.core.engine import Until
from troop.core.system import Evaluation, RunSettings
from troop.engines import Processes

SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=200, max_episode_steps=20))
ENGINE = Processes(threads=1, log_s=0.05, checkpoint_s=0.3)
PLAN = (("replay",), ("actor1",), ("actor0", "actor1"), ("learner",), ("weights",), ("evaluator",))
TRACED_APEX = dataclasses.replace(APEX, replay_capacity=400_000, samples_per_insert=1.0, overlap=False)


def run_with_kills(system, directory, plan, **progress):
    """Run the system and kill hosts by `plan`; return the observer, the result and the env's directory."""
    observer = HostKiller(plan, **progress)
    program = system.program(DQN, TracedEnvConfig(str(directory)), SETTINGS)
    result = ENGINE.run(program, Until(minutes=3), 3, observer)
    return observer, result, directory


@pytest.fixture(scope="module")
def apex(tmp_path_factory):
    """One run in which every host is killed once, and actors twice."""
    return run_with_kills(TRACED_APEX, tmp_path_factory.mktemp("envs"), PLAN)


@pytest.mark.parametrize("killed", PLAN, ids="+".join)
@pytest.mark.reliability("K1", "K2")
def test_killed_hosts_are_restarted_and_the_run_continues(killed, apex):
    observer, result, _ = apex
    assert result.status == "stopped", "the run ended before all kills of the plan"
    counters = [kill.counters for kill in observer.kills] + [result.counters]
    index = PLAN.index(killed)
    before, after = counters[index], counters[index + 1]
    assert after.restarts == before.restarts + len(killed)
    assert after.env_steps > before.env_steps and after.updates > before.updates
    for name in killed:
        assert any(f"{name} died (killed by SIGKILL); restart" in note for note in observer.notes)


@pytest.mark.reliability("K1")
def test_no_row_is_corrupted_repeated_or_out_of_order(apex):
    observer, _, _ = apex
    stored = check_replay_rows(observer.state["replay.replay"], envs=2)
    assert len(stored) >= 4 and sum(len(steps) for steps in stored.values()) > 300


@pytest.mark.reliability("K1")
def test_killed_actor_loses_only_rows_that_it_had_not_sent(apex):
    observer, _, directory = apex
    stored, taken = check_replay_rows(observer.state["replay.replay"], envs=2), steps_taken(directory)
    # The kill of the replay also lost rows of the first instances, but not their last ones.
    unsent = {instance: taken[instance] - max(steps) - 1 for instance, steps in stored.items()}
    # A chunk, the rows that wait for their n-step window, and a chunk that was being sent.
    assert max(unsent.values()) <= 2 * APEX.chunk_length + DQN.n_step


@pytest.mark.reliability("K4")
def test_killed_replay_continues_from_its_checkpoint(apex):
    observer, _, _ = apex
    saved = int(min(observer.kills[0].state["replay.replay"]["storage"]["rows_written"]))
    stored = check_replay_rows(observer.state["replay.replay"], envs=2)
    for instance in range(2):  # the saved rows of the first instances are still stored
        steps = stored[instance]
        assert steps[: saved - 1] == list(range(saved - 1))
        gaps = [(a, b) for a, b in itertools.pairwise(steps) if b != a + 1]
        assert len(gaps) <= 1  # rows between the checkpoint and the kill are lost


@pytest.mark.reliability("K6")
def test_killed_learner_continues_from_its_checkpoint(apex):
    observer, result, _ = apex
    kill = observer.kills[PLAN.index(("learner",))]
    saved, before = kill.state["learner.counts"]["updates"], kill.counters.updates
    assert 0 < saved <= before
    updates = observer.state["learner.counts"][
        "updates"
    ]  # without those after the checkpoint, which are lost
    assert saved < updates <= result.counters.updates - (before - saved) + 1


@pytest.mark.reliability("K5")
def test_killed_evaluator_evaluates_again(apex):
    observer, _, _ = apex
    assert len(observer.evaluations) > observer.kills[-1].evaluations


@pytest.mark.reliability("T6")
def test_no_process_is_left_behind(apex):
    observer, _, _ = apex
    assert len(observer.pids) >= 6 + len(list(itertools.chain(*PLAN)))
    assert not [pid for pid in observer.pids if os.path.exists(f"/proc/{pid}")]
    assert not host_processes(os.getpid())


@pytest.fixture(scope="module")
def gorila(tmp_path_factory):
    """A run in which the parameter server is killed, then a bundle whose replay is not saved."""
    system = dataclasses.replace(GORILA, replay_capacity=40_000, save_replay=False)
    plan = (("server",), ("bundle1",))
    return run_with_kills(system, tmp_path_factory.mktemp("envs"), plan, steps=400, updates=100)


@pytest.mark.reliability("K5")
def test_killed_parameter_server_continues_from_its_checkpoint(gorila):
    observer, _, _ = gorila
    first, second = observer.kills
    saved, later = (kill.state["server.slices"]["0"]["version"] for kill in (first, second))
    updates = second.counters.updates - first.counters.updates
    assert saved > 50 and saved < later <= saved + updates + 1
    counts = second.state["server.counts"]
    assert sum(counts.values()) > sum(first.state["server.counts"].values()) and counts["applied"] == later


def test_applied_and_dropped_gradients_are_logged(gorila):
    observer, _, _ = gorila
    names = ("applied", "dropped_stale", "dropped_outlier")
    logged = {name: observer.metrics[f"server/{name}"] for name in names}
    counts = observer.state["server.counts"]  # of the last checkpoint, which is newer than the last log line
    assert logged["applied"] > 0 and all(logged[name] <= counts[name] for name in names)
    assert "server/delay" in observer.metrics


def test_killed_bundle_loses_only_its_own_replay(gorila):
    observer, result, _ = gorila
    _, kill = observer.kills
    before, after = kill.metrics, observer.metrics
    assert after["replay0/rows"] > before["replay0/rows"] and after["replay1/rows"] < before["replay1/rows"]
    versions = [state["server.slices"]["0"]["version"] for state in (kill.state, observer.state)]
    assert versions[1] > versions[0] and result.counters.restarts == 2
