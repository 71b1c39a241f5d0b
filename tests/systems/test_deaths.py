"""Hosts of Ape-X and Gorila are killed in the middle of their work: the run goes on, and no row is torn."""

import dataclasses
import itertools
import os

import pytest
from besieging import Siege, hosts
from test_apex import DQN
from test_apex import SMALL as APEX
from test_gorila import SMALL as GORILA
from witness import Witness, examined, performed

from troop.core.engine import Until
from troop.engines import Processes
from troop.systems.settings import Evaluation, RunSettings

SETTING = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=200, longest=20))
ENGINE = Processes(threads=1, log_s=0.05, checkpoint_s=0.3)
PLAN = (("replay",), ("actor1",), ("actor0", "actor1"), ("learner",), ("weights",), ("evaluator",))


def besieged(system, folder, plan, **pace):
    """Run under siege; what was seen, and how it ended."""
    watch = Siege(plan, **pace)
    program = system.program(DQN, Witness(str(folder)), SETTING)
    result = ENGINE.run(program, Until(minutes=3), 3, watch)
    return watch, result, folder


@pytest.fixture(scope="module")
def apex(tmp_path_factory):
    """One run in which everybody dies once; actors, twice."""
    system = dataclasses.replace(APEX, replay_capacity=400_000, samples_per_insert=1.0, overlap=False)
    return besieged(system, tmp_path_factory.mktemp("lives"), PLAN)


@pytest.mark.parametrize("victims", PLAN, ids="+".join)
def test_those_who_are_killed_come_back_and_the_run_goes_on(victims, apex):
    watch, result, _ = apex
    assert result.status == "stopped", "it did not get to the end of the plan"
    after = [strike["counters"] for strike in watch.struck] + [result.counters]
    at = PLAN.index(victims)
    assert after[at + 1].restarts == after[at].restarts + len(victims)
    assert after[at + 1].env_steps > after[at].env_steps and after[at + 1].updates > after[at].updates
    for name in victims:
        assert any(f"{name} died (killed by SIGKILL); restart" in note for note in watch.notes)


def test_no_row_is_torn_repeated_or_out_of_order(apex):
    watch, _, _ = apex
    held = examined(watch.state["replay.replay"], envs=2)
    assert len(held) >= 4 and sum(len(steps) for steps in held.values()) > 300


def test_a_killed_actor_loses_no_more_than_what_it_had_not_sent(apex):
    watch, _, folder = apex
    held, made = examined(watch.state["replay.replay"], envs=2), performed(folder)
    # Of each actor's first life, rows were lost with the replay too: but not its last ones.
    unsent = {life: made[life] - max(steps) - 1 for life, steps in held.items()}
    assert max(unsent.values()) <= APEX.chunk_length + DQN.n_step


def test_a_killed_replay_goes_on_from_its_checkpoint(apex):
    watch, _, _ = apex
    saved = watch.struck[0]["state"]["replay.replay"]["streams"]["heads"]
    held = examined(watch.state["replay.replay"], envs=2)
    for life in range(2):  # what was saved of the first lives is still there
        assert held[life][: int(min(saved)) - 1] == list(range(int(min(saved)) - 1))
        gaps = [(a, b) for a, b in itertools.pairwise(held[life]) if b != a + 1]
        assert len(gaps) <= 1  # and what came between the checkpoint and the death is not


def test_a_killed_learner_goes_on_from_its_checkpoint(apex):
    watch, result, _ = apex
    strike = watch.struck[PLAN.index(("learner",))]
    saved, before = strike["state"]["learner.counts"]["updates"], strike["counters"].updates
    assert 0 < saved <= before
    made = watch.state["learner.counts"]["updates"]  # its own count: what it did after the checkpoint is gone
    assert saved < made <= result.counters.updates - (before - saved) + 1


def test_a_killed_evaluator_evaluates_again(apex):
    watch, _, _ = apex
    assert len(watch.evaluations) > watch.struck[-1]["evaluations"]


def test_nobody_is_left_behind(apex):
    watch, _, _ = apex
    assert len(watch.seen) >= 6 + len(list(itertools.chain(*PLAN)))
    assert not [pid for pid in watch.seen if os.path.exists(f"/proc/{pid}")] and not hosts(os.getpid())


@pytest.fixture(scope="module")
def gorila(tmp_path_factory):
    """A run in which the parameter server dies, then a bundle whose replay is not saved."""
    system = dataclasses.replace(GORILA, replay_capacity=40_000, save_replay=False)
    return besieged(
        system, tmp_path_factory.mktemp("lives"), (("server",), ("bundle1",)), steps=400, updates=100
    )


def test_a_killed_parameter_server_goes_on_from_its_last_state(gorila):
    watch, _, _ = gorila
    first, second = watch.struck
    saved = first["state"]["server.slices"]["0"]["version"]
    later = second["state"]["server.slices"]["0"]["version"]
    since = second["counters"].updates - first["counters"].updates
    assert saved > 50 and saved < later <= saved + since + 1
    counts = second["state"]["server.counts"]
    assert (
        sum(counts.values()) > sum(first["state"]["server.counts"].values())
        and counts["applied"] == later
    )


def test_what_became_of_gradients_is_told(gorila):
    watch, _, _ = gorila
    told = {what: watch.last[f"server/{what}"] for what in ("applied", "dropped_stale", "dropped_outlier")}
    counted = watch.state["server.counts"]  # in the end, a little after they were told
    assert told["applied"] > 0 and all(told[what] <= counted[what] for what in told)
    assert "server/delay" in watch.last


def test_a_killed_bundle_loses_its_own_replay_and_no_other(gorila):
    watch, result, _ = gorila
    _, strike = watch.struck
    before, after = strike["last"], watch.last
    assert after["replay0/rows"] > before["replay0/rows"] and after["replay1/rows"] < before["replay1/rows"]
    versions = [state["server.slices"]["0"]["version"] for state in (strike["state"], watch.state)]
    assert versions[1] > versions[0] and result.counters.restarts == 2
