"""Copies of a learner that average their gradients: sums, statistics, equal steps and equal weights."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from troop.algorithms import APPOConfig, ImpalaConfig, PPOConfig, SACConfig, TD3Config
from troop.core.algorithm import UpdateResult
from troop.core.batch import Trajectory
from troop.core.config import check
from troop.core.errors import BadInput, TrainingFault
from troop.core.group import SoloGroup
from troop.core.peers import NO_PEERS, Moments
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline
from troop.engines.inline_group import InlineGroup, InlineMember
from troop.envs import Toy
from troop.replay.recorders.trajectories import TrajectoryRecorder
from troop.roles.all_reduce_peers import AllReducePeers, ReplayPeers
from troop.roles.collector import Collector, EnvFactory
from troop.roles.data_parallel import without_counts
from troop.systems import DataParallel

PLAIN = {"normalize_observations": False, "normalize_rewards": False, "hidden": (8, 8)}
SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=10**9))


def together(size, function):
    """Return `function(member)` of all members of a group, which may meet in collectives."""
    group, results = InlineGroup(size), {}

    def call(rank):
        results[rank] = function(InlineMember(group, rank))

    group.step_all([lambda rank=rank: call(rank) for rank in range(size)])
    return [results[rank] for rank in range(size)]


def moments(x):
    var, mean = torch.var_mean(x, 0, correction=0)
    return Moments(torch.tensor(float(len(x))), mean, var, x.abs().amax(0))


def collect(config, envs, seed=1, length=None):
    """Return one trajectory of the config's initial policy in a toy env."""
    env = Toy("PointMass", envs, limit=5)
    torch.manual_seed(0)
    policy = config.policy(env.spec)
    spec = dataclasses.replace(config.experience, length=length or config.experience.length)
    collector = Collector(
        EnvFactory(env.make, seed), policy, TrajectoryRecorder(envs, spec), config.exploration
    )
    while True:
        collector.send()
        if recorded := collector.recv()[0]:
            return recorded[0]


def learner(config, peers=NO_PEERS, envs=8):
    torch.manual_seed(0)
    return config.algorithm(Toy("PointMass", envs, limit=5).spec, peers)


def columns(batch: Trajectory, first, last):
    return batch.columns(torch.arange(first, last))


@given(st.integers(2, 5), st.integers(0, 10**6))
def test_statistics_of_all_members_equal_those_of_all_samples(size, seed):
    generator = np.random.default_rng(seed)
    base = torch.tensor(generator.normal(size=(7, 3)))
    parts = [
        torch.tensor(generator.normal(rank, 2, size=(generator.integers(1, 9), 3))) for rank in range(size)
    ]
    own = [moments(torch.cat((base, part))) for part in parts]  # each member has merged its batch
    merged = together(
        size, lambda m: AllReducePeers(m).merge_moments("x", moments(parts[m.rank]), own[m.rank])
    )
    everything = torch.cat((base, *parts)).numpy()
    for each in merged:
        assert float(each.count) == len(everything)
        np.testing.assert_allclose(each.mean, everything.mean(0), atol=1e-10)
        np.testing.assert_allclose(each.var, everything.var(0), atol=1e-10)
        np.testing.assert_allclose(each.max_abs, np.abs(everything).max(0))
        assert torch.equal(each.mean, merged[0].mean) and torch.equal(each.var, merged[0].var)


def test_replays_may_add_different_numbers_of_batches_between_exchanges():
    batches = [[torch.randn(4), torch.randn(3)], [torch.randn(5)], []]

    def run(member):
        peers, own = ReplayPeers(member), moments(torch.tensor([5.0]))
        for x in batches[member.rank]:
            own = own.merge(moments(x))
            assert peers.merge_moments("returns", moments(x), own) is None
        return peers.exchange(own)

    expected = moments(torch.cat([torch.tensor([5.0]), *(x for part in batches for x in part)]))
    for result in together(3, run):
        assert float(result.count) == 13
        assert torch.allclose(result.mean, expected.mean) and torch.allclose(result.var, expected.var)
        assert float(result.max_abs) == float(expected.max_abs)


def test_gradients_are_averaged_and_a_loss_that_is_not_finite_skips_the_step_of_all():
    def average(member, loss):
        gradient = torch.tensor([1.0, 2.0, 3.0]) * (member.rank + 1)
        AllReducePeers(member).average_gradient(gradient, torch.tensor(loss[member.rank]))
        return gradient

    for gradient in together(2, lambda m: average(m, [0.5, 0.7])):
        assert torch.equal(gradient, torch.tensor([1.5, 3.0, 4.5]))
    for bad in (float("nan"), float("inf")):
        for gradient in together(2, lambda m, bad=bad: average(m, [0.5, bad])):
            assert not gradient.isfinite().all()


def test_gradients_are_clipped_after_they_are_averaged():
    """Opposite gradients of norm 100 cancel; clipped first, the larger one would be lost."""
    config = PPOConfig(rollout_length=4, max_grad_norm=1.0, optimizer="rmsprop", **PLAIN)

    def step(member):
        own = learner(config, AllReducePeers(member))
        sign = 100.0 if member.rank else -99.0
        grads = [torch.full_like(x, sign) for x in own.policy.parameters()]
        own.optimizer.step(grads, torch.zeros(()))
        return own.optimizer.flat.grad

    size = len(learner(config).optimizer.flat)
    expected = 0.5 if size * 0.25 <= 1 else 1 / size**0.5  # mean 0.5 everywhere, clipped to norm 1
    for gradient in together(2, step):
        assert torch.allclose(gradient, torch.full_like(gradient, expected), rtol=1e-4)


@pytest.mark.parametrize("normalize", ["minibatch", "batch", "none"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_two_workers_with_half_of_the_envs_make_the_update_of_one(normalize, core):
    settings = PLAIN | {"normalize_observations": True, "normalize_rewards": True, "core": core}
    config = PPOConfig(
        rollout_length=16, epochs=1, minibatches=1, lr=1e-2, normalize_advantages=normalize, **settings
    )
    batch = collect(config, 8)

    def update(own, part):
        own.update(part)  # only counts observations
        own.update(part)
        return own

    alone = update(learner(config), batch)
    workers = together(
        2,
        lambda m: update(learner(config, AllReducePeers(m)), columns(batch, 4 * m.rank, 4 * m.rank + 4)),
    )
    for worker in workers:
        assert torch.allclose(worker.optimizer.flat, alone.optimizer.flat, atol=1e-5)
        assert torch.allclose(worker.policy.normalizer.mean, alone.policy.normalizer.mean, atol=1e-5)
        assert torch.allclose(worker.return_scale.var, alone.return_scale.var, atol=1e-5)
        assert worker.env_steps == alone.env_steps
    assert torch.equal(workers[0].optimizer.flat, workers[1].optimizer.flat)


CONFIGS = {
    "ppo": PPOConfig(
        rollout_length=8, epochs=2, minibatches=3, desired_kl=0.01, hidden=(8, 8), anneal_steps=10**5
    ),
    "ppo, target kl": PPOConfig(
        rollout_length=8, epochs=4, minibatches=2, target_kl=1e-4, lr=1e-2, hidden=(8, 8)
    ),
    "ppo, separate clipping": PPOConfig(rollout_length=8, separate_grad_clip=True, hidden=(8, 8)),
    "impala": ImpalaConfig(
        unroll_length=8,
        hidden=(8, 8),
        normalize_observations=True,
        normalize_rewards=True,
        anneal_steps=10**4,
    ),
    "appo": APPOConfig(rollout_length=8, epochs=2, minibatches=2, hidden=(8, 8)),
}


@pytest.mark.parametrize("config", CONFIGS)
def test_rollouts_of_different_lengths_need_the_same_collectives_and_keep_weights_equal(config):
    """Lengths 8, 3 and 1 of different envs: a different number of minibatches would never return."""
    cfg = CONFIGS[config]
    lengths = [8, 3, 1]

    def train(member):
        own = learner(cfg, AllReducePeers(member), envs=4)
        for number in range(6):
            torch.manual_seed(10 * number + member.rank)
            own.update(collect(cfg, 4, seed=number + 10 * member.rank, length=lengths[member.rank]))
        return own

    workers = together(3, train)
    for worker in workers[1:]:
        states = [torch.utils._pytree.tree_leaves(each.state_dict()) for each in (workers[0], worker)]
        for one, two in zip(*states, strict=True):
            assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
        rates = [each.optimizer.optimizer.param_groups[0]["lr"] for each in (workers[0], worker)]
        assert rates[0] == rates[1]


@pytest.mark.parametrize("algorithm", ["td3", "sac", "ppo"])
def test_workers_stay_bit_equal_for_a_thousand_updates(algorithm):
    small = {"actor_hidden": (8,), "critic_hidden": (8,)}
    config = {
        "td3": TD3Config(atoms=11, v_min=-10, v_max=10, normalize_rewards=True, **small),
        "sac": SACConfig(atoms=0, normalize_observations=True, normalize_rewards=True, **small),
        "ppo": PPOConfig(rollout_length=2, epochs=1, minibatches=1, hidden=(8,)),
    }[algorithm]
    system = DataParallel(2)
    system = dataclasses.replace(
        system,
        replays=dataclasses.replace(
            system.replays,
            schedule=dataclasses.replace(system.replays.schedule, batch_size=8, updates_per_step=4),
            replay_capacity=400,
        ),
    )
    host = Inline().make_host(system.program(config, Toy("PointMass", 2, limit=9), SETTINGS), 3)
    workers = [host.roles["worker0"], host.roles["worker1"]]
    while workers[0].version < 1000:
        host.step_all()
    first, second = (worker.algorithm.state_dict() for worker in workers)
    states = [torch.utils._pytree.tree_leaves(state) for state in (first, second)]
    for one, two in zip(*states, strict=True):
        assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
    assert not torch.equal(
        workers[0].collector.last_step.obs["obs"], workers[1].collector.last_step.obs["obs"]
    )
    host.close()


def test_workers_start_with_equal_weights_and_collect_different_experience():
    config = PPOConfig(rollout_length=4, hidden=(8,))
    host = Inline().make_host(DataParallel(3).program(config, Toy("PointMass", 2, limit=9), SETTINGS), 3)
    workers = [host.roles[f"worker{rank}"] for rank in range(3)]
    host.step_all()
    flats = [worker.algorithm.optimizer.flat for worker in workers]
    assert torch.equal(flats[0], flats[1]) and torch.equal(flats[0], flats[2])
    seen = {tuple(worker.recorder.obs["obs"][0].flatten().tolist()) for worker in workers}
    actions = {tuple(worker.recorder.rows["action"][0].flatten().tolist()) for worker in workers}
    assert len(seen) == 3 and len(actions) == 3
    host.close()


def test_weights_that_differ_end_the_run():
    config = PPOConfig(rollout_length=1, epochs=1, minibatches=1, hidden=(8,))
    host = Inline().make_host(DataParallel(2).program(config, Toy("PointMass", 2, limit=9), SETTINGS), 3)
    host.step_all()
    with torch.no_grad():
        host.roles["worker1"].algorithm.optimizer.flat[3] += 1e-3
    with pytest.raises(TrainingFault, match=r"members \[1\]"):
        for _ in range(200):
            host.step_all()
    host.close()


def test_checkpoint_of_two_workers_continues_with_three():
    config = PPOConfig(rollout_length=4, hidden=(8,))
    env = Toy("PointMass", 2, limit=9)
    host = Inline().make_host(DataParallel(2).program(config, env, SETTINGS), 3)
    for _ in range(40):
        host.step_all()
    state, version = copy.deepcopy(host.state_dict()), host.roles["worker0"].version
    assert state["worker1.algorithm"] is None
    host.close()
    own = {rank: {k: v for k, v in state.items() if k.startswith(f"worker{rank}.")} for rank in (0, 1)}
    resumed = Inline().make_host(DataParallel(3).program(config, env, SETTINGS), 3)
    for rank in (0, 1):
        parts = {key.partition(".")[2]: part for key, part in own[rank].items()}
        resumed.roles[f"worker{rank}"].load_state_dict(parts)
    resumed.step_all()
    workers = [resumed.roles[f"worker{rank}"] for rank in range(3)]
    assert [worker.version for worker in workers] == [version] * 3
    for worker in workers:
        for name, x in state["worker0.algorithm"]["policy"].items():
            assert torch.equal(worker.algorithm.state_dict()["policy"][name], x)
    for _ in range(8):
        resumed.step_all()
    assert workers[2].version > version
    resumed.close()


class LateGroup(SoloGroup):
    """A group of five of which `finished` members have finished every rollout."""

    rank, size = 4, 5

    def __init__(self, finished):
        self.finished, self.polled = finished, []

    def count_finished(self, number):
        self.polled.append(number)
        return self.finished


@pytest.mark.parametrize(("finished", "steps"), [(2, 20), (3, 5), (4, 5)])
def test_late_worker_ends_its_rollout_at_a_quarter_once_most_have_finished(monkeypatch, finished, steps):
    """Three of five are 60 percent."""
    monkeypatch.setattr("troop.roles.data_parallel.POLL_S", 0.0)
    config = PPOConfig(rollout_length=20, hidden=(8,))
    host = Inline().make_host(DataParallel(1).program(config, Toy("PointMass", 2, limit=9), SETTINGS), 3)
    worker = host.roles["worker0"]
    worker.group, lengths = LateGroup(finished), []
    worker.algorithm.update = lambda batch: lengths.append(batch.length) or UpdateResult({})
    preempted = sum(worker.step().get("train/preempted_steps", 0) for _ in range(steps * 3))
    assert lengths == [steps] * 3 and preempted == 3 * (20 - steps)
    host.close()


def test_shorter_rollout_equals_one_of_that_length():
    config = PPOConfig(rollout_length=20, hidden=(8, 8), core="lstm")
    env = Toy("PointMass", 3, limit=6)
    trajectories = []
    for length, cut in ((20, 7), (7, None)):
        torch.manual_seed(0)
        policy = config.policy(env.spec)
        recorder = TrajectoryRecorder(3, dataclasses.replace(config.experience, length=length))
        collector = Collector(EnvFactory(env.make, 1), policy, recorder, config.exploration)
        recorded = []
        for _ in range(7):
            collector.send()
            recorded += collector.recv()[0]
        recorded += recorder.end_rollout(collector.last_step.obs) if cut else []
        trajectories += recorded
        assert recorder.time == 0 and not recorder.end_rollout(collector.last_step.obs)
    one, other = trajectories
    assert one.length == other.length == 7
    for field in dataclasses.fields(Trajectory):
        first, second = (torch.utils._pytree.tree_leaves(getattr(x, field.name)) for x in (one, other))
        assert len(first) == len(second)
        assert all(a is b or torch.equal(a, b) for a, b in zip(first, second, strict=True)), field.name


def test_exploration_counts_the_steps_of_all_workers():
    config = TD3Config(random_steps=400, actor_hidden=(8,), critic_hidden=(8,))
    host = Inline().make_host(DataParallel(4).program(config, Toy("PointMass", 2, limit=9), SETTINGS), 3)
    explorations = [host.roles[f"worker{rank}"].collector.exploration for rank in range(4)]
    assert all(each == config.exploration.share(4) != config.exploration for each in explorations)
    host.close()


def test_skipped_updates_of_all_workers_are_counted_once():
    assert without_counts({"count/updates": 1, "count/skipped_updates": 1, "count/env_steps": 3}) == {
        "count/env_steps": 3
    }


def test_worker_ends_its_rollout_when_a_pause_is_requested():
    config = PPOConfig(rollout_length=20, hidden=(8,))
    host = Inline().make_host(DataParallel(1).program(config, Toy("PointMass", 2, limit=9), SETTINGS), 3)
    worker, lengths = host.roles["worker0"], []
    worker.group = LateGroup(0)
    worker.algorithm.update = lambda batch: lengths.append(batch.length) or UpdateResult({})
    for number in range(23):
        worker.group.pause_requested = number == 2
        worker.step()
    assert lengths == [3, 20]
    host.close()


def test_complete_rollout_lacks_no_step_when_a_pause_is_requested():
    config = PPOConfig(rollout_length=4, hidden=(8,))
    host = Inline().make_host(DataParallel(1).program(config, Toy("PointMass", 2, limit=9), SETTINGS), 3)
    worker, metrics = host.roles["worker0"], {}
    worker.group = LateGroup(0)
    worker.algorithm.update = lambda batch: UpdateResult({})
    for number in range(4):
        worker.group.pause_requested = number == 3
        metrics = worker.step()
    assert metrics["train/preempted_steps"] == 0
    host.close()


def test_a_group_without_workers_is_refused():
    with pytest.raises(BadInput, match="workers is 0"):
        check(DataParallel(0), "system.")
