"""PQL's ratios on the engines with several hosts, over a minute each: within two percent of their targets."""

import dataclasses
import itertools

import pytest
from counting_learners import CountingConfig
from recording_observer import RecordingObserver
from small_systems import CLOCK, SETTINGS, SMALL_PQL

from troop.core.engine import Until
from troop.engines import Processes, Ray

SECONDS = 60
ENGINES = {"processes": Processes(threads=1), "ray": Ray(insecure=True, threads=1)}


def measured_ratios(first, last):
    """Return critic updates per vector step and per policy update between two log lines."""
    critic, policy = (
        (last[f"{learner}/updates"] - first[f"{learner}/updates"])
        / (last[f"{learner}/steps"] - first[f"{learner}/steps"])
        for learner in ("critic", "policy")
    )
    return critic, critic / policy


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("beta_av, beta_pv", itertools.product([4.0, 8.0, 16.0], [1.0, 2.0, 4.0]))
def test_measured_ratios_equal_their_targets(engine, beta_av, beta_pv):
    if engine == "ray":
        pytest.importorskip("ray")
    observer = RecordingObserver()
    system = dataclasses.replace(SMALL_PQL, beta_av=beta_av, beta_pv=beta_pv, replay_capacity=400_000)
    program = system.program(CountingConfig(critic_s=0.002, policy_s=0.002), CLOCK, SETTINGS)
    result = ENGINES[engine].run(program, Until(minutes=SECONDS / 60), 3, observer)
    assert result.status == "done" and result.counters.restarts == 0
    lines = [line for line in observer.lines if line.get("critic/updates") and line.get("policy/updates")]
    assert measured_ratios(lines[0], lines[-1]) == pytest.approx((beta_av, beta_pv), rel=0.02)
