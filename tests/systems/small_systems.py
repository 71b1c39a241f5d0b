"""Small systems, algorithms and envs that the tests of systems share, and ways to look into their state."""

import torch

from troop.algorithms import DQNConfig, TD3Config
from troop.core.batch import TrajectorySpec
from troop.core.program import construct
from troop.core.system import Evaluation, RunSettings
from troop.engines.host import Host
from troop.envs import Toy
from troop.roles.learner import LearnerConfig
from troop.roles.parameter_server import AdaGradConfig
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import PQL, Apex, Gorila

SEED = 3
SETTINGS = RunSettings(SEED, "cpu", Evaluation(episodes=2, env_steps=10**9, max_episode_steps=100))
DQN = DQNConfig(hidden=(8,), n_step=3, double=True, optimizer="adam", target_update_period=9)
APEX = Apex(
    actors=2,
    chunk_length=4,
    weight_sync_steps=10,
    learner=LearnerConfig(8, 2, 3),
    replay_capacity=800,
    learning_starts=40,
    samples_per_insert=2.0,
)
GORILA = Gorila(
    UpdateSchedule(8, 1),
    replay_capacity=800,
    learning_starts=6,
    recreate_every=0,
    adagrad=AdaGradConfig(lr=0.01),
)
SMALL_PQL = PQL(batch_size=16, replay_capacity=4000, learning_starts=8)
CLOCK_LIMIT = 100_000
CLOCK = Toy("Clock", 4, limit=CLOCK_LIMIT)  # its observation is the step divided by the limit
DISCRETE_CLOCK = Toy("Clock", 2, limit=CLOCK_LIMIT, discrete=True)


class TrajectoryConfig(TD3Config):
    """An algorithm that learns from trajectories, which no system of transitions can run."""

    experience = TrajectorySpec(8)


def build_roles(system, algorithm=DQN, env=DISCRETE_CLOCK, settings=SETTINGS):
    """Return all roles of the system, built but not stepped."""
    roles = {}
    for name, node in system.program(algorithm, env, settings).nodes.items():
        roles[name] = construct(node.build, roles.__getitem__)
    return roles


def inline_host(system, algorithm=DQN, env=DISCRETE_CLOCK, settings=SETTINGS):
    """Return a host that steps all roles of the system in this process."""
    return Host(system.program(algorithm, env, settings), SEED)


def step_rounds(host, rounds):
    """Step all roles this many times; return the metrics of all steps."""
    return [metrics for _ in range(rounds) for metrics in host.step_all()]


def exploration_values(actor):
    """Return the exploration value of each env of an actor."""
    return torch.cat([collector.explore for collector in actor.sampler.collectors])


def clock_steps(replay_state):
    """Return the step of each row and which rows are closing, for each stream of a replay of Clock."""
    storage = replay_state["storage"]
    rows, flags, written = storage["rows"], storage["flags"], storage["rows_written"].tolist()
    assert max(written) < storage["length"], "the ring has wrapped around"
    return [
        (
            (rows[stream, :count, 0] * CLOCK_LIMIT).round().long().tolist(),
            (flags[stream, :count] & 4).bool().tolist(),
        )
        for stream, count in enumerate(written)
    ]


def flatten_state(state, path=""):
    """Return the leaves of nested dicts and lists, by path."""
    if isinstance(state, dict):
        return {k: v for key, x in state.items() for k, v in flatten_state(x, f"{path}/{key}").items()}
    if isinstance(state, list):
        return {k: v for i, x in enumerate(state) for k, v in flatten_state(x, f"{path}/{i}").items()}
    return {path: state}


def differing_paths(state, other, ignore=()):
    """Return the paths at which two states differ, but for those that end in one of `ignore`."""
    one, two = flatten_state(state), flatten_state(other)
    assert one.keys() == two.keys()
    return [path for path, x in one.items() if not path.endswith(tuple(ignore)) and not _same(x, two[path])]


def _same(x, y):
    if isinstance(x, torch.Tensor):
        return torch.equal(x, y) or torch.allclose(x, y, 0, 0, equal_nan=True)
    return x == y
