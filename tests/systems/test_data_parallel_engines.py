"""Data-parallel workers in processes of their own: shortened rollouts, equal updates and bit-equal copies."""

import hashlib
import time
from dataclasses import dataclass

import pytest
import torch
from recording_observer import RecordingObserver
from torch.utils import _pytree as pytree

from troop.algorithms import PPOConfig
from troop.algorithms.ppo import PPO
from troop.core.engine import Until
from troop.core.peers import NO_PEERS
from troop.core.program import derive_seed
from troop.core.system import Evaluation, RunSettings
from troop.engines import Processes
from troop.envs import Toy
from troop.roles.data_parallel import CHECK_EVERY, MIN_SHARE
from troop.systems import DataParallel, OnPolicy

pytestmark = pytest.mark.timeout(180)
SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=1, env_steps=10**9, max_episode_steps=10))
ENGINE = Processes(threads=1, log_s=0.1)
ENVS = 2


@dataclass(frozen=True)
class SlowEnvConfig(Toy):
    """A toy env whose vector steps take time: constant, random, or longer in the env with `slow_seed`."""

    id: str = "PointMass"
    envs: int = ENVS
    slow_seed: int = -1
    slowdown: float = 1.0
    random: bool = False  # exponentially distributed times with the mean `seconds`

    def make_numpy(self, seed):
        seconds = self.seconds * (self.slowdown if seed == self.slow_seed else 1.0)
        return SlowEnv(super().make_numpy(seed), seconds, seed if self.random else None)


class SlowEnv:
    """Sleeps before it returns the step of another env."""

    def __init__(self, env, seconds, seed):
        self.env, self.seconds = env, seconds
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __getattr__(self, name):
        return getattr(self.env, name)

    def recv(self):
        scale = 1.0
        if self.generator is not None:
            scale = float(torch.empty(()).exponential_(generator=self.generator))
        time.sleep(self.seconds * scale)
        return self.env.recv()


@dataclass(frozen=True)
class TracedPPOConfig(PPOConfig):
    """PPO whose checkpoints have a trace of all updates of each worker."""

    def algorithm(self, spec, peers=NO_PEERS, device="cpu"):
        return TracedPPO(spec, self, peers, device)


class TracedPPO(PPO):
    """Appends (length of the rollout, digests of the rollout, the weights and the learner) after each update.

    The trace belongs to one worker: it is neither shared nor compared, and the checkpoint has all of them.
    """

    own_state = ("trace",)

    def __init__(self, *args):
        super().__init__(*args)
        self.trace = []

    def update(self, batch):
        result = super().update(batch)
        rollout = digest([batch.action, batch.reward, *batch.obs.values()])
        weights = digest(list(self.policy.parameters()))
        self.trace.append([batch.length, rollout, weights, digest(super().state_dict())])
        return result

    def state_dict(self):
        return super().state_dict() | {"trace": torch.tensor(self.trace, dtype=torch.int64).view(-1, 4)}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.trace = state["trace"].tolist()


def digest(state):
    """Return a number that depends on every bit of the tensors of a state."""
    tensors = [x for x in pytree.tree_leaves(state) if isinstance(x, torch.Tensor)]
    data = b"".join(x.detach().contiguous().numpy().tobytes() for x in tensors)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), signed=True)


def train(workers, env, env_steps, length=8, preemption=0.6):
    """Train on `processes`; return the observer and the trace of each worker, by rank.

    Asserts that all workers have made the same number of updates, and that no host was restarted.
    """
    config = TracedPPOConfig(rollout_length=length, epochs=1, minibatches=2, hidden=(8,))
    system = DataParallel(workers, preemption, OnPolicy(recreate_every=0, stagger=False))
    observer = RecordingObserver()
    program = system.program(config, env, SETTINGS)
    result = ENGINE.run(program, Until(env_steps=env_steps, minutes=2), SETTINGS.seed, observer)
    assert result.status == "done" and result.counters.restarts == 0, observer.notes
    assert result.counters.env_steps >= env_steps, "the run was too slow"
    state = observer.state
    traces = [state[f"worker{rank}.algorithm"]["trace"] for rank in range(workers)]
    versions = [int(state[f"worker{rank}.version"]) for rank in range(workers)]
    assert versions == [len(trace) for trace in traces] == [result.counters.updates] * workers
    return observer, traces


def slow_worker(rank, slowdown, seconds):
    """Return an env that is slower in the worker with this rank."""
    seed = derive_seed(SETTINGS.seed, f"worker {rank}")
    slow_seed = derive_seed(derive_seed(seed, "train"), "world 0")
    return SlowEnvConfig(limit=9, seconds=seconds, slow_seed=slow_seed, slowdown=slowdown)


def assert_equal_copies(traces):
    """Assert that after every update all copies are equal to the last bit, and that the rollouts are not."""
    first = traces[0]
    assert len(set(first[:, 2].tolist())) == len(first), "an update changed no weight"
    for trace in traces[1:]:
        assert torch.equal(trace[:, 2:], first[:, 2:])
    rollouts = torch.cat([trace[:, 1] for trace in traces]).tolist()
    assert len(set(rollouts)) == len(rollouts), "two workers had the same rollout"


LENGTH = 32


@pytest.mark.parametrize(
    "rank, slowdown, seconds, shortest, longest",
    [
        (3, 20.0, 0.004, LENGTH * MIN_SHARE, 16),  # the others are finished long before a quarter
        (0, 3.0, 0.01, LENGTH * MIN_SHARE + 1, 24),  # the others are finished after about a third
    ],
)
def test_rollouts_of_a_slow_worker_are_shorter_and_all_workers_make_equally_many_updates(
    rank, slowdown, seconds, shortest, longest
):
    env = slow_worker(rank, slowdown, seconds)
    observer, traces = train(4, env, env_steps=8 * 3 * LENGTH * ENVS, length=LENGTH)
    lengths = [trace[:-1, 0] for trace in traces]  # a pause may have ended the last rollouts
    slow = lengths.pop(rank)
    assert len(slow) >= 5
    assert all((other == LENGTH).all() for other in lengths)
    assert slow.min() >= MIN_SHARE * LENGTH and slow.max() < LENGTH
    assert shortest <= slow.float().mean() <= longest
    for number, trace in enumerate(traces):
        steps = observer.state[f"worker{number}.collector"]["env_steps"]
        assert steps == trace[:, 0].sum() * ENVS
    missing = [line["train/preempted_steps"] for line in observer.lines if "train/preempted_steps" in line]
    assert max(missing) > 0
    assert_equal_copies(traces)


def test_without_preemption_no_rollout_of_a_slow_worker_is_shorter():
    _, traces = train(3, slow_worker(1, 4.0, 0.005), 3 * 3 * LENGTH * ENVS, LENGTH, preemption=1.0)
    assert all((trace[:-1, 0] == LENGTH).all() for trace in traces)
    assert_equal_copies(traces)


def check_two_workers(updates):
    _, traces = train(2, SlowEnvConfig(limit=9), env_steps=updates * 2 * 4 * ENVS, length=4)
    assert len(traces[0]) >= updates > CHECK_EVERY
    assert_equal_copies(traces)


def check_random_ends(updates):
    env = SlowEnvConfig(limit=9, seconds=0.001, random=True)
    _, traces = train(3, env, env_steps=updates * 3 * 8 * ENVS)
    lengths = torch.stack([trace[:, 0] for trace in traces])  # [worker, update]
    assert lengths.shape[1] >= updates > CHECK_EVERY
    complete, shortest = lengths == 8, lengths[:, :-1].min()  # a pause may have ended the last rollouts
    assert complete.any(1).all() and (~complete).any(1).all(), "a worker was always or never preempted"
    assert shortest >= 8 * MIN_SHARE
    assert_equal_copies(traces)


def test_two_workers_are_equal_to_the_last_bit_after_every_update():
    check_two_workers(300)


@pytest.mark.long
def test_two_workers_are_equal_to_the_last_bit_after_each_of_a_thousand_updates():
    check_two_workers(1000)


def test_three_workers_with_random_ends_of_rollouts_stay_equal_and_never_wait_forever():
    check_random_ends(120)


@pytest.mark.long
def test_three_workers_with_random_ends_of_rollouts_stay_equal_for_a_thousand_updates():
    check_random_ends(1000)
