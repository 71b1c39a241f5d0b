"""What a trial reads, and the stand-ins that a benchmark measures with."""

import dataclasses

import pytest
import torch

from troop.algorithms import DQNConfig
from troop.bench.system import apex, pql, scaling, transport
from troop.bench.system.slowed import Slowed
from troop.bench.system.trial import BOTH, SETTING, Trial, tried
from troop.core.engine import Counters
from troop.core.errors import TrainingFault
from troop.core.program import construct
from troop.engines import Inline
from troop.envs import Toy
from troop.roles.learner import LearnerConfig
from troop.systems import Apex


@pytest.fixture
def clock(monkeypatch):
    """The time as the trial sees it, set by hand."""
    now = [100.0]
    monkeypatch.setattr("troop.bench.system.trial.time.monotonic", lambda: now[0])
    return now


def test_a_trial_waits_for_everyone_warms_up_and_measures_from_there(clock):
    trial = Trial(seconds=4, warm=2, moving=BOTH)
    readings = [(0, 10, 0), (5, 90, 1), (6, 100, 2), (7, 200, 10), (9, 400, 50), (11, 600, 90)]
    for when, steps, updates in readings:
        clock[0] = when
        assert not trial.stop_requested()
        trial.log(Counters(env_steps=steps, updates=updates), {"x": when, "half": when / 2})
    assert trial.stop_requested() and trial.first_step == 0
    assert (trial.rate("env_steps"), trial.rate("updates")) == (100.0, 20.0)
    assert (trial.median("x"), trial.value_and_grad("half", "x")) == (9, 0.5)


def test_a_trial_begins_when_every_role_has_been_heard_of(clock):
    trial = Trial(seconds=4, warm=2, roles=("learner", "actor1"))
    heard = {"role/learner/busy": 1.0}
    for when in range(10):
        clock[0] = when
        heard |= {"role/actor1/busy": 0.5} if when == 5 else {}
        trial.log(Counters(env_steps=10 * when), heard)
    assert trial.began == 5 and [reading.when for reading in trial.readings] == [7, 8, 9]


def test_a_role_that_dies_spoils_the_measurement():
    with pytest.raises(TrainingFault, match="died"):
        Trial(1).note("actor0 died")


def test_a_chunk_is_of_400_kb():
    piece = transport.chunk()
    flags = [piece.terminated, piece.truncated, piece.closing]
    tensors = [piece.obs["obs"], piece.action, piece.reward, piece.priority, *flags]
    assert 390_000 < sum(x.nbytes for x in tensors) < 410_000


def test_a_broadcast_is_over_when_the_last_reader_has_it():
    scores = transport.Scores()
    assert scores.gauges() == {}
    for version, slowest in ((1, 0.5), (2, 0.25)):
        scores.published(version, 10.0)
        for reader in range(transport.ACTORS):
            scores.on_step(version, 10.0 + slowest * (reader + 1) / transport.ACTORS)
    scores.published(3, 10.0)
    scores.on_step(3, 99.0)  # the others do not have it yet
    assert scores.gauges() == {"broadcast": 0.375}


def small():
    env = Toy("Chain", envs=2, limit=4, discrete=True)
    system = Apex(
        2,
        chunk_length=4,
        learner=LearnerConfig(8),
        replay_capacity=200,
        learning_starts=10,
        save_replay=False,
    )
    return apex.Subject(DQNConfig(net="mlp", hidden=(8,)), env, system)


def test_a_role_alone_does_its_own_work_and_nobody_elses():
    made = {}
    for name, count in (("actor0", "count/env_steps"), ("learner", "count/updates")):
        program = small().alone(name)
        assert set(program.nodes) == {"replay", "weights", name} and len(program.hosts()) == 1
        for node in program.nodes.values():
            made[node.name] = construct(node.build, made.__getitem__)
        said = [made[name].step() for _ in range(5)]
        assert sum(int(metrics[count]) for metrics in said if metrics) >= 4
        made.clear()


def test_confined_programs_are_the_same_but_for_their_cores():
    whole = small().whole()
    kept = apex.confined(whole, (0,))
    assert list(kept.hosts()) == list(whole.hosts())
    for host, nodes in kept.hosts().items():
        assert nodes[0].build.make is apex.Confined and nodes[0].build.args == ((0,),)
        assert [node.build for node in nodes[1:]] == [node.build for node in whole.hosts()[host]]
    assert kept.nodes["evaluator"].schedule == whole.nodes["evaluator"].schedule


def test_simulators_and_learners_afar_go_through_all_of_apex():
    trial = tried(scaling.program(2), Inline(threads=1), Trial(0.3, warm=0, moving=BOTH))
    first, last = trial.readings[0].counters, trial.readings[-1].counters
    assert last.env_steps > first.env_steps and last.updates > first.updates
    assert (last.env_steps - first.env_steps) % scaling.SIMULATOR.envs == 0


class Counted(Trial):
    """Over after some env steps, however long they take."""

    def stop_requested(self):
        return len(self.readings) > 1 and self.readings[-1].counters.env_steps > 1600


def test_the_ratios_that_pql_is_asked_for_are_read_from_its_stores():
    program = pql.system(4, 2, 64).program(pql.LIGHT, pql.QUICK, SETTING)
    trial = tried(program, Inline(threads=1), Counted(0, warm=0))
    critic, policy = (
        trial.value_and_grad(f"{name}/updates", f"{name}/steps") for name in ("critic", "policy")
    )
    assert critic == pytest.approx(4, rel=0.1) and policy == pytest.approx(2, rel=0.1)


def test_a_slowed_env_is_the_env_and_is_judged_at_full_speed():
    plain = Toy("PointMass", envs=3)
    slow = Slowed(plain, seconds=0.001)
    assert slow.spec == plain.spec and slow.with_envs(5).envs == 5
    assert slow.for_evaluation() == dataclasses.replace(slow, seconds=0.0)
    one, two = plain.make(1), slow.make(1)
    one.reset(1), two.reset(1)
    for _ in range(12):
        action = torch.rand(3, 1) * 2 - 1
        a, b = one.step(action), two.step(action)
        assert torch.equal(a.obs["obs"], b.obs["obs"]) and torch.equal(a.reward, b.reward)
