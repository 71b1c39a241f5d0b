"""PQL's roles are killed in the middle of their work: the run goes on in its ratios, and no row is torn."""

import dataclasses
import itertools

import pytest
from besieging import Siege
from split import Split
from test_apex import numbers
from test_pql import CLOCK, SMALL

from troop.core.engine import Until
from troop.engines import Processes
from troop.roles.replay_sender import MAX_IN_FLIGHT
from troop.systems.settings import Evaluation, RunSettings

SETTING = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=200, longest=20))
PLAN = (("critic",), ("actor",), ("policy",), ("critic", "policy"))
SYSTEM = dataclasses.replace(SMALL, replay_capacity=400_000)


@pytest.fixture(scope="module")
def siege():
    """One run in which everybody dies; what was seen, and how it ended."""
    watch = Siege(PLAN, steps=100, updates=100)
    engine = Processes(threads=1, log_s=0.05, checkpoint_s=0.3)
    return watch, engine.run(SYSTEM.program(Split(), CLOCK, SETTING), Until(minutes=3), 3, watch)


@pytest.mark.parametrize("victims", PLAN, ids="+".join)
def test_those_who_are_killed_come_back_and_all_three_go_on(victims, siege):
    watch, result = siege
    assert result.status == "stopped", "it did not get to the end of the plan"
    at = PLAN.index(victims)
    before, after = (
        [*(strike["counters"] for strike in watch.struck), result.counters][i] for i in (at, at + 1)
    )
    assert after.restarts == before.restarts + len(victims)
    assert after.env_steps > before.env_steps and after.updates > before.updates
    states = [*(strike["state"] for strike in watch.struck), watch.state]
    for learner in ("critic", "policy"):  # from its checkpoint, if it died
        saved = [state[f"{learner}.counts"]["updates"] for state in states]
        assert (
            saved[at + 1] >= saved[at] and saved[-1] > saved[0]
        )  # the next blow may fall before it is saved again


def test_the_ratios_are_kept(siege):
    watch, _ = siege
    slack = SYSTEM.tolerance + MAX_IN_FLIGHT + 2
    for store, updates in (("transitions", 8), ("observations", 4)):
        steps = watch.state[f"{store}.inserted"] / CLOCK.envs - SYSTEM.learning_starts
        assert abs(watch.state[f"{store}.sampled"] / SYSTEM.batch_size - updates * steps) <= updates * slack
        assert steps > 100


def test_no_row_is_torn_repeated_or_out_of_order(siege):
    watch, _ = siege
    for steps, closing in numbers(watch.state["transitions.replay"]):
        begins = [0, *(at + 1 for at, closed in enumerate(closing) if closed), len(steps)]
        for begin, end in itertools.pairwise(begins):
            assert steps[begin:end] == list(range(steps[begin], steps[begin] + end - begin))
        assert 2 <= sum(closing) <= 5  # where an actor or the store itself began anew, and nowhere else


def test_each_learner_has_a_late_net_of_the_other(siege):
    watch, _ = siege
    for learner, other in (("critic", "policies"), ("policy", "critics")):
        behind = watch.state[f"{other}.version"] - watch.state[f"{learner}.counts"]["followed"]
        assert 0 <= behind <= 100
