import dataclasses

import pytest
import torch
from watching import RunObserver

from troop.algorithms.dqn import DQNConfig
from troop.algorithms.td3 import TD3Config
from troop.core.batch import TrajectorySpec
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.core.exploration import LinearSchedule
from troop.core.peers import NoPeers
from troop.core.program import construct, derive_seed
from troop.engines import Processes
from troop.engines.host import Host
from troop.envs import Toy
from troop.roles.parameter_server import AdaGradConfig
from troop.roles.server_peers import OutlierConfig
from troop.roles.trainer import UpdateSchedule
from troop.systems.components import seeded_learner
from troop.systems.gorila import Gorila
from troop.systems.settings import Evaluation, RunSettings
from troop.systems.sync import Sync

SETTING = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=10**9, longest=100))
DQN = DQNConfig(hidden=(8,), target_period=9, epsilon_steps=400)
SMALL = Gorila(
    UpdateSchedule(8, 1),
    replay_capacity=800,
    learning_starts=6,
    recreate_every=0,
    adagrad=AdaGradConfig(lr=0.01),
)
ENV = Toy("Countdown", 2, limit=12, discrete=True)


def vector(module):
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()


class Adagrad(torch.optim.Adagrad):
    """Torch's, deaf to the flag that only its fused optimizers know."""

    def step(self, closure=None):
        self.found_inf = None
        return super().step()


class Plain(NoPeers):
    """Torch's AdaGrad, nobody else."""

    def optimizer(self, parameters, make):
        return Adagrad(parameters, lr=0.01, eps=1e-8)


def test_one_bundle_is_sync_with_adagrad_from_the_first_env_step_on():
    rule = AdaGradConfig(lr=0.01, eps=1e-8, max_staleness=0)
    gorila = dataclasses.replace(
        SMALL, bundles=1, servers=2, adagrad=rule, outliers=OutlierConfig(max_deviations=0)
    )
    bundle = Host(gorila.program(DQN, ENV, SETTING), 3)
    own = dataclasses.replace(SETTING, seed=derive_seed(3, "bundle 0"))
    sync = Sync(UpdateSchedule(8, 1), replay_capacity=800, learning_starts=6, recreate_every=0)
    alone = Host(sync.program(DQN, ENV, own), 3)
    trainer = alone.roles["trainer"]
    trainer.algorithm = seeded_learner(DQN.algorithm, ENV.spec, 3, "cpu", Plain())
    trainer.collector.policy = trainer.algorithm.policy
    ends = []
    for host, name in ((bundle, "bundle0"), (alone, "trainer")):
        torch.manual_seed(5)
        for _ in range(150):
            host.round()
        role = host.roles[name]
        ends.append(
            (vector(role.algorithm.q), vector(role.algorithm.target_q), role.store.streams.rows.clone())
        )
    assert all(torch.allclose(one, two, atol=1e-5) for one, two in zip(*ends, strict=True))
    assert bundle.roles["server"].counts["applied"] == 145


def test_bundles_begin_alike_on_whatever_host_and_share_the_steps_of_exploration():
    roles = {}
    for name, node in dataclasses.replace(SMALL, bundles=3).program(DQN, ENV, SETTING).nodes.items():
        torch.manual_seed(len(roles))  # as if each were a host of its own
        roles[name] = construct(node.build, roles.__getitem__)
    first, *others = (roles[f"bundle{i}"] for i in range(3))
    assert all(torch.equal(vector(first.algorithm.q), vector(other.algorithm.q)) for other in others)
    assert first.collector.exploration == LinearSchedule(1.0, 0.1, 133)
    assert len({role.collector.world.seed for role in (first, *others)}) == 3


@pytest.mark.parametrize("staleness, bound", [(None, 60), (0, 0), (7, 7)])
def test_the_bound_of_staleness_grows_with_the_bundles_unless_it_is_given(staleness, bound):
    system = dataclasses.replace(SMALL, bundles=3, adagrad=AdaGradConfig(max_staleness=staleness))
    nodes = system.program(DQN, ENV, SETTING).nodes
    assert nodes["server"].build.args[0].max_staleness == bound


def test_sent_gradients_are_applied_or_dropped_and_counted():
    system = dataclasses.replace(
        SMALL,
        bundles=3,
        adagrad=AdaGradConfig(lr=0.01, max_staleness=1),
        outliers=OutlierConfig(min_losses=20),
    )
    host = Host(system.program(DQN, ENV, SETTING), 3)
    for _ in range(100):
        host.round()
    counts, updates = host.roles["server"].counts, 3 * 95
    assert sum(counts.values()) == updates - 2  # two entered with what another had made of the start
    assert counts["dropped_stale"] > 50  # three in turn: each finds two gradients before its own
    assert host.gauges()["server/dropped_stale"] == counts["dropped_stale"]


def test_a_run_goes_on_from_its_state():
    one, two = (Host(SMALL.program(DQN, ENV, SETTING), 3) for _ in range(2))
    for _ in range(40):
        one.round()
    two.load_state_dict(one.state_dict())
    assert two.roles["server"].slices[0].version == one.roles["server"].slices[0].version > 50
    for _ in range(10):
        two.round()
    assert two.roles["server"].counts["dropped_stale"] == 0


def test_algorithms_that_want_trajectories_are_refused():
    class Wants(TD3Config):
        experience = TrajectorySpec(8)

    with pytest.raises(BadInput, match="Wants wants trajectories"):
        SMALL.program(Wants(), Toy("Clock", 2), SETTING)
    with pytest.raises(BadInput, match="updates-per-step is 0; with"):
        dataclasses.replace(SMALL, schedule=UpdateSchedule(8, 0), shared_replay=True).program(
            DQN, ENV, SETTING
        )


@pytest.mark.parametrize("shared", [False, True])
def test_it_runs_in_processes(shared):
    system = dataclasses.replace(SMALL, shared_replay=shared, servers=2, replay_capacity=20_000)
    watch = RunObserver()
    engine = Processes(threads=1, log_s=0.2)
    result = engine.run(system.program(DQN, ENV, SETTING), Until(env_steps=800), 3, watch)
    assert result.status == "done" and result.counters.restarts == 0 and watch.evaluations
    for name in ("server", "server1"):
        counts = watch.state[f"{name}.counts"]
        sent = sum(counts.values())
        assert counts["applied"] > 100 and 0 <= result.counters.updates - sent <= 3
