"""Measurement, and the roles and envs without cost that benchmarks use."""

import dataclasses

import pytest
import torch

from troop.algorithms import DQNConfig
from troop.bench.system import apex, pql, scaling, transport
from troop.bench.system.delayed_env import DelayedEnvConfig
from troop.bench.system.measurement import RUN_SETTINGS, STEPS_AND_UPDATES, Measurement, measure
from troop.core.engine import Counters
from troop.core.errors import TrainingFault
from troop.core.program import construct
from troop.engines import Inline
from troop.envs import Toy
from troop.roles.learner import LearnerConfig
from troop.systems import Apex


@pytest.fixture
def clock(monkeypatch):
    """The time that the measurement reads; tests set it."""
    now = [100.0]
    monkeypatch.setattr("troop.bench.system.measurement.time.monotonic", lambda: now[0])
    return now


def test_measurement_waits_for_all_counters_and_the_warmup(clock):
    measurement = Measurement(seconds=4, warmup=2, counters=STEPS_AND_UPDATES)
    readings = [(0, 10, 0), (5, 90, 1), (6, 100, 2), (7, 200, 10), (9, 400, 50), (11, 600, 90)]
    for now, steps, updates in readings:
        clock[0] = now
        assert not measurement.stop_requested()
        measurement.log(Counters(env_steps=steps, updates=updates), {"x": now, "half": now / 2})
    assert measurement.stop_requested() and measurement.first_step_s == 0
    assert (measurement.rate("env_steps"), measurement.rate("updates")) == (100.0, 20.0)
    assert (measurement.median("x"), measurement.increase_ratio("half", "x")) == (9, 0.5)


def test_measurement_waits_until_every_role_has_reported(clock):
    measurement = Measurement(seconds=4, warmup=2, roles=("learner", "actor1"))
    metrics = {"role/learner/busy": 1.0}
    for now in range(10):
        clock[0] = now
        metrics |= {"role/actor1/busy": 0.5} if now == 5 else {}
        measurement.log(Counters(env_steps=10 * now), metrics)
    assert measurement.warmup_start_s == 5
    assert [reading.time_s for reading in measurement.readings] == [7, 8, 9]


def test_death_of_a_role_invalidates_the_measurement():
    with pytest.raises(TrainingFault, match="died"):
        Measurement(1).note("actor0 died")


def test_chunk_has_400_kb():
    chunk = transport.make_chunk()
    flags = [chunk.terminated, chunk.truncated, chunk.closing]
    tensors = [chunk.obs["obs"], chunk.action, chunk.reward, chunk.extras["priority"], *flags]
    assert 390_000 < sum(x.nbytes for x in tensors) < 410_000


def test_broadcast_ends_when_the_last_reader_has_the_weights():
    times = transport.BroadcastTimes()
    assert times.gauges() == {}
    for version, slowest in ((1, 0.5), (2, 0.25)):
        times.on_published(version, 10.0)
        for reader in range(transport.ACTORS):
            times.on_received(version, 10.0 + slowest * (reader + 1) / transport.ACTORS)
    times.on_published(3, 10.0)
    times.on_received(3, 99.0)  # the other readers do not have it yet
    assert times.gauges() == {"broadcast": 0.375}


def small_benchmark():
    env = Toy("Chain", envs=2, limit=4, discrete=True)
    system = Apex(
        2,
        chunk_length=4,
        learner=LearnerConfig(8),
        replay_capacity=200,
        learning_starts=10,
        save_replay=False,
    )
    return apex.ApexBenchmark(DQNConfig(net="mlp", hidden=(8,)), env, system)


def test_role_alone_works_without_its_peers():
    roles = {}
    for name, counter in (("actor0", "count/env_steps"), ("learner", "count/updates")):
        program = small_benchmark().program_of(name)
        assert set(program.nodes) == {"replay", "weights", name} and len(program.hosts()) == 1
        for node in program.nodes.values():
            roles[node.name] = construct(node.build, roles.__getitem__)
        steps = [roles[name].step() for _ in range(5)]
        assert sum(int(metrics[counter]) for metrics in steps if metrics) >= 4
        roles.clear()


def test_pinned_programs_differ_only_in_their_cores():
    original = small_benchmark().program()
    pinned = apex.pin_to_cores(original, (0,))
    assert list(pinned.hosts()) == list(original.hosts())
    for host, nodes in pinned.hosts().items():
        assert nodes[0].build.make is apex.PinnedCores and nodes[0].build.args == ((0,),)
        assert [node.build for node in nodes[1:]] == [node.build for node in original.hosts()[host]]
    assert pinned.nodes["evaluator"].schedule == original.nodes["evaluator"].schedule


def test_sleeping_envs_and_learner_run_in_apex():
    measurement = Measurement(0.3, warmup=0, counters=STEPS_AND_UPDATES)
    measure(scaling.program(2), Inline(threads=1), measurement)
    first, last = measurement.readings[0].counters, measurement.readings[-1].counters
    assert last.env_steps > first.env_steps and last.updates > first.updates
    assert (last.env_steps - first.env_steps) % scaling.ENV.envs == 0


class StepLimitedMeasurement(Measurement):
    """Ends after 1,600 env steps instead of a time."""

    def stop_requested(self):
        return len(self.readings) > 1 and self.readings[-1].counters.env_steps > 1600


def test_achieved_ratios_of_pql_are_read_from_its_replays():
    program = pql.system(4, 2, 64).program(pql.SMALL_TD3, pql.FAST_ENV, RUN_SETTINGS)
    measurement = measure(program, Inline(threads=1), StepLimitedMeasurement(0, warmup=0))
    critic, policy = (
        measurement.increase_ratio(f"{name}/updates", f"{name}/steps") for name in ("critic", "policy")
    )
    assert critic == pytest.approx(4, rel=0.1) and policy == pytest.approx(2, rel=0.1)


def test_delayed_env_equals_the_inner_env_and_is_evaluated_without_delay():
    plain = Toy("PointMass", envs=3)
    delayed = DelayedEnvConfig(plain, seconds=0.001)
    assert delayed.spec == plain.spec and delayed.with_envs(5).envs == 5
    assert delayed.for_evaluation() == dataclasses.replace(delayed, seconds=0.0)
    first, second = plain.make(1), delayed.make(1)
    first.reset(1), second.reset(1)
    for _ in range(12):
        action = torch.rand(3, 1) * 2 - 1
        a, b = first.step(action), second.step(action)
        assert torch.equal(a.obs["obs"], b.obs["obs"]) and torch.equal(a.reward, b.reward)
