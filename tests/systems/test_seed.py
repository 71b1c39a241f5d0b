"""SEED: server-side unrolls equal an actor's, rows of any batch go to the right envs; kills and restarts."""

import copy
import dataclasses
import os

import numpy as np
import pytest
import torch
from host_killer import HostKiller, host_processes
from recording_observer import RecordingObserver
from traced_env import TracedEnvConfig, steps_taken

from troop.algorithms import DQNConfig, ImpalaConfig, PPOConfig, UnrealConfig
from troop.core.algorithm import Policy, PolicyOutput
from troop.core.batch import Trajectory
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.core.exploration import LinearSchedule
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline, Processes
from troop.envs import Toy
from troop.replay.recorders.trajectories import TrajectoryRecorder
from troop.replay.recorders.unrolls import UnrollRecorder
from troop.replay.trajectory_queue import TrajectoryQueue
from troop.roles.collector import Collector, EnvFactory
from troop.roles.env_runner import EnvRunner
from troop.roles.inference_server import InferenceServer, select_step
from troop.roles.runner_step import RunnerStep
from troop.roles.weights import Weights
from troop.systems import SEED

SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=400, max_episode_steps=20))
ENV = Toy("Countdown", 4, limit=9, discrete=True)
ALGORITHMS = {
    "impala": ImpalaConfig(unroll_length=5, hidden=(8,), normalize_observations=True, normalize_rewards=True),
    "lstm": ImpalaConfig(unroll_length=5, hidden=(8, 8), core="lstm", core_size=4),
    "ppo": PPOConfig(rollout_length=5, hidden=(8,), minibatches=2, epochs=2, normalize_observations=False),
    "unreal": UnrealConfig(unroll_length=5, replay_length=20, hidden=(8, 8), core_size=4),
}


def make_server(config, env, envs, queue, policy=None):
    torch.manual_seed(0)
    policy = policy or config.policy(env.spec)
    weights = Weights()
    weights.publish(0, policy.state_dict())
    recorder = UnrollRecorder(envs, config.experience)
    return InferenceServer(env.spec, policy, recorder, config.exploration, queue, weights)


class KeepingQueue(TrajectoryQueue):
    """A queue that also keeps what was added."""

    def __init__(self):
        super().__init__(10**6)
        self.added = []

    def add(self, trajectory):
        self.added.append(trajectory)
        super().add(trajectory)


def check_same(one, other):
    for field in dataclasses.fields(Trajectory):
        first, second = (torch.utils._pytree.tree_leaves(getattr(x, field.name)) for x in (one, other))
        assert len(first) == len(second), field.name
        for a, b in zip(first, second, strict=True):
            if isinstance(a, torch.Tensor):
                assert a.dtype == b.dtype and torch.equal(a, b), field.name


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_server_side_unrolls_equal_those_of_an_actor_with_its_own_policy(algorithm, autoreset):
    config = ALGORITHMS[algorithm]
    env = Toy("PointMass", 3, limit=4, autoreset=autoreset)
    queue = KeepingQueue()
    server, simulator = make_server(config, env, 3, queue), env.make_numpy(7)
    torch.manual_seed(1)
    server.register(0, 3)
    step, ids = simulator.reset(7), np.arange(3)
    for _ in range(32):
        step = simulator.step(server.act(ids, ids * 0, RunnerStep.of(step)))
    torch.manual_seed(0)
    policy = config.policy(env.spec)
    recorder = TrajectoryRecorder(3, config.experience)
    collector = Collector(EnvFactory(lambda seed: env.make(7), 7), policy, recorder, config.exploration)
    collector.last_step = collector.env.reset(7)
    collector.version, expected = 0, []
    torch.manual_seed(1)
    for _ in range(32):
        collector.send()
        expected += collector.recv()[0]
    assert len(queue.added) == 6  # the sixth is complete when the action after its last step is requested
    for one, other in zip(queue.added, expected, strict=True):
        check_same(one, other)


class Counting(Policy):
    """Its state counts the steps since the episode began; the action is that count, the value the env's."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def initial_state(self, rows):
        return {"count": torch.zeros(rows)}

    def act(self, obs, state, explore):
        count = state["count"]
        return PolicyOutput(
            count.long() % 2, {"count": count + 1}, {"count": count, "seen": obs["obs"][:, 0]}
        )


def test_rows_of_any_composition_keep_their_state_and_stream():
    """Envs arrive in random subsets: every unroll has consecutive steps of one env, with its own state."""
    config = ALGORITHMS["impala"]
    env, queue = Toy("PointMass", 6, limit=7, discrete=True, autoreset="next_step"), KeepingQueue()
    server = make_server(config, env, 6, queue, Counting())
    simulators = [
        Toy("PointMass", 1, limit=7, discrete=True, autoreset="next_step").make_numpy(s) for s in range(6)
    ]
    steps = [simulator.reset(seed) for seed, simulator in enumerate(simulators)]
    server.register(0, 6)
    generator, since, log = torch.Generator().manual_seed(0), [0] * 6, {i: [] for i in range(6)}
    for _ in range(200):
        ids = torch.randperm(6, generator=generator)[: 1 + int(torch.randint(6, (), generator=generator))]
        parts = [RunnerStep.of(steps[i]) for i in ids.tolist()]
        joined = RunnerStep(
            {"obs": np.concatenate([part.obs["obs"] for part in parts])},
            None,
            *(
                np.concatenate([getattr(p, n) for p in parts])
                for n in ("reward", "terminated", "truncated", "valid")
            ),
        )
        for i in ids.tolist():
            since[i] = 0 if bool(steps[i].started) else since[i]
        actions = server.act(ids.numpy(), ids.numpy() * 0, joined)
        for row, i in enumerate(ids.tolist()):
            assert int(actions[row]) == since[i] % 2
            log[i].append((float(steps[i].obs["obs"][0, 0]), since[i]))
            since[i] += 1
            steps[i] = simulators[i].step(actions[row : row + 1])
    seen = 0
    for trajectory in queue.added:
        for column in range(len(trajectory)):
            rows = list(
                zip(
                    trajectory.extras["seen"][:, column].tolist(),
                    trajectory.extras["count"][:, column].int().tolist(),
                    strict=True,
                )
            )
            owners = [i for i in range(6) if log[i][:5] == rows]
            assert owners, rows
            del log[owners[0]][:5]
            assert float(trajectory.state["count"][column]) == rows[0][1] or rows[0][1] == 0
            seen += 1
    assert seen > 60


def test_restarted_runner_gets_new_episodes_and_its_unfinished_unroll_is_dropped_and_counted():
    config, env, queue = ALGORITHMS["lstm"], Toy("Clock", 2, limit=50, discrete=True), KeepingQueue()
    server, simulator, ids = make_server(config, env, 4, queue), env.make_numpy(0), np.arange(2)
    assert server.register(0, 2) == 0 and server.register(2, 2) == 0
    step = simulator.reset(0)
    for _ in range(3):
        step = simulator.step(server.act(ids, ids * 0, RunnerStep.of(step)))
    other = simulator.reset(1)
    server.act(ids + 2, ids * 0, RunnerStep.of(other))
    assert server.register(0, 2) == 1 and server.dropped_steps == 2 * 2  # the third has no result yet
    assert server.gauges()["inference/dropped_steps"] == 4
    step = simulator.reset(2)
    for _ in range(7):
        step = simulator.step(server.act(ids, ids * 0 + 1, RunnerStep.of(step)))
    (trajectory,) = queue.added
    assert trajectory.started[0].all() and not trajectory.started[1:].any()
    assert server.recorder.time.tolist() == [1, 1, 0, 0]


def test_full_queue_makes_runners_wait_without_repeating_a_step():
    config, env = ALGORITHMS["impala"], Toy("Clock", 2, limit=50, discrete=True)
    queue = KeepingQueue()
    queue.capacity = 1
    server, simulator, ids = make_server(config, env, 2, queue), env.make_numpy(0), np.arange(2)
    server.register(0, 2)
    step, waited, steps = simulator.reset(0), 0, 0
    while steps < 23:
        action = server.act(ids, ids * 0, RunnerStep.of(step))
        if action is None:
            waited += 1
            assert queue.sample(2) is not None
            continue
        step, steps = simulator.step(action), steps + 1
    assert waited == len(queue.added) == 4
    times = torch.cat([trajectory.obs["obs"][:-1, 0, 0] for trajectory in queue.added])
    assert torch.allclose(times.diff(), times.diff()[0].expand(19), atol=1e-6)  # no step twice, none missing


def test_rows_of_a_replaced_process_are_neither_recorded_nor_acted_on():
    """The old call of env 0 and the first one of its new process share a batch; env 2 is undisturbed."""
    config, env, queue = ALGORITHMS["impala"], Toy("Clock", 1, limit=50, discrete=True), KeepingQueue()
    server = make_server(config, env, 4, queue, Counting())
    simulator, ids, own = env.make_numpy(0), np.array([0, 2]), np.array([0])
    server.register(0, 2), server.register(2, 2)
    step = simulator.reset(0)
    for _ in range(3):
        both = join_steps([step, step])
        step = simulator.step(server.act(ids, ids * 0, both)[:1])
    assert server.register(0, 2) == 1 and server.dropped_steps == 2
    first = simulator.reset(1)
    actions = server.act(np.array([0, 2, 0]), np.array([0, 0, 1]), join_steps([step, step, first]))
    assert actions.tolist() == [0, 3 % 2, 0]  # the state of env 0 began anew, that of env 2 went on
    assert server.recorder.time[[0, 2]].tolist() == [0, 3]
    server.act(own, own * 0, RunnerStep.of(step))  # the old process alone
    assert server.recorder.time[[0, 2]].tolist() == [0, 3] and server.acting[[0, 2]].all()
    with pytest.raises(ValueError, match="twice"):
        server.act(np.array([2, 2]), np.array([0, 0]), join_steps([step, step]))


def test_server_that_was_restarted_accepts_runners_that_registered_before():
    config, env, queue = ALGORITHMS["lstm"], Toy("Clock", 2, limit=50, discrete=True), KeepingQueue()
    server, simulator, ids = make_server(config, env, 2, queue), env.make_numpy(0), np.arange(2)
    step = simulator.reset(0)
    for _ in range(6):
        step = simulator.step(server.act(ids, ids * 0 + 3, RunnerStep.of(step)))
    assert len(queue.added) == 1 and server.register(0, 2) == 4


def join_steps(steps):
    parts = [RunnerStep.of(step) for step in steps]
    names = ("reward", "terminated", "truncated", "valid")
    rows = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return RunnerStep({"obs": np.concatenate([part.obs["obs"] for part in parts])}, None, *rows)


@pytest.mark.parametrize("algorithm", ["impala", "lstm"])
def test_actions_do_not_depend_on_which_rows_are_joined(algorithm):
    """Six envs act one by one, all together, and in random parts: same actions, same states."""
    config = ALGORITHMS[algorithm]
    env = Toy("PointMass", 1, limit=7, discrete=True, autoreset="next_step")
    rng, results = np.random.default_rng(0), []
    for composition in ("single", "all", "random"):
        server = make_server(config, env, 6, KeepingQueue())
        server.exploration = LinearSchedule(0.0, 0.0, 1)  # deterministic actions
        server.explore = torch.zeros(6)
        server.register(0, 6)
        simulators = [env.make_numpy(seed) for seed in range(6)]
        steps, actions = [simulator.reset(i) for i, simulator in enumerate(simulators)], []
        for _ in range(30):
            order = rng.permutation(6) if composition == "random" else np.arange(6)
            cuts = {"single": range(1, 6), "all": [], "random": np.sort(rng.choice(range(1, 6), 2, False))}
            row = np.zeros(6, int)
            for part in np.split(order, list(cuts[composition])):
                row[part] = server.act(part, part * 0, join_steps([steps[i] for i in part]))
            steps = [simulators[i].step(row[i : i + 1]) for i in range(6)]
            actions.append(row)
        results.append((np.stack(actions), server.state))
    for other, state in results[1:]:
        assert np.array_equal(results[0][0], other)
        for a, b in zip(*(torch.utils._pytree.tree_leaves(x) for x in (results[0][1], state)), strict=True):
            assert a is None or torch.allclose(a, b, atol=1e-5)
    assert 0.02 < results[0][0].mean() < 0.98, "the policy always returns the same action"


def test_other_observations_of_a_runner_are_refused_with_both_shapes_and_its_name():
    server = make_server(ALGORITHMS["impala"], ENV, 4, KeepingQueue())
    with pytest.raises(BadInput, match=r"'obs' of runner7 is float32 \(3,\).*inference takes float32 \(1,\)"):
        server.check_observations("runner7", {"obs": ("float32", (3,))})
    with pytest.raises(BadInput, match=r"'speed' of runner0 is float32 \(1,\).*takes missing"):
        server.check_observations("runner0", {"obs": ("float32", (1,)), "speed": ("float32", (1,))})
    program = SEED(2, 1, 4).program(ALGORITHMS["impala"], ENV, SETTINGS)
    other = EnvRunner("runner1", Toy("PointMass", 2, discrete=True), 2, 0, server, 0)
    assert program.nodes["runner1"].build.args[0] == "runner1"
    with pytest.raises(BadInput, match=r"runner1 is float32 \(2,\)"):
        other.step()


def rounds(host, count):
    return [metrics for _ in range(count) for metrics in host.step_all()]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("runners, servers", [(1, 1), (3, 1), (4, 2)])
def test_system_learns_from_every_stream_once_and_is_reproducible(algorithm, runners, servers):
    runs = []
    for _ in range(2):
        program = SEED(runners, servers, 4).program(ALGORITHMS[algorithm], ENV, SETTINGS)
        host = Inline().make_host(program, 3)
        seen, update = [], host.roles["learner"].algorithm.update

        def keep(batch, seen=seen, update=update):
            assert len(batch) == 4 and batch.length == 5
            seen.append(batch.obs["obs"].clone())
            return update(batch)

        host.roles["learner"].algorithm.update = keep
        metrics = rounds(host, 120)
        steps, updates = (
            sum(m.get(f"count/{name}", 0) for m in metrics) for name in ("env_steps", "updates")
        )
        assert updates == len(seen) > 3 and updates * 4 * 5 <= steps
        runs.append(seen)
        host.close()
    assert all(torch.equal(one, two) for one, two in zip(*runs, strict=True))


def test_saved_run_can_be_continued():
    program = SEED(2, 1, 4).program(ALGORITHMS["lstm"], ENV, SETTINGS)
    host = Inline().make_host(program, 3)
    rounds(host, 80)
    state = copy.deepcopy(host.state_dict())
    other = Inline().make_host(program, 3)
    other.load_state_dict(state)
    before = other.roles["learner"].updates
    rounds(other, 120)
    assert other.roles["inference"].runs.tolist() == [1] * 8  # other seeds: no episode is repeated
    assert before == host.roles["learner"].updates and other.roles["learner"].updates > before + 3
    for each in (host, other):
        each.close()


@pytest.mark.reliability("K1", "K3")
def test_killed_hosts_are_restarted_and_the_run_continues():
    plan = (("inference",), ("runner1",), ("runner0", "runner1"), ("learner",), ("queue",))
    observer = HostKiller(plan, steps=300, updates=8)
    engine = Processes(threads=1, log_s=0.05, checkpoint_s=0.3)
    program = SEED(2, 1, 4).program(ALGORITHMS["lstm"], ENV, SETTINGS)
    result = engine.run(program, Until(minutes=3), 3, observer)
    assert result.status == "stopped", "the run ended before all kills of the plan"
    assert result.counters.restarts == sum(map(len, plan))
    assert not host_processes(os.getpid())


class StopAtUpdates(RecordingObserver):
    """Requests a stop after some updates."""

    updates = 0

    def log(self, counters, metrics):
        super().log(counters, metrics)
        self.updates = counters.updates

    def stop_requested(self):
        return self.updates >= 40


def test_runner_that_is_twenty_times_slower_does_not_hold_up_the_others(tmp_path):
    """The first group that is made, of either runner, is slow; every other group goes on without it."""
    env = TracedEnvConfig(str(tmp_path), envs=4, seconds=0.003, slow=(0,))
    engine, observer = Processes(threads=1, log_s=0.05, checkpoint_s=1e9), StopAtUpdates()
    program = SEED(3, 1, 4).program(ALGORITHMS["impala"], env, SETTINGS)
    assert engine.run(program, Until(minutes=3), 3, observer).status == "stopped"
    slow, *others = (steps for _, steps in sorted(steps_taken(tmp_path).items()))
    assert slow >= 1 and sorted(others)[-4:][0] > 2 * slow  # the other runners' four groups


def test_several_servers_divide_the_runners_and_feed_one_learner():
    engine, observer = Processes(threads=1, log_s=0.05, checkpoint_s=1e9), StopAtUpdates()
    program = SEED(4, 2, 4).program(ALGORITHMS["lstm"], ENV, SETTINGS)
    assert engine.run(program, Until(minutes=3), 3, observer).status == "stopped"
    rows = {name for line in observer.lines for name in line if name.endswith("/batch_rows")}
    assert rows == {"inference/batch_rows", "inference1/batch_rows"}
    assert not host_processes(os.getpid())


def test_servers_share_the_env_steps_of_an_exploration_schedule():
    config, env = DQNConfig(epsilon_steps=1000), Toy("PointMass", 2, limit=9, discrete=True)
    nodes = SEED(4, 2, 4).program(config, env, SETTINGS).nodes
    schedules = [
        x
        for node in ("inference", "inference1")
        for x in nodes[node].build.args
        if isinstance(x, LinearSchedule)
    ]
    assert [schedule.env_steps for schedule in schedules] == [500, 500]


def test_runners_that_servers_do_not_divide_are_refused():
    with pytest.raises(BadInput, match=r"runners is 3.*servers 2"):
        SEED(3, 2).program(ALGORITHMS["impala"], ENV, SETTINGS)


def test_selected_rows_of_a_step_keep_whether_it_was_reset():
    step = Toy("Clock", 3, limit=2).make(0).reset(0)
    assert select_step(step, torch.tensor([True, False, True])).next_obs is not None
    part = select_step(step, torch.tensor([True, False, True]))
    assert part.next_obs is part.obs and len(part.reward) == 2
