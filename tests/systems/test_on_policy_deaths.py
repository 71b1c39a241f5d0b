"""Hosts of OnPolicy, A3C and DataParallel are killed: the run continues from its checkpoints."""

import os

import pytest
from host_killer import HostKiller, host_processes

from troop.algorithms import PPOConfig
from troop.core.engine import Until
from troop.core.system import Evaluation, RunSettings
from troop.engines import Processes
from troop.envs import Toy
from troop.systems import A3C, DataParallel, OnPolicy

SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=400, max_episode_steps=20))
ENGINE = Processes(threads=1, log_s=0.05, checkpoint_s=0.3)
ALGORITHM = PPOConfig(rollout_length=8, epochs=1, minibatches=1, hidden=(8, 8), core="gru", core_size=4)
ENV = Toy("Countdown", 4, limit=9, discrete=True)
PLANS = {
    "on-policy": (OnPolicy(), (("trainer",), ("evaluator",), ("trainer",))),
    "a3c": (A3C(2), (("server",), ("worker1",), ("worker0", "worker1"), ("evaluator",))),
    "data-parallel": (DataParallel(2), (("worker1",), ("worker0",), ("evaluator",))),
}


@pytest.fixture(scope="module", params=PLANS)
def killed_run(request):
    system, plan = PLANS[request.param]
    observer = HostKiller(plan, steps=300, updates=8)
    result = ENGINE.run(system.program(ALGORITHM, ENV, SETTINGS), Until(minutes=3), 3, observer)
    return request.param, plan, observer, result


@pytest.mark.reliability("K5", "K6", "K7")
def test_killed_hosts_are_restarted_and_the_run_continues(killed_run):
    _, plan, observer, result = killed_run
    assert result.status == "stopped", "the run ended before all kills of the plan"
    counters = [kill.counters for kill in observer.kills] + [result.counters]
    for killed, before, after in zip(plan, counters, counters[1:], strict=False):
        assert after.restarts == before.restarts + len(killed)
        assert after.env_steps > before.env_steps and after.updates > before.updates
    assert not [pid for pid in observer.pids if os.path.exists(f"/proc/{pid}")]
    assert not host_processes(os.getpid())


@pytest.mark.reliability("K6")
def test_a_killed_learner_continues_from_its_checkpoint(killed_run):
    name, _, observer, _ = killed_run
    first = observer.kills[0]
    if name == "a3c":
        slices = [kill.state["server.slices"].get("0", {"version": 0}) for kill in observer.kills]
        versions = [each["version"] for each in slices]  # 0 before a worker has registered
        assert sorted(versions) == versions and versions[-1] > versions[0]
    else:
        learner = "trainer" if name == "on-policy" else "worker0"
        versions = [kill.state[f"{learner}.version"] for kill in observer.kills]
        assert versions[0] <= first.counters.updates
        assert sorted(versions) == versions and versions[-1] > versions[0]
