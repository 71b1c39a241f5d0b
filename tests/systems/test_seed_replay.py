"""SEED with algorithms that sample transitions: SAC and DQN on rows that a server records; restarts."""

import copy
import dataclasses
import os

import numpy as np
import pytest
from host_killer import HostKiller, host_processes
from recording_observer import RecordingObserver

from troop.algorithms import DQNConfig, SACConfig
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline, Processes
from troop.envs import Toy
from troop.replay.prioritized import PriorityConfig
from troop.replay.recorders.env_rows import EnvRowRecorder
from troop.replay.sequences import ServedReplay
from troop.roles.inference_server import InferenceServer
from troop.roles.runner_step import RunnerStep
from troop.roles.weights import Weights
from troop.systems import SEED

SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=400, max_episode_steps=20))
REPLAY = ServedReplay(4_000, 60, 4.0, PriorityConfig(), save=True)
SYSTEM = SEED(runners=2, batch_size=16, replay=REPLAY)
SAC = SACConfig(actor_hidden=(8,), critic_hidden=(8,), normalize_rewards=True, n_step=3)
ALGORITHMS = {
    "sac": (SAC, Toy("PointMass", 4, limit=9)),
    "sac, prioritized": (SAC, Toy("PointMass", 4, limit=9, autoreset="next_step")),
    "dqn": (DQNConfig(hidden=(8,)), Toy("Countdown", 4, limit=9, discrete=True)),
}


def make_program(name, system=SYSTEM):
    algorithm, env = ALGORITHMS[name]
    if "prioritized" in name:
        replay = dataclasses.replace(REPLAY, priority=PriorityConfig(alpha=0.6, beta=0.4))
        system = dataclasses.replace(system, replay=replay, servers=2)
    return system.program(algorithm, env, SETTINGS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rows_are_sampled_as_often_as_configured(name):
    observer = RecordingObserver()
    result = Inline().run(make_program(name), Until(env_steps=1_600), 3, observer)
    assert result.counters.skipped_updates == 0
    # 4 samples of every row after the warm-up, in batches of 16
    assert result.counters.updates == pytest.approx(4 * (1_600 - 60) / 16, abs=30)
    assert any(line.get("replay/rows", 0) > 1_000 for line in observer.lines)


def test_a_small_replay_is_refused_with_the_number_that_would_do():
    system = dataclasses.replace(SYSTEM, replay=dataclasses.replace(REPLAY, capacity=80))
    with pytest.raises(
        BadInput, match=r"--system.replay.capacity is 80; with 8 envs it must be at least 104"
    ):
        make_program("sac", system)


class Sink:
    """Keeps the order of rows and ends of streams."""

    def __init__(self):
        self.events = []

    def add(self, rollout):
        self.events.append(len(rollout.reward))

    def end_streams(self, streams=None):
        self.events.append("end")
        self.ended = None if streams is None else streams.tolist()

    def wants_data(self):
        return True


def make_server(sink, algorithm=SAC, envs=2):
    env = Toy("PointMass", 2, limit=50, discrete=algorithm is not SAC)
    policy, weights = algorithm.policy(env.spec), Weights()
    weights.publish(0, policy.state_dict())
    recorder = EnvRowRecorder(envs, 2, first_stream=6)
    return env, InferenceServer(env.spec, policy, recorder, algorithm.exploration, sink, weights)


def test_rows_of_a_restarted_runner_do_not_continue_the_earlier_ones():
    sink = Sink()
    env, server = make_server(sink)
    ids, simulator = np.arange(2), env.make_numpy(3)

    def steps(count, run):
        step = simulator.reset(3)
        for _ in range(count):
            step = simulator.step(server.act(ids, ids * 0 + run, RunnerStep.of(step)))

    steps(4, server.register(0, 2))
    rows = [event for event in sink.events if event != "end"]
    assert rows == [2]  # of 3 results; the third row of each env waits
    before = len(sink.events)
    run = server.register(0, 2)
    assert run == 1 and server.dropped_steps == 2
    assert sink.events[before:] == ["end"] and sink.ended == [6, 7]  # not those of other servers
    steps(3, run)
    assert sink.events[-1] == 2


def test_a_restarted_server_ends_the_streams_of_its_envs():
    sink = Sink()
    env, server = make_server(sink)
    ids, simulator = np.arange(2), env.make_numpy(3)
    server.act(ids, ids * 0, RunnerStep.of(simulator.reset(3)))
    assert sink.events == ["end"] and sink.ended == [6, 7]


def test_restored_server_continues_the_exploration_schedule_and_the_numbers_of_starts():
    """Otherwise a resumed run acts at random again and its runners repeat their first episodes."""
    config = DQNConfig(epsilon_start=1.0, epsilon_end=0.0, epsilon_steps=40, hidden=(8,))
    env, server = make_server(Sink(), config)
    ids, simulator = np.arange(2), env.make_numpy(3)
    run = server.register(0, 2)
    step = simulator.reset(3)
    for _ in range(11):
        step = simulator.step(server.act(ids, ids * 0 + run, RunnerStep.of(step)))
    assert server.explore.tolist() == [0.5, 0.5]
    state = copy.deepcopy(server.state_dict())
    _, other = make_server(Sink(), config)
    other.load_state_dict(state)
    other.act(ids, ids * 0 + run, RunnerStep.of(simulator.reset(3)))  # runners continue after a crash
    assert other.explore.tolist() == [0.5, 0.5] and other.register(0, 2) == run + 1
    _, more_envs = make_server(Sink(), config, envs=4)
    more_envs.load_state_dict(state)
    assert more_envs.register(2, 2) == run + 1
    more_envs.load_state_dict({})  # a checkpoint of an earlier version
    assert more_envs.register(0, 2) == run + 1


@pytest.mark.reliability("K1", "K3")
def test_killed_hosts_are_restarted_and_the_run_continues():
    plan = (("inference",), ("runner0",), ("learner",), ("replay",))
    observer = HostKiller(plan, steps=300, updates=8)
    engine = Processes(threads=1, log_s=0.05, checkpoint_s=0.3)
    result = engine.run(make_program("sac"), Until(minutes=3), 3, observer)
    assert result.status == "stopped", "the run ended before all kills of the plan"
    assert result.counters.restarts == len(plan)
    assert not host_processes(os.getpid())
