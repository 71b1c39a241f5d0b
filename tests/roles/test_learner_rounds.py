"""Learners of a group that pause without a batch, weights without tensors, workers added to a group."""

import copy

import torch

from troop.algorithms import ImpalaConfig, TD3Config
from troop.core.group import SoloGroup
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline
from troop.engines.inline_group import InlineGroup, InlineMember
from troop.envs import Toy
from troop.replay.recorders.trajectories import TrajectoryRecorder
from troop.roles.all_reduce_peers import AllReducePeers
from troop.roles.collector import Collector, EnvFactory
from troop.roles.data_parallel import DataParallelLearner, compare_weights
from troop.roles.learner import LearnerConfig
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import DataParallel, Sync

CONFIG = ImpalaConfig(unroll_length=4, hidden=(8,))
ENV = Toy("PointMass", 2, limit=9)
SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=10**9))


class PausingMember(InlineMember):
    """A member whose engine may request a pause; members agree to it at the end of a round."""

    rounds, paused = 0, False

    def end_round(self):
        requested = self.all_gather(torch.tensor(int(self.pause_requested)))
        self.rounds, self.paused, self.pause_requested = self.rounds + 1, bool(requested.any()), False


class BatchList:
    """Returns the batches put into it, each once."""

    def __init__(self):
        self.batches = []

    def sample(self, rows):
        return self.batches.pop(0) if self.batches else None


def collect(seed):
    """Return one trajectory of the initial policy."""
    torch.manual_seed(0)
    recorder = TrajectoryRecorder(ENV.envs, CONFIG.experience)
    collector = Collector(EnvFactory(ENV.make, seed), CONFIG.policy(ENV.spec), recorder, CONFIG.exploration)
    while True:
        collector.send()
        if recorded := collector.recv()[0]:
            return recorded[0]


def make_learners(size):
    group, learners = InlineGroup(size), []
    for rank in range(size):
        torch.manual_seed(0)
        member = PausingMember(group, rank)
        algorithm = CONFIG.algorithm(ENV.spec, AllReducePeers(member))
        config = LearnerConfig(ENV.envs, prefetch=1, publish_every=1)
        learners.append(DataParallelLearner(member, algorithm, BatchList(), None, config))
    return group, learners


def test_learners_without_batches_pause_and_keep_those_that_have_arrived():
    group, learners = make_learners(3)
    steps, used = [learner.step for learner in learners], []
    for learner in learners:

        def keep(batch, update=learner.algorithm.update):
            used.append(float(batch.reward.sum()))
            return update(batch)

        learner.algorithm.update = keep
    batches = [collect(seed) for seed in range(3)]
    group.step_all(steps)
    learners[1].source.batches.append(batches[1])
    for _ in range(2):  # the second learner waits for the others, which have nothing to do
        assert not [metrics for metrics in group.step_all(steps) if metrics]
    assert [learner.group.rounds for learner in learners] == [0, 0, 0]
    learners[0].group.pause_requested = True
    group.step_all(steps)  # the command has not reached the third learner yet
    assert not any(learner.group.paused for learner in learners)
    learners[2].group.pause_requested = True
    group.step_all(steps)
    assert all(learner.group.paused for learner in learners) and not used
    assert [learner.group.rounds for learner in learners] == [1, 1, 1]
    assert learners[1].updates == 0 and not learners[1].source.batches

    learners[0].source.batches.append(batches[0])
    learners[2].source.batches.append(batches[2])
    for _ in range(2):
        group.step_all(steps)
    assert [learner.updates for learner in learners] == [1, 1, 1]
    assert sorted(used) == sorted(float(batch.reward.sum()) for batch in batches)
    assert [learner.group.rounds for learner in learners] == [2, 2, 2] and not learners[0].group.paused
    flats = [learner.algorithm.optimizer.flat for learner in learners]
    assert torch.equal(flats[0], flats[1]) and torch.equal(flats[0], flats[2])
    group.close()


def test_pause_after_an_update_needs_no_further_batch():
    group, learners = make_learners(2)
    for seed, learner in enumerate(learners):
        learner.source.batches.append(collect(seed))
        learner.group.pause_requested = True
    results = group.step_all([learner.step for learner in learners])
    assert len([metrics for metrics in results if metrics]) == 2
    assert [(learner.updates, learner.group.paused) for learner in learners] == [(1, True)] * 2
    group.close()


class WithoutTensors:
    """An algorithm whose state has no tensor of floats."""

    def state_dict(self):
        return {"updates": 3, "indices": torch.tensor([1, 2])}


def test_weights_without_tensors_are_equal():
    compare_weights(SoloGroup(), WithoutTensors(), 100)


def test_worker_that_is_added_continues_the_exploration_schedule():
    config = TD3Config(random_steps=60, atoms=0, actor_hidden=(8,), critic_hidden=(8,))
    replays = Sync(UpdateSchedule(8), replay_capacity=400)
    host = Inline().make_host(DataParallel(2, replays=replays).program(config, ENV, SETTINGS), 3)
    for _ in range(40):
        host.step_all()
    state, env_steps = copy.deepcopy(host.state_dict()), host.roles["worker0"].collector.env_steps
    host.close()
    assert env_steps > 60
    resumed = Inline().make_host(DataParallel(3, replays=replays).program(config, ENV, SETTINGS), 3)
    for name in ("worker0", "worker1"):
        parts = {k.partition(".")[2]: part for k, part in state.items() if k.startswith(f"{name}.")}
        parts["collector"]["env_steps"] += int(name == "worker1")
        resumed.roles[name].load_state_dict(parts)
    resumed.step_all()
    collectors = [resumed.roles[f"worker{rank}"].collector for rank in range(3)]
    assert [each.env_steps - env_steps for each in collectors] == [2, 3, 2]  # two envs; worker1 had one more
    assert all(each.explore.isfinite().all() for each in collectors)
    resumed.close()
