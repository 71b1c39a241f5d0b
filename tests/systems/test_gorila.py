import dataclasses

import pytest
import torch
from recording_observer import RecordingObserver
from small_systems import GORILA, SETTINGS, TrajectoryConfig, inline_host, step_rounds

from troop.algorithms import DQNConfig, TD3Config
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.core.exploration import OverUpdates
from troop.core.peers import NoPeers
from troop.core.program import construct, derive_seed
from troop.engines import Processes
from troop.envs import Toy
from troop.roles.parameter_server import AdaGradConfig
from troop.roles.server_peers import OutlierConfig
from troop.roles.update_schedule import UpdateSchedule
from troop.systems import Sync
from troop.systems.components import seeded_learner

DQN = DQNConfig(hidden=(8,), target_update_period=9, epsilon_steps=400)
ENV = Toy("Countdown", 2, limit=12, discrete=True)


def flat_parameters(module):
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()


class Adagrad(torch.optim.Adagrad):
    """torch's AdaGrad, which does not support the `found_inf` attribute of fused optimizers."""

    def step(self, closure=None):
        self.found_inf = None
        return super().step()


class LocalAdagrad(NoPeers):
    """No peers, and torch's AdaGrad in place of the algorithm's optimizer."""

    def optimizer(self, parameters, make):
        return Adagrad(parameters, lr=0.01, eps=1e-8)


def test_one_bundle_equals_sync_with_adagrad():
    gorila = dataclasses.replace(
        GORILA,
        bundles=1,
        servers=2,
        adagrad=AdaGradConfig(lr=0.01, eps=1e-8, max_staleness=0),
        outliers=OutlierConfig(max_deviations=0),
    )
    gorila_host = inline_host(gorila, DQN, ENV)
    sync = Sync(UpdateSchedule(8, 1), replay_capacity=800, learning_starts=6, recreate_every=0)
    bundle_settings = dataclasses.replace(SETTINGS, seed=derive_seed(3, "bundle 0"))
    sync_host = inline_host(sync, DQN, ENV, bundle_settings)
    trainer = sync_host.roles["trainer"]
    trainer.algorithm = seeded_learner(DQN.algorithm, ENV.spec, 3, "cpu", LocalAdagrad())
    trainer.compiler.algorithm, trainer.collector.policy = trainer.algorithm, trainer.algorithm.policy
    trainer.collector.exploration = OverUpdates(DQN.exploration, lambda: trainer.version)
    results = []
    for host, name in ((gorila_host, "bundle0"), (sync_host, "trainer")):
        torch.manual_seed(5)
        step_rounds(host, 150)
        role = host.roles[name]
        parameters = [flat_parameters(net) for net in (role.algorithm.q, role.algorithm.target_q)]
        results.append((*parameters, role.replay.storage.rows.clone()))
    assert all(torch.allclose(one, two, atol=1e-5) for one, two in zip(*results, strict=True))
    assert gorila_host.roles["server"].counts["applied"] == 145


def test_bundles_start_with_equal_weights_and_different_envs():
    roles = {}
    for name, node in dataclasses.replace(GORILA, bundles=3).program(DQN, ENV, SETTINGS).nodes.items():
        torch.manual_seed(len(roles))  # as if each role were on a host of its own
        roles[name] = construct(node.build, roles.__getitem__)
    first, *others = (roles[f"bundle{i}"] for i in range(3))
    parameters = flat_parameters(first.algorithm.q)
    assert all(torch.equal(parameters, flat_parameters(other.algorithm.q)) for other in others)
    assert len({role.collector.env_factory.seed for role in (first, *others)}) == 3


@pytest.mark.parametrize("shared", [False, True])
def test_epsilon_is_annealed_over_the_updates_of_all_learners(shared):
    """From 1 to 0.1 over 400 global updates; env steps before the first update do not count."""
    system = dataclasses.replace(GORILA, bundles=3, shared_replay=shared, learning_starts=20)
    host = inline_host(system, DQN, ENV)
    server = host.roles["server"]
    collectors = [
        collector
        for i in range(3)
        for collector in (
            host.roles[f"actor{i}"].sampler.collectors if shared else [host.roles[f"bundle{i}"].collector]
        )
    ]
    seen = []
    for _ in range(400):
        before = server.updates()
        step_rounds(host, 1)
        expected = [1 - 0.9 * min(1, updates / 400) for updates in (before, server.updates())]
        epsilons = {round(float(x), 4) for collector in collectors for x in collector.explore}
        stepped = {x for x in epsilons if expected[1] - 1e-3 <= x <= expected[0] + 1e-3}
        assert stepped and (shared or stepped == epsilons)  # one half of a double buffer steps per round
        seen.append((before, max(epsilons)))
    warm_up = [epsilon for updates, epsilon in seen if updates == 0]
    assert len(warm_up) >= 18 and set(warm_up[:-1]) == {1.0}
    assert seen[-1][0] > 400 and seen[-1][1] == pytest.approx(0.1, abs=1e-3)


@pytest.mark.reliability("R7")
def test_restarted_bundle_continues_with_the_epsilon_of_the_servers_count():
    one, two = (inline_host(GORILA, DQN, ENV) for _ in range(2))
    step_rounds(one, 60)
    two.load_state_dict(one.state_dict())
    for host in (one, two):
        step_rounds(host, 1)
    epsilons = [host.roles["bundle0"].collector.explore.tolist() for host in (one, two)]
    assert epsilons[0] == epsilons[1] and epsilons[0][0] < 0.85


@pytest.mark.parametrize("max_staleness, bound", [(None, 60), (0, 0), (7, 7)])
def test_default_bound_of_staleness_is_twenty_per_bundle(max_staleness, bound):
    system = dataclasses.replace(GORILA, bundles=3, adagrad=AdaGradConfig(max_staleness=max_staleness))
    nodes = system.program(DQN, ENV, SETTINGS).nodes
    assert nodes["server"].build.args[0].max_staleness == bound


def test_gradients_are_applied_or_dropped_and_counted():
    system = dataclasses.replace(
        GORILA,
        bundles=3,
        adagrad=AdaGradConfig(lr=0.01, max_staleness=1),
        outliers=OutlierConfig(min_losses=20),
    )
    host = inline_host(system, DQN, ENV)
    step_rounds(host, 100)
    counts, updates = host.roles["server"].counts, 3 * 95
    assert (
        sum(counts.values()) == updates - 2
    )  # two bundles registered after the first had changed the weights
    assert counts["dropped_stale"] > 50  # three bundles in turn: two gradients arrive before each
    assert host.gauges()["server/dropped_stale"] == counts["dropped_stale"]


@pytest.mark.reliability("R2")
def test_run_continues_from_its_checkpoint():
    one, two = (inline_host(GORILA, DQN, ENV) for _ in range(2))
    step_rounds(one, 40)
    two.load_state_dict(one.state_dict())
    assert two.roles["server"].slices[0].version == one.roles["server"].slices[0].version > 50
    step_rounds(two, 10)
    assert two.roles["server"].counts["dropped_stale"] == 0


def test_algorithm_that_learns_from_trajectories_is_rejected():
    with pytest.raises(BadInput, match="TrajectoryConfig learns from trajectories, but the gorila system"):
        GORILA.program(TrajectoryConfig(), Toy("Clock", 2), SETTINGS)


def test_shared_replay_without_updates_is_rejected():
    system = dataclasses.replace(GORILA, schedule=UpdateSchedule(8, 0), shared_replay=True)
    with pytest.raises(
        BadInput, match=r"--system.schedule.updates-per-step is 0; with --system.shared-replay"
    ):
        system.program(DQN, ENV, SETTINGS)


@pytest.mark.parametrize("shared", [False, True])
def test_capacity_in_the_error_message_is_that_of_one_bundle(shared):
    system = dataclasses.replace(GORILA, replay_capacity=15, shared_replay=shared)
    with pytest.raises(BadInput, match=r"--system.replay-capacity is 15; with 2 envs it must be at least"):
        system.program(DQN, ENV, SETTINGS)


@pytest.mark.parametrize("shared", [False, True])
def test_run_in_processes_applies_the_gradients_of_all_learners(shared):
    system = dataclasses.replace(GORILA, shared_replay=shared, servers=2, replay_capacity=20_000)
    observer = RecordingObserver()
    engine = Processes(threads=1, log_s=0.2)
    result = engine.run(system.program(DQN, ENV, SETTINGS), Until(env_steps=800), 3, observer)
    assert result.status == "done" and result.counters.restarts == 0 and observer.evaluations
    for name in ("server", "server1"):
        counts = observer.state[f"{name}.counts"]
        sent = sum(counts.values())
        assert counts["applied"] > 100 and 0 <= result.counters.updates - sent <= 3


TD3 = TD3Config(actor_hidden=(8,), critic_hidden=(8,), atoms=11, normalize_rewards=True)


def observed_statistics(state, bundle):
    """Return (mean of observations, mean of returns) that a bundle of a checkpoint uses."""
    normalizer = state[f"{bundle}.algorithm"]["policy"]
    return normalizer["normalizer.mean"], state[f"{bundle}.replay"]["reward_scale"]["mean"]


def test_bundles_share_the_statistics_of_observations_and_rewards():
    host = inline_host(dataclasses.replace(GORILA, bundles=3), TD3, Toy("PointMass", 2, limit=12))
    step_rounds(host, 60)
    server, bundles = host.roles["server"], [host.roles[f"bundle{i}"] for i in range(3)]
    assert server.moments["returns"].count == 3 * 2 * 60
    assert server.moments["observations"].count == 3 * 8 * 55
    divisors = [bundle.replay.reward_scale.value.item() for bundle in bundles]
    assert divisors == pytest.approx([divisors[-1]] * 3, rel=0.02)  # bundles report one after the other
    means = [bundle.algorithm.policy.normalizer.mean for bundle in bundles]
    assert all(torch.allclose(mean, means[-1], atol=0.02) for mean in means)
    returns = bundles[-1].replay.reward_scale.moments
    assert torch.allclose(returns.var.double(), server.moments["returns"].var)


def test_statistics_are_shared_between_processes_and_saved():
    system = dataclasses.replace(GORILA, servers=2, replay_capacity=20_000)
    observer, engine = RecordingObserver(), Processes(threads=1, log_s=0.2)
    program = system.program(TD3, Toy("PointMass", 2, limit=12), SETTINGS)
    result = engine.run(program, Until(env_steps=1500), 3, observer)
    assert result.status == "done" and result.counters.restarts == 0
    shared = observer.state["server.moments"]
    assert shared["returns"]["count"] == pytest.approx(result.counters.env_steps, rel=0.1)
    assert not observer.state["server1.moments"]
    for bundle in ("bundle0", "bundle1"):
        obs, returns = observed_statistics(observer.state, bundle)
        assert torch.allclose(obs.double(), shared["observations"]["mean"], atol=0.05)
        assert returns.item() == pytest.approx(shared["returns"]["mean"].item(), rel=0.05)
