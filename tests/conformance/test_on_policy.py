"""Every on-policy system with every algorithm over trajectories: updates, reproducibility, resuming."""

import copy

import pytest
import torch

from troop.algorithms import PPOConfig, UnrealConfig
from troop.algorithms.actor_critic_policy import evaluate_trajectory
from troop.core.algorithm import UpdateResult
from troop.core.env import Continuous, Discrete, EnvSpec, Field
from troop.core.errors import BadInput
from troop.core.system import Evaluation, RunSettings
from troop.engines import Inline
from troop.engines.host import Host
from troop.envs import Toy
from troop.roles.parameter_server import SharedRMSPropConfig
from troop.systems import A3C, DataParallel, OnPolicy, Sync

A2C = {"epochs": 1, "minibatches": 1, "clip": 0.0, "gae_lambda": 1.0, "normalize_advantages": "none"}
ALGORITHMS = {
    "ppo": PPOConfig(rollout_length=10, epochs=2, minibatches=2, hidden=(8,)),
    "ppo, adaptive": PPOConfig(rollout_length=10, hidden=(8,), desired_kl=0.01, normalize_advantages="batch"),
    "ppo, separate clipping": PPOConfig(
        rollout_length=10, hidden=(8,), separate_grad_clip=True, value_clip=0.2
    ),
    "a2c": PPOConfig(rollout_length=10, hidden=(8,), optimizer="rmsprop_tf", **A2C),
    "lstm": PPOConfig(rollout_length=10, minibatches=2, hidden=(8, 8), core="lstm", core_size=6),
    "two layers": PPOConfig(
        rollout_length=10, minibatches=2, hidden=(8, 8), core="lstm", core_size=6, core_layers=2
    ),
    "gru": PPOConfig(rollout_length=10, minibatches=4, hidden=(8,), core="gru", core_size=6),
    "unreal": UnrealConfig(
        unroll_length=10, replay_length=30, hidden=(8, 8), core_size=6, normalize_rewards=True
    ),
}
SYSTEMS = {
    "on-policy": OnPolicy(recreate_every=23),
    "a3c": A3C(2, servers=2, recreate_every=23),
    "data-parallel": DataParallel(2, rollouts=OnPolicy(recreate_every=23)),
}
ENVS = {
    "clock": Toy("Clock", 4, limit=9, autoreset="next_step"),
    "countdown": Toy("Countdown", 4, limit=40, discrete=True),
    "privileged": Toy("PointMass", 4, limit=9, privileged=True),
}
SETTINGS = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=10**9))


def host_of(system, algorithm, env):
    return Inline().make_host(SYSTEMS[system].program(ALGORITHMS[algorithm], ENVS[env], SETTINGS), 3)


def step_rounds(host, rounds):
    return [step for _ in range(rounds) for step in host.step_all()]


def losses_of(metrics):
    return torch.tensor([float(m["loss/critic"]) for m in metrics if "loss/critic" in m])


def check_equal(one, other):
    assert one.keys() == other.keys()
    for name, x in one.items():
        assert torch.equal(x, other[name]), name


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("env", ENVS)
def test_on_policy_systems_make_the_expected_updates_and_can_be_resumed(system, algorithm, env):
    if system == "a3c" and getattr(ALGORITHMS[algorithm], "desired_kl", 0):
        with pytest.raises(BadInput, match="--desired-kl has no effect in A3C"):
            host_of(system, algorithm, env)
        return
    host, workers = host_of(system, algorithm, env), 1 if system == "on-policy" else 2
    step_rounds(host, 47)  # in the middle of the fifth trajectory
    saved = copy.deepcopy(host.state_dict())
    rest = step_rounds(host, 33)
    final = copy.deepcopy(host.state_dict())
    host.close()
    updates = sum(m.get("count/updates", 0) for m in rest)
    assert updates == 4 * (2 if system == "a3c" else 1)  # the workers of a group update together
    assert sum(float(m.get("count/skipped_updates", 0)) for m in rest) == 0
    assert torch.isfinite(losses_of(rest)).all() and len(losses_of(rest)) == 4 * workers

    resumed = host_of(system, algorithm, env)
    resumed.load_state_dict(saved)
    again = step_rounds(resumed, 33)
    assert torch.equal(losses_of(again), losses_of(rest))
    check_equal(resumed.state_dict()["policy"], final["policy"])
    resumed.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("action", [Continuous(2), Discrete(3)])
def test_policies_act_row_by_row(algorithm, action):
    torch.manual_seed(0)
    spec = EnvSpec("test", {"obs": Field((3,))}, action, 8)
    policy = ALGORITHMS[algorithm].policy(spec)
    obs, zeros = {"obs": torch.randn(5, 3)}, torch.zeros(5)
    state = policy.initial_state(5)
    for _ in range(2):
        whole = policy.act(obs, state, zeros)
        rows = []
        for row in range(5):
            own = None if state is None else {"core": {k: x[row : row + 1] for k, x in state["core"].items()}}
            rows.append(policy.act({"obs": obs["obs"][row : row + 1]}, own, zeros[:1]).action)
        assert torch.allclose(torch.cat(rows), whole.action, atol=1e-5)
        state = whole.state


def test_systems_refuse_algorithms_of_the_other_batch_type():
    from troop.algorithms import DQNConfig

    with pytest.raises(BadInput, match="learns from n-step transitions"):
        OnPolicy().program(DQNConfig(), ENVS["countdown"], SETTINGS)
    with pytest.raises(BadInput, match="learns from trajectories"):
        Sync().program(PPOConfig(), ENVS["countdown"], SETTINGS)


def test_workers_share_parameters_and_rmsprop_statistics():
    host = host_of("a3c", "a2c", "countdown")
    step_rounds(host, 60)
    roles = host.roles
    server, workers = roles["server"], [roles["worker0"], roles["worker1"]]
    applied = server.counts["applied"]
    # The first trajectory of each worker only counts observations. The first gradient of the second worker
    # belongs to its initial parameters, which the first worker has updated: it is dropped.
    assert applied == sum(worker.version - 1 for worker in workers) - 1
    assert server.slices[0].version == applied and bool(server.slices[0].squares.any())
    newest = torch.cat([roles[name].slices[0].parameters for name in ("server", "server1")])
    flat = workers[1].algorithm.optimizer.flat  # the last to push holds the newest parameters
    assert torch.equal(flat.detach(), newest)
    host.close()


def test_a3c_with_one_worker_is_a2c():
    config = PPOConfig(rollout_length=10, hidden=(8,), lr=0.01, eps=1e-3, optimizer="rmsprop_tf", **A2C)
    rmsprop = SharedRMSPropConfig(0.01, eps=1e-3, initial_accumulator_value=1.0)
    a2c = Host(OnPolicy().program(config, ENVS["countdown"], SETTINGS), 3).roles["trainer"]
    a3c = Host(A3C(1, rmsprop=rmsprop).program(config, ENVS["countdown"], SETTINGS), 3).roles["worker0"]
    a3c.algorithm.policy.load_state_dict(a2c.algorithm.policy.state_dict())
    batches = []
    while len(batches) < 10:
        a2c.collector.send()
        batches += a2c.collector.recv()[0]
    before = [x.detach().clone() for x in a2c.algorithm.policy.parameters()]
    for batch in batches:
        for trainer in (a2c, a3c):
            trainer.algorithm.update(batch)
        parameters = (trainer.algorithm.policy.parameters() for trainer in (a2c, a3c))
        assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(*parameters, strict=True))
    after = list(a2c.algorithm.policy.parameters())
    assert any((x - y).abs().max() > 1e-5 for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("core", ["none", "gru"])
def test_new_episodes_of_a_resumed_run_are_not_joined_to_the_old_ones(core):
    config = PPOConfig(rollout_length=10, minibatches=2, hidden=(8, 8), core=core, core_size=6)
    program = OnPolicy(recreate_every=0).program(config, Toy("PointMass", 4, limit=50), SETTINGS)
    host = Host(program, 3)
    step_rounds(host, 37)  # in the middle of the fourth trajectory
    saved = copy.deepcopy(host.state_dict())
    host.close()
    resumed = Host(program, 3)
    resumed.load_state_dict(saved)
    trainer, kept = resumed.roles["trainer"], []
    trainer.algorithm.update = lambda batch: kept.append(batch) or UpdateResult({})
    while not kept:
        step_rounds(resumed, 1)
    resumed.close()
    batch, policy = kept[0], trainer.algorithm.policy
    assert batch.valid.any() and (batch.extras["version"][batch.valid] == 3).all()
    starts = batch.started[1:] & ~batch.ended  # a start that does not follow an end
    assert not starts.any()
    outputs, _, _ = evaluate_trajectory(policy, batch)
    log_prob = policy.distribution.log_prob(outputs, batch.action.flatten(0, 1))
    rows = batch.valid.flatten()
    assert torch.allclose(log_prob[rows], batch.extras["log_prob"].flatten()[rows], atol=1e-5)
    jumps = (batch.obs["obs"][1:] - batch.obs["obs"][:-1]).abs().amax(-1) > 0.5  # a step is at most 0.1
    assert not (jumps & ~batch.ended).any()


@pytest.mark.parametrize(
    "envs, limit, recreate_every, interval",
    [(4, 10, 5000, 5000), (4, 4000, 5000, 8002), (4, 10, 0, 0), (2**16, 10, 5000, 0), (2**16, 10, 900, 900)],
)
def test_envs_are_recreated_after_complete_episodes_or_never(envs, limit, recreate_every, interval):
    spec = Toy("Clock", envs, limit=limit).spec
    assert OnPolicy(recreate_every=recreate_every).recreate_interval(spec) == interval


def test_episodes_longer_than_the_interval_of_recreation_are_completed():
    env = Toy("Clock", 4, limit=30)
    program = OnPolicy(recreate_every=20).program(ALGORITHMS["ppo"], env, SETTINGS)
    host = Host(program, 3)
    lengths, trainer = [], host.roles["trainer"]
    on_step, current = trainer.recorder.on_step, torch.zeros(4)

    def count(step):
        current.add_(step.valid)
        ended = step.terminated | step.truncated
        lengths.extend(current[ended].tolist())
        current.masked_fill_(ended, 0)
        return on_step(step)

    trainer.recorder.on_step = count
    step_rounds(host, 62)
    host.close()
    assert lengths.count(30.0) >= 4  # each env, after its first episode, which was truncated early


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_rollout_has_the_version_of_the_policy_that_made_it(system):
    host, name = host_of(system, "lstm", "clock"), "trainer" if system == "on-policy" else "worker1"
    trainer, versions = host.roles[name], []
    update = trainer.algorithm.update

    def keep(batch):
        versions.append(batch.extras["version"][batch.valid].unique().tolist())
        return update(batch)

    trainer.algorithm.update = keep
    step_rounds(host, 47)
    resumed = host_of(system, "lstm", "clock")
    resumed.load_state_dict(copy.deepcopy(host.state_dict()))
    assert resumed.roles[name].collector.version == 4
    host.close()
    resumed.close()
    assert versions == [[0], [1], [2], [3]]


@pytest.mark.parametrize("algorithm", ["ppo", "lstm"])
def test_evaluation_uses_the_statistics_of_training_and_does_not_change_them(algorithm):
    evaluation = Evaluation(episodes=5, env_steps=10**9, max_episode_steps=30)
    settings = RunSettings(3, "cpu", evaluation)
    host = Host(SYSTEMS["on-policy"].program(ALGORITHMS[algorithm], ENVS["privileged"], settings), 3)
    step_rounds(host, 20)
    trainer, evaluator = host.roles["trainer"], host.roles["evaluator"]
    policies = trainer.algorithm.policy, evaluator.policy
    assert policies[0].normalizer is not policies[1].normalizer
    before = copy.deepcopy(policies[0].state_dict())
    first = evaluator.step()
    for policy in policies:
        check_equal(policy.state_dict(), before)
    assert float(policies[1].normalizer.count) > 0
    evaluator.version = -1
    assert evaluator.step() == first
    host.close()
