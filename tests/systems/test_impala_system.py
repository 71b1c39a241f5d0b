"""IMPALA: every trajectory is learned from once, in any division of envs among actors; kills and lag."""

import collections
import copy
import dataclasses
import itertools
import os

import pytest
import torch
from host_killer import HostKiller, host_processes

from troop.algorithms import APPOConfig, ImpalaConfig, PPOConfig, UnrealConfig
from troop.algorithms.actor_critic_policy import evaluate_trajectory
from troop.core.algorithm import UpdateResult
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline, Processes
from troop.engines.host import Host
from troop.envs import Toy
from troop.systems import A3C, IMPALA, SEED, DataParallel, OnPolicy

SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=400, max_episode_steps=20))
ENV = Toy("Countdown", 4, limit=9, discrete=True)
ALGORITHMS = {
    "impala": ImpalaConfig(unroll_length=5, hidden=(8,), normalize_observations=True, normalize_rewards=True),
    "lstm": ImpalaConfig(unroll_length=5, hidden=(8, 8), core="lstm", core_size=4),
    "ppo": PPOConfig(rollout_length=5, hidden=(8,), minibatches=2, epochs=2, normalize_observations=False),
    "unreal": UnrealConfig(unroll_length=5, replay_length=20, hidden=(8, 8), core_size=4),
}


def rounds(host, count):
    return [metrics for _ in range(count) for metrics in host.step_all()]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("actors, batch_size", [(1, 4), (2, 4), (2, 8), (3, 6)])
def test_batches_come_from_all_actors_and_every_stream_is_learned_from_once(algorithm, actors, batch_size):
    runs = []
    for _ in range(2):
        host = Host(IMPALA(actors, batch_size).program(ALGORITHMS[algorithm], ENV, SETTINGS), 3)
        seen, update = [], host.roles["learner"].algorithm.update

        def keep(batch, seen=seen, update=update):
            assert len(batch) == batch_size and batch.length == 5
            seen.append(batch)
            return update(batch)

        host.roles["learner"].algorithm.update = keep
        metrics = rounds(host, 80)
        steps, updates = (
            sum(m.get(f"count/{name}", 0) for m in metrics) for name in ("env_steps", "updates")
        )
        waiting = len(host.roles["queue"])
        assert updates == len(seen) > 3 and updates * batch_size * 5 + waiting * 5 <= steps
        assert waiting <= 2 * batch_size + actors * 4  # its capacity, and what was under way
        lags = [float(m["policy/data_lag"]) for m in metrics if "policy/data_lag" in m]
        assert all(0 <= lag <= 10 for lag in lags)
        runs.append([batch.obs["obs"].clone() for batch in seen])
        host.close()
    assert all(torch.equal(one, two) for one, two in zip(*runs, strict=True))


@pytest.mark.parametrize("learners", [1, 2])
def test_batches_of_the_circular_buffer_are_learned_from_k_times_and_runs_are_reproducible(learners):
    config = APPOConfig(clip_against="target", rollout_length=5, hidden=(8,))
    system = IMPALA(2, 4, learners=learners, circular_buffer_size=3, replay_times=4)
    runs = []
    for _ in range(2):
        host = Inline().make_host(system.program(config, ENV, SETTINGS), 3)
        seen = []
        for name in ["learner", "learner1"][:learners]:

            def keep(batch, seen=seen, update=host.roles[name].algorithm.update):
                seen.append(batch.obs["obs"].flatten().tolist())
                return update(batch)

            host.roles[name].algorithm.update = keep
        metrics = rounds(host, 160)
        host.close()
        uses = collections.Counter(tuple(obs) for obs in seen)
        assert len(uses) > 10 and max(uses.values()) == 4 and len(seen) > 3 * len(uses)
        steps = sum(m.get("count/env_steps", 0) for m in metrics)
        assert len(uses) * 4 * 5 <= steps
        runs.append(seen)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("algorithm", ["impala", "ppo", "unreal"])
def test_only_algorithms_that_reuse_batches_take_a_circular_buffer(algorithm):
    for system in (IMPALA(2, 4, replay_times=2), IMPALA(2, 4, circular_buffer_size=2)):
        with pytest.raises(BadInput, match="learns from each batch once; --system"):
            system.program(ALGORITHMS[algorithm], ENV, SETTINGS)
        with pytest.raises(BadInput, match="--advantages vtrace"):
            system.program(APPOConfig(advantages="gae"), ENV, SETTINGS)


@pytest.mark.parametrize("stagger", [True, False])
def test_first_episodes_of_actors_end_at_different_times(stagger):
    env = Toy("Clock", 4, limit=20, discrete=True)
    host = Host(IMPALA(2, 4, stagger=stagger).program(ALGORITHMS["impala"], env, SETTINGS), 3)
    ends, update = set(), host.roles["learner"].algorithm.update

    def keep(batch):
        ends.update(batch.ended.nonzero()[:, 0].tolist())
        return update(batch)

    host.roles["learner"].algorithm.update = keep
    rounds(host, 120)
    host.close()
    assert len(ends) > 2 if stagger else len(ends) == 1  # of the five steps of an unroll


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("core, layers", [("none", 1), ("lstm", 1), ("lstm", 2), ("gru", 1), ("gru", 3)])
def test_unchanged_weights_reproduce_the_probabilities_of_acting_and_unrolls_overlap(core, layers, autoreset):
    """The learner recomputes what the actors did: states, last steps and streams arrive as they were."""
    env = Toy("PointMass", 4, limit=7, discrete=True, autoreset=autoreset, last_step=True)
    config = ImpalaConfig(unroll_length=5, hidden=(8, 8), core=core, core_size=4, core_layers=layers)
    host = Host(IMPALA(2, 3).program(config, env, SETTINGS), 3)
    learner, unrolls = host.roles["learner"], {}
    for actor in ("actor0", "actor1"):
        for recorder in host.roles[actor].sampler.recorders:

            def take(recorder=recorder, finish=recorder._take):
                unrolls.setdefault(id(recorder), []).append(copy.deepcopy(finish()))
                return copy.deepcopy(unrolls[id(recorder)][-1])

            recorder._take = take

    def compare(batch):
        policy = learner.algorithm.policy
        outputs, _, _ = evaluate_trajectory(policy, batch)
        log_prob = policy.distribution.log_prob(outputs, batch.action.flatten()).view_as(batch.reward)
        assert torch.allclose(log_prob, batch.extras["log_prob"], atol=1e-5)
        return UpdateResult({})

    learner.algorithm.update = compare
    rounds(host, 120)
    host.close()
    assert learner.updates > 5 and len(unrolls) == 4
    for sequence in unrolls.values():
        for one, two in itertools.pairwise(sequence):
            assert all(torch.equal(x[-1], two.obs[name][0]) for name, x in one.obs.items())
            assert torch.equal(one.started[-1], two.started[0])
            if core != "none":
                _, _, states = learner.algorithm.policy(
                    {name: x[:-1].flatten(0, 1) for name, x in one.obs.items()}, one.state, one.started[:-1]
                )
                for name, x in states["core"].items():
                    last = x.view(5, 2, -1)[-1].masked_fill(one.started[-1].unsqueeze(-1), 0.0)
                    assert torch.allclose(last, two.state["core"][name], atol=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_several_learners_share_the_queue_and_keep_equal_weights(algorithm):
    """Each stream goes to one learner; updates are counted once."""
    program = IMPALA(2, 4, learners=2).program(ALGORITHMS[algorithm], ENV, SETTINGS)
    host, seen = Inline().make_host(program, 3), []
    learners = [host.roles["learner"], host.roles["learner1"]]
    for learner in learners:

        def keep(batch, update=learner.algorithm.update):
            seen.append(batch.obs["obs"].clone())
            return update(batch)

        learner.algorithm.update = keep
    metrics = rounds(host, 120)
    steps, updates = (sum(m.get(f"count/{name}", 0) for m in metrics) for name in ("env_steps", "updates"))
    assert abs(learners[0].updates - learners[1].updates) <= 1  # one may wait for its batch
    assert updates == learners[0].updates > 3 and len(seen) * 4 * 5 <= steps
    assert not any(torch.equal(one, two) for i, one in enumerate(seen) for two in seen[:i])
    if learners[0].updates == learners[1].updates:
        first, second = (learner.algorithm.policy.state_dict() for learner in learners)
        assert all(torch.equal(x, second[name]) for name, x in first.items())
    assert host.roles["weights"].latest(-1)[0] == learners[0].updates
    host.close()


@pytest.mark.reliability("K7")
def test_killed_learner_of_several_restarts_all_learners():
    observer = HostKiller((("learner1",), ("learner",)), steps=300, updates=8)
    engine = Processes(threads=1, log_s=0.05, checkpoint_s=0.3)
    program = IMPALA(2, 4, learners=2).program(ALGORITHMS["impala"], ENV, SETTINGS)
    result = engine.run(program, Until(minutes=3), 3, observer)
    assert result.status == "stopped", "the run ended before all kills of the plan"
    assert result.counters.restarts == 2
    assert not host_processes(os.getpid())


def test_full_queue_in_bytes_makes_actors_wait():
    host = Host(IMPALA(2, 4, queue_size=100, queue_mb=0.003).program(ALGORITHMS["lstm"], ENV, SETTINGS), 3)
    host.active.remove("learner")  # a paused learner
    host.roles["learner"].step()  # publishes the first weights
    rounds(host, 200)
    queue, (first, *_) = host.roles["queue"], host.roles["queue"]._waiting
    assert queue.nbytes >= queue.max_bytes and len(queue) < queue.capacity
    assert queue.nbytes <= queue.max_bytes + 3 * 2 * 2 * first.nbytes  # what two double-buffered actors sent
    host.close()


def test_queue_smaller_than_a_batch_in_bytes_still_gets_one_batch():
    host = Host(IMPALA(2, 8, queue_mb=1e-6).program(ALGORITHMS["impala"], ENV, SETTINGS), 3)
    rounds(host, 100)
    assert host.roles["learner"].updates > 3
    host.close()


def test_a_saved_run_can_be_continued():
    host = Host(IMPALA(2, 4).program(ALGORITHMS["impala"], ENV, SETTINGS), 3)
    rounds(host, 40)
    state = copy.deepcopy(host.state_dict())
    other = Host(IMPALA(2, 4).program(ALGORITHMS["impala"], ENV, SETTINGS), 3)
    other.load_state_dict(state)
    before = other.roles["learner"].updates
    rounds(other, 40)
    assert before == host.roles["learner"].updates and other.roles["learner"].updates > before + 3
    for each in (host, other):
        each.close()


@pytest.mark.parametrize(
    "system",
    [IMPALA(1, 9), SEED(1, batch_size=9), OnPolicy(), DataParallel(2), A3C(2)],
    ids=lambda x: x.__class__,
)
@pytest.mark.parametrize(
    "algorithm",
    [
        APPOConfig(rollout_length=5, minibatches=4),
        PPOConfig(rollout_length=5, core="gru", minibatches=4),
        PPOConfig(rollout_length=5, minibatches=4),
    ],
    ids=["appo", "recurrent ppo", "ppo"],
)
def test_batches_that_do_not_divide_into_minibatches_are_refused_with_numbers_that_would(system, algorithm):
    with pytest.raises(
        BadInput, match=r"--minibatches is 4, which does not divide the .*; 1, 3, [59] would\."
    ):
        system.program(algorithm, dataclasses.replace(ENV, envs=9), SETTINGS)
    divisible = dataclasses.replace(algorithm, minibatches=3)
    assert system.program(divisible, dataclasses.replace(ENV, envs=9), SETTINGS).nodes


def test_lag_of_data_is_counted_in_updates_after_the_learner_was_restored():
    """A learner that lost updates continues with its own count; actors and weights continue as they are."""
    host = Host(IMPALA(2, 4).program(ALGORITHMS["impala"], ENV, SETTINGS), 3)
    learner = host.roles["learner"]
    rounds(host, 40)
    saved = copy.deepcopy(learner.state_dict())
    rounds(host, 80)
    lost = learner.updates - saved["counts"]["updates"]
    learner.load_state_dict(saved)
    learner.on_restart()
    before = [float(m["policy/data_lag_max"]) for m in rounds(host, 20) if "policy/data_lag_max" in m]
    lags = [float(m["policy/data_lag_max"]) for m in rounds(host, 80) if "policy/data_lag_max" in m]
    assert lost > 5 and before and max(lags) < lost and min(lags) > 0
    assert host.roles["weights"].version == learner.updates
    host.close()


@pytest.mark.reliability("K5", "K6")
def test_killed_hosts_are_restarted_and_the_run_continues():
    plan = (("queue",), ("actor1",), ("actor0", "actor1"), ("learner",), ("weights",))
    observer = HostKiller(plan, steps=300, updates=8)
    engine = Processes(threads=1, log_s=0.05, checkpoint_s=0.3)
    program = IMPALA(2, 4).program(ALGORITHMS["lstm"], ENV, SETTINGS)
    result = engine.run(program, Until(minutes=3), 3, observer)
    assert result.status == "stopped", "the run ended before all kills of the plan"
    counters = [kill.counters for kill in observer.kills] + [result.counters]
    for killed, before, after in zip(plan, counters, counters[1:], strict=False):
        assert after.restarts == before.restarts + len(killed) and after.updates > before.updates
    assert not [pid for pid in observer.pids if os.path.exists(f"/proc/{pid}")]
    assert not host_processes(os.getpid())
