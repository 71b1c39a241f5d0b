"""Roles of PQL are killed while they work: the run continues, keeps its ratios, and no row is corrupted."""

import dataclasses
import itertools

import pytest
from counting_learners import CountingConfig
from host_killer import HostKiller
from small_systems import CLOCK, SMALL_PQL, clock_steps

from troop.core.engine import Until
from troop.core.system import Evaluation, RunSettings
from troop.engines import Processes
from troop.roles.replay_sender import MAX_IN_FLIGHT

SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=200, max_episode_steps=20))
PLAN = (("critic",), ("actor",), ("policy",), ("critic", "policy"))
SYSTEM = dataclasses.replace(SMALL_PQL, replay_capacity=400_000)


@pytest.fixture(scope="module")
def killed_run():
    """The observer and the result of one run in which every role is killed."""
    observer = HostKiller(PLAN, steps=100, updates=100)
    engine = Processes(threads=1, log_s=0.05, checkpoint_s=0.3)
    program = SYSTEM.program(CountingConfig(), CLOCK, SETTINGS)
    return observer, engine.run(program, Until(minutes=3), 3, observer)


@pytest.mark.parametrize("killed", PLAN, ids="+".join)
@pytest.mark.reliability("K1")
def test_killed_roles_are_restarted_and_all_three_continue(killed, killed_run):
    observer, result = killed_run
    assert result.status == "stopped", "the run ended before all kills of the plan"
    index = PLAN.index(killed)
    counters = [*(kill.counters for kill in observer.kills), result.counters]
    before, after = counters[index], counters[index + 1]
    assert after.restarts == before.restarts + len(killed)
    assert after.env_steps > before.env_steps and after.updates > before.updates
    states = [*(kill.state for kill in observer.kills), observer.state]
    for learner in ("critic", "policy"):  # a killed learner continues from its checkpoint
        updates = [state[f"{learner}.counts"]["updates"] for state in states]
        # The next kill may come before the learner is saved again.
        assert updates[index + 1] >= updates[index] and updates[-1] > updates[0]


def test_ratios_are_kept(killed_run):
    observer, _ = killed_run
    slack = SYSTEM.tolerance + MAX_IN_FLIGHT + 2
    for replay, updates_per_step in (("transitions", 8), ("observations", 4)):
        steps = observer.state[f"{replay}.inserted"] / CLOCK.envs - SYSTEM.learning_starts
        updates = observer.state[f"{replay}.sampled"] / SYSTEM.batch_size
        assert abs(updates - updates_per_step * steps) <= updates_per_step * slack
        assert steps > 100


def test_no_row_is_corrupted_repeated_or_out_of_order(killed_run):
    observer, _ = killed_run
    for steps, closing in clock_steps(observer.state["transitions.replay"]):
        starts = [0, *(i + 1 for i, closed in enumerate(closing) if closed), len(steps)]
        for start, end in itertools.pairwise(starts):
            assert steps[start:end] == list(range(steps[start], steps[start] + end - start))
        assert 2 <= sum(closing) <= 5  # only where an actor or the replay was restarted


def test_each_learner_has_recent_weights_of_the_other(killed_run):
    observer, _ = killed_run
    for learner, weights in (("critic", "policies"), ("policy", "critics")):
        lag = observer.state[f"{weights}.version"] - observer.state[f"{learner}.counts"]["peer_version"]
        assert 0 <= lag <= 100
