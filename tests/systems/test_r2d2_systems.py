"""Sequences under Sync, Ape-X and SEED: updates, reproducibility, resuming, priorities, exploration."""

import copy
import dataclasses
import os

import numpy as np
import pytest
import torch
from host_killer import HostKiller, host_processes
from recording_observer import RecordingObserver

from troop.algorithms import R2D2Config
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.core.exploration import EpsilonLadder
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline, Processes
from troop.envs import Toy
from troop.replay.recorders.sequences import SequenceRecorder, VectorSequenceRecorder
from troop.replay.sequences import SEQUENCE_PRIORITY, ServedReplay
from troop.roles.collector import Collector, EnvFactory
from troop.roles.inference_server import InferenceServer
from troop.roles.learner import LearnerConfig
from troop.roles.runner_step import RunnerStep
from troop.roles.update_schedule import UpdateSchedule
from troop.roles.weights import Weights
from troop.systems import IMPALA, PQL, SEED, Apex, Gorila, OnPolicy, Sync

SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=10**9, max_episode_steps=20))
CONFIG = R2D2Config(
    sequence_length=6,
    overlap=3,
    burn_in=2,
    n_step=2,
    target_update_period=5,
    features=8,
    core_size=6,
    head=6,
    epsilon_steps=100,
)
ENVS = {
    "countdown": Toy("Countdown", 4, limit=9, discrete=True, last_step=True),
    "clock": Toy("Clock", 4, limit=7, discrete=True, autoreset="next_step"),
}
REPLAY = ServedReplay(60, 10, 2.0, save=True)
APEX = {
    "learner": LearnerConfig(4, 1, 2),
    "replay_capacity": 60,
    "learning_starts": 10,
    "samples_per_insert": 2.0,
}
SYSTEMS = {
    "sync": Sync(
        UpdateSchedule(4, 0.5),
        replay_capacity=60,
        learning_starts=3,
        priority=SEQUENCE_PRIORITY,
        recreate_every=23,
    ),
    "sync, uniform": Sync(UpdateSchedule(4, 0.5), replay_capacity=60, learning_starts=3),
    "apex": Apex(2, priority=SEQUENCE_PRIORITY, **APEX),
    "apex, shards": Apex(2, replay_shards=2, priority=SEQUENCE_PRIORITY, **APEX),
    "apex, max priority": Apex(
        2, initial_priority="max", priority=SEQUENCE_PRIORITY, recreate_every=11, **APEX
    ),
    "seed": SEED(2, batch_size=4, replay=REPLAY),
    "seed, two servers": SEED(2, 2, batch_size=4, replay=REPLAY),
}


def run(system, env, rounds, state=None):
    host = Inline().make_host(SYSTEMS[system].program(CONFIG, ENVS[env], SETTINGS), 3)
    if state is not None:
        host.load_state_dict(copy.deepcopy(state))
    metrics = [step for _ in range(rounds) for step in host.step_all()]
    saved = copy.deepcopy(host.state_dict())
    host.close()
    return metrics, saved


def losses_of(metrics):
    return [float(m["loss/critic"]) for m in metrics if "loss/critic" in m]


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("env", ENVS)
def test_systems_learn_from_sequences_and_are_reproducible(system, env):
    first, state = run(system, env, 80)
    second, other = run(system, env, 80)
    losses = losses_of(first)
    assert len(losses) > 10 and torch.isfinite(torch.tensor(losses)).all()
    assert losses == losses_of(second)
    assert all(torch.equal(x, other["policy"][name]) for name, x in state["policy"].items())
    assert sum(float(m.get("count/skipped_updates", 0)) for m in first) == 0


@pytest.mark.parametrize("env", ENVS)
def test_a_resumed_run_continues_bit_equal(env):
    _, saved = run("sync", env, 41)
    whole, end = run("sync", env, 90)
    rest, resumed = run("sync", env, 49, saved)
    assert losses_of(rest) == losses_of(whole)[-len(losses_of(rest)) :] and len(losses_of(rest)) > 20
    assert all(torch.equal(x, resumed["policy"][name]) for name, x in end["policy"].items())


@pytest.mark.parametrize("system", ["apex", "apex, shards", "seed"])
def test_the_learner_sends_priorities_back_and_the_ratio_holds(system):
    host = Inline().make_host(SYSTEMS[system].program(CONFIG, ENVS["countdown"], SETTINGS), 3)
    metrics = [step for _ in range(150) for step in host.step_all()]
    replays = [role for name, role in host.roles.items() if name.startswith("replay")]
    updates = sum(int(m.get("count/updates", 0)) for m in metrics)
    sampled, inserted = (sum(getattr(r.limiter, n) for r in replays) for n in ("sampled", "inserted"))
    assert 4 * updates <= sampled <= 4 * (updates + 3)
    assert abs(sampled - 2.0 * (inserted - 10)) <= 4 * 4 + 8
    newest = host.roles["learner"].algorithm
    changed = []
    for replay in replays:
        batch = replay.replay.sample(4)
        before = replay.replay.tree.get(batch.index.numpy() % replay.replay.capacity).copy()
        replay.reprioritize(batch.index, newest.update(batch).priority)
        changed.append((before != replay.replay.tree.get(batch.index.numpy() % replay.replay.capacity)).any())
    assert all(changed)
    host.close()


def test_each_env_of_a_server_has_its_own_epsilon():
    ladder = EpsilonLadder().values(8)
    assert ladder[:2] == pytest.approx((0.4, 0.4**2))  # 1, 2, .. 8: the values of the specification
    host = Inline().make_host(SYSTEMS["seed, two servers"].program(CONFIG, ENVS["clock"], SETTINGS), 3)
    values = [host.roles[name].explore.tolist() for name in ("inference", "inference1")]
    assert values == [pytest.approx(ladder[0::2]), pytest.approx(ladder[1::2])]
    host.close()


def test_seeds_sequences_equal_those_of_an_actor():
    """The server records the same sequences, states and priorities as a collector with its own policy."""

    class Keep:
        """A sink that keeps what is added."""

        def __init__(self):
            self.added = []

        def add(self, piece):
            self.added.append(piece)

        def wants_data(self):
            return True

        def end_streams(self, streams=None):
            """Sequences do not cross it."""

    env, sink, weights = Toy("PointMass", 3, limit=8, discrete=True, last_step=True), Keep(), Weights()
    torch.manual_seed(0)
    policy = CONFIG.policy(env.spec)
    weights.publish(0, copy.deepcopy(policy.state_dict()))
    exploration = dataclasses.replace(CONFIG, epsilon_start=0.3, epsilon_end=0.3).exploration
    recorder = SequenceRecorder(3, CONFIG.experience, CONFIG.initial_priority)
    server = InferenceServer(env.spec, policy, recorder, exploration, sink, weights)
    simulator, ids = env.make_numpy(7), np.arange(3)
    server.register(0, 3)
    torch.manual_seed(1)
    step = simulator.reset(7)
    for _ in range(41):
        step = simulator.step(server.act(ids, ids * 0, RunnerStep.of(step)))
    vector = VectorSequenceRecorder(3, CONFIG.experience, 0, CONFIG.initial_priority)
    collector = Collector(EnvFactory(lambda seed: env.make(7), 7), policy, vector, exploration)
    collector.last_step, collector.version, expected = collector.env.reset(7), 0, []
    torch.manual_seed(1)
    for _ in range(40):
        collector.send()
        expected += collector.recv()[0]
    assert len(sink.added) == len(expected) > 5
    for one, other in zip(sink.added, expected, strict=True):
        for field in dataclasses.fields(one):
            first, second = (torch.utils._pytree.tree_leaves(getattr(x, field.name)) for x in (one, other))
            assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True) if a is not None)


def test_systems_of_other_experience_refuse_r2d2():
    env = ENVS["clock"]
    for system in (OnPolicy(), IMPALA()):
        with pytest.raises(BadInput, match="sequences"):
            system.program(CONFIG, env, SETTINGS)
    for system in (Gorila(), PQL()):
        with pytest.raises(BadInput, match=r"sequences|split|PQL"):
            system.program(CONFIG, env, SETTINGS)


@pytest.mark.parametrize("system", ["apex", "seed"])
def test_r2d2_runs_in_processes(system):
    program = SYSTEMS[system].program(CONFIG, ENVS["countdown"], SETTINGS)
    observer = RecordingObserver()
    result = Processes().run(program, Until(env_steps=600), 3, observer)
    assert result.counters.updates > 5 and result.counters.skipped_updates == 0
    assert any("replay/rows" in line for line in observer.lines)


@pytest.mark.reliability("K1", "K3")
@pytest.mark.parametrize("system", ["apex", "seed"])
def test_killed_hosts_are_restarted_and_the_run_continues(system):
    acting = ("actor0",) if system == "apex" else ("inference",)
    plan = (acting, ("learner",), ("replay",))
    observer = HostKiller(plan, steps=300, updates=8)
    engine = Processes(threads=1, log_s=0.05, checkpoint_s=0.3)
    evaluated = dataclasses.replace(SETTINGS, evaluation=Evaluation(2, env_steps=400, max_episode_steps=20))
    program = SYSTEMS[system].program(CONFIG, ENVS["countdown"], evaluated)
    result = engine.run(program, Until(minutes=3), 3, observer)
    assert result.status == "stopped", "the run ended before all kills of the plan"
    assert result.counters.restarts == len(plan)
    assert not host_processes(os.getpid())
