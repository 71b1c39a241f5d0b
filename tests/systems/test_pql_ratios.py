"""PQL's ratios on the engines with many hosts, over a minute each: within two percent of those wanted."""

import dataclasses
import itertools
import os

import pytest
from split import Split
from test_pql import CLOCK, SETTING, SMALL
from watching import RunObserver

from troop.core.engine import Until
from troop.engines import Processes, Ray

SECONDS = 60
ENGINES = {"processes": Processes(threads=1), "ray": Ray(insecure=True, threads=1)}


def ratios(first, last):
    """Critic updates for each vector step and for each policy update between two lines."""
    critic, policy = (
        (last[f"{learner}/updates"] - first[f"{learner}/updates"])
        / (last[f"{learner}/steps"] - first[f"{learner}/steps"])
        for learner in ("critic", "policy")
    )
    return critic, critic / policy


@pytest.mark.skipif(not os.environ.get("TROOP_LONG_TESTS"), reason="takes minutes; set TROOP_LONG_TESTS=1")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("beta_av, beta_pv", itertools.product([4.0, 8.0, 16.0], [1.0, 2.0, 4.0]))
def test_every_ratio_is_held(engine, beta_av, beta_pv):
    if engine == "ray":
        pytest.importorskip("ray")
    watch = RunObserver()
    system = dataclasses.replace(SMALL, beta_av=beta_av, beta_pv=beta_pv, replay_capacity=400_000)
    program = system.program(Split(critic_s=0.002, policy_s=0.002), CLOCK, SETTING)
    result = ENGINES[engine].run(program, Until(minutes=SECONDS / 60), 3, watch)
    assert result.status == "done" and result.counters.restarts == 0
    warm = [line for line in watch.lines if line.get("critic/updates") and line.get("policy/updates")]
    had = ratios(warm[0], warm[-1])
    assert had == pytest.approx((beta_av, beta_pv), rel=0.02)
