import copy
import dataclasses
import inspect
import itertools
import json
import math

import pytest
import torch
from counting_learners import CountingConfig
from recording_observer import RecordingObserver
from small_systems import (
    CLOCK,
    SETTINGS,
    SMALL_PQL,
    differing_paths,
    exploration_values,
    inline_host,
    step_rounds,
)

import troop
from troop import api
from troop.algorithms import DQNConfig, TD3Config
from troop.core.batch import TrajectorySpec
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.core.exploration import PerEpisodeUniform
from troop.core.program import construct
from troop.engines import Processes
from troop.envs import Toy
from troop.replay.prioritized import PrioritizedReplay, PriorityConfig
from troop.roles.replay_sender import MAX_IN_FLIGHT
from troop.systems.pql import mixed_exploration


def make_host(system=SMALL_PQL, algorithm=None, env=CLOCK):
    return inline_host(system, algorithm or CountingConfig(), env)


def read_counts(host):
    """Return vector steps since the warm-up, critic updates and policy updates."""
    critic, policy = (host.roles[name].gauges() for name in ("transitions", "observations"))
    assert critic["critic/steps"] == policy["policy/steps"]
    return critic["critic/steps"], critic["critic/updates"], policy["policy/updates"]


def test_mixed_exploration_has_the_values_of_the_paper():
    noise = PerEpisodeUniform(0.05, 0.8)
    hundred = mixed_exploration(noise, 100)
    assert (hundred[0], round(hundred[49], 4), hundred[-1]) == (0.05, 0.4212, 0.8)
    assert all(low < high for low, high in itertools.pairwise(hundred))
    assert mixed_exploration(noise, 1) == (0.8,) and mixed_exploration(noise, 2) == (0.05, 0.8)
    assert mixed_exploration(PerEpisodeUniform(0.3, 0.3), 5) == (0.3,) * 5


@pytest.mark.parametrize("overlap", [False, True])
def test_each_env_keeps_its_noise_over_episodes_and_restarts(overlap):
    system = dataclasses.replace(SMALL_PQL, overlap=overlap)
    env = Toy("Clock", 4, limit=5)
    host = make_host(system, env=env)
    expected = torch.tensor(mixed_exploration(PerEpisodeUniform(0.05, 0.8), 4))
    assert torch.equal(exploration_values(host.roles["actor"]), expected)
    step_rounds(host, 100)  # many episodes
    assert host.roles["actor"].env_steps > 40
    assert torch.equal(exploration_values(host.roles["actor"]), expected)
    node = system.program(CountingConfig(), env, SETTINGS).nodes["actor"]
    host.roles["actor"] = construct(node.build, host.roles.__getitem__)
    explore = exploration_values(host.roles["actor"])
    assert torch.equal(explore, expected)
    assert torch.allclose((torch.randn(20_000, 4) * explore).std(0), expected, rtol=0.05)


@pytest.mark.parametrize(
    "beta_av, beta_pv", [(4.0, 1.0), (4.0, 4.0), (8.0, 0.5), (8.0, 2.0), (16.0, 1.0), (16.0, 4.0)]
)
def test_ratios_are_kept_over_every_hundred_vector_steps(beta_av, beta_pv):
    host = make_host(dataclasses.replace(SMALL_PQL, beta_av=beta_av, beta_pv=beta_pv, replay_capacity=40_000))
    updates = {}  # critic and policy updates by vector step
    while len(updates) < 125:
        host.step_all()
        steps, critic, policy = read_counts(host)
        updates[steps] = (critic, policy)
    for start in range(1, 20):
        (critic_start, policy_start), (critic_end, policy_end) = updates[start], updates[start + 100]
        critic, policy = critic_end - critic_start, policy_end - policy_start
        assert critic / 100 == pytest.approx(beta_av, rel=0.1)
        assert critic / policy == pytest.approx(beta_pv, rel=0.1)


SLOWDOWNS = {"none": {}, "actor": {"actor": 30}, "critic": {"critic": 3}, "policy": {"policy": 9}}


@pytest.mark.parametrize("slow", SLOWDOWNS)
def test_other_roles_wait_for_the_slowest_one(slow):
    host = make_host(dataclasses.replace(SMALL_PQL, replay_capacity=40_000))
    for name, period in SLOWDOWNS[slow].items():
        role, calls = host.roles[name], itertools.count()
        role.step = lambda step=role.step, calls=calls, period=period: (
            None if next(calls) % period else step()
        )
    while read_counts(host)[0] < 100:
        host.step_all()
    steps, critic, policy = read_counts(host)
    assert abs(critic - 8 * steps) <= 8 * 3 and abs(policy - 4 * steps) <= 4 * 3  # tolerance and one chunk
    assert len(host.roles["transitions"].replay) == len(host.roles["observations"].replay)


@pytest.mark.parametrize("paused", ["critic", "policy"])
def test_all_roles_stop_within_the_tolerance_while_a_learner_is_paused_and_then_continue(paused):
    host = make_host()
    step_rounds(host, 200)
    step, host.roles[paused].step = host.roles[paused].step, lambda: None
    before = read_counts(host)
    active_roles = [len(host.step_all()) for _ in range(200)]
    after = read_counts(host)
    assert active_roles[0] > 0 and active_roles[-1] == 0
    assert 0 <= after[0] - before[0] <= 2 * SMALL_PQL.tolerance + 1
    other = 1 if paused == "policy" else 2
    assert 0 < after[other] - before[other] <= (4 * SMALL_PQL.tolerance + 2) * (8 if other == 1 else 4)
    host.roles[paused].step = step
    step_rounds(host, 200)
    assert read_counts(host)[0] > after[0] + 10


def test_no_role_waits_when_free_running():
    host = make_host(dataclasses.replace(SMALL_PQL, free_running=True, beta_av=100.0))
    while read_counts(host)[0] == 0:
        host.step_all()
    assert all(len(host.step_all()) == 3 for _ in range(100))
    steps, critic, policy = read_counts(host)
    assert steps > 50 and abs(critic - steps) <= 2 and abs(policy - steps) <= 2
    assert host.gauges()["critic/updates_per_step_target"] == 0


def test_critics_sample_by_priority_and_return_their_errors():
    system = dataclasses.replace(SMALL_PQL, priority=PriorityConfig(alpha=0.6))
    config = TD3Config(critic_hidden=(8,), actor_hidden=(8,), atoms=11, v_min=-5, v_max=5)
    host = make_host(system, config, Toy("PointMass", 2, limit=7))
    replay = host.roles["transitions"].replay
    assert isinstance(replay, PrioritizedReplay)
    batches, sample = [], replay.sample
    replay.sample = lambda rows: batches.append(sample(rows)) or batches[-1]
    step_rounds(host, 60)
    assert any(batch is not None and batch.weight.std() > 0 for batch in batches[5:])


def test_each_learner_lags_by_at_most_one_publication_of_the_other():
    host = make_host(dataclasses.replace(SMALL_PQL, publish_every=2.0))
    metrics = step_rounds(host, 400)
    critic, policy = (host.roles[name].algorithm for name in ("critic", "policy"))
    for learner, peer, publish_every in ((critic, policy, 8), (policy, critic, 16)):
        versions = learner.peer_versions
        assert versions == sorted(versions) and len(set(versions)) > 5
        assert all(version % publish_every == 0 for version in versions)
        assert int(peer.module.updates) - versions[-1] <= 2 * publish_every
    lags = {
        name: {float(step[name]) for step in metrics if name in step}
        for name in ("critic/policy_lag", "policy/critic_lag", "policy/lag")
    }
    assert lags == {"critic/policy_lag": {8.0}, "policy/critic_lag": {16.0}, "policy/lag": {8.0}}
    gauges = host.gauges()
    assert (gauges["critic/policy_lag_max"], gauges["policy/critic_lag_max"]) == (8, 16)
    versions = (host.roles["critics"].version, host.roles["policies"].version)
    assert (gauges["critic/version"], gauges["policy/version"]) == versions


def test_updates_of_the_run_are_those_of_the_critics():
    metrics = step_rounds(make_host(), 300)
    critic, policy = (
        sum(step.get(f"count/{name}", 0) for step in metrics) for name in ("updates", "policy_updates")
    )
    assert critic == sum("loss/critic" in step for step in metrics) > 100
    assert policy == sum("loss/policy" in step for step in metrics) > 50


def test_checkpoint_has_the_policy_and_not_the_critics():
    host = make_host()
    for _ in range(3):  # the first checkpoint is made before anything is published
        learned, critic = (host.roles[name].algorithm.module for name in ("policy", "critic"))
        assert torch.equal(host.policy()["identity"], learned.identity)
        assert not torch.equal(host.policy()["identity"], critic.identity)
        host.roles["critic"].step()
    hosts = list(SMALL_PQL.program(CountingConfig(), CLOCK, SETTINGS).hosts())
    assert hosts[:3] == ["weights", "policy", "critic"]  # engines ask hosts for the policy in this order


# Defects of the reference code: it treats time limits as terminations, computes n-step returns with another
# gamma, and mixes up episode ends.


def sampled_transitions(env, rounds=150, **algorithm):
    """Return observations, rewards, discounts and next observations of the critic's last batches."""
    host = make_host(SMALL_PQL, CountingConfig(**algorithm), env)
    step_rounds(host, rounds)
    batches = host.roles["critic"].algorithm.batches
    obs, next_obs = (
        torch.cat([getattr(b, name)["obs"][:, 0] for b in batches]) for name in ("obs", "next_obs")
    )
    return obs, torch.cat([b.reward for b in batches]), torch.cat([b.discount for b in batches]), next_obs


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("n, gamma", [(1, 0.9), (3, 0.7), (5, 0.95)])
@pytest.mark.reliability("N5")
def test_time_limits_bootstrap_from_the_final_observation_with_the_configured_gamma(autoreset, n, gamma):
    env = Toy("Clock", 4, limit=7, autoreset=autoreset)
    obs, reward, discount, next_obs = sampled_transitions(env, n=n, gamma=gamma)
    step, next_step = (obs * 7).round(), (next_obs * 7).round()
    length = torch.minimum(torch.full_like(step, n), 7 - step)
    assert torch.equal(next_step, step + length) and next_step.max() == 7  # windows stay in their episode
    assert torch.allclose(discount, gamma**length)
    assert torch.allclose(reward, sum(torch.where(length > i, gamma**i, 0.0) for i in range(n)))


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_terminations_do_not_bootstrap(autoreset):
    env = Toy("Countdown", 4, limit=7, autoreset=autoreset)
    obs, reward, discount, next_obs = sampled_transitions(env, n=3, gamma=0.7)
    remaining = (obs * 7).round()
    terminal = remaining <= 3
    assert 0.2 < terminal.float().mean() < 0.9
    assert (discount[terminal] == 0).all() and torch.allclose(discount[~terminal], torch.tensor(0.7**3))
    assert torch.equal((next_obs * 7).round()[~terminal], remaining[~terminal] - 3)
    length = remaining.clamp(max=3)
    assert torch.allclose(reward, (1 - 0.7**length) / (1 - 0.7))


def test_time_limit_is_a_termination_without_bootstrap_on_truncation():
    obs, _, discount, _ = sampled_transitions(Toy("Clock", 4, limit=7), n=1, bootstrap_on_truncation=False)
    assert torch.equal(discount == 0, (obs * 7).round() == 6)


def test_policy_learns_only_from_observations_that_were_acted_on():
    host = make_host(env=Toy("Clock", 4, limit=7, autoreset="next_step"))
    step_rounds(host, 200)
    batches = host.roles["policy"].algorithm.batches
    assert batches[-1].next_obs == {} and not batches[-1].action.numel()
    steps = torch.cat([b.obs["obs"] for b in batches]) * 7
    assert set(steps.round().flatten().tolist()) == set(range(7))  # 7 is the final observation
    observations = host.roles["observations"].replay
    inserted = host.roles["transitions"].limiter.inserted
    assert (len(observations), observations.rows_written) == (inserted, inserted)


def test_actor_and_learners_normalize_observations_alike():
    """The reference clamps normalized observations in two of the three roles."""
    algorithm = TD3Config(actor_hidden=(8,), critic_hidden=(8,), atoms=0)
    system = dataclasses.replace(SMALL_PQL, publish_every=0.1)
    host = make_host(system, algorithm, Toy("PointMass", 4, limit=9))
    step_rounds(host, 130)
    for name in ("actor", "critic"):  # load the newest policy
        host.roles[name].step()
    learned = host.roles["policy"].algorithm.module
    assert float(learned.normalizer.count) > 500 and not torch.equal(learned.normalizer.mean, torch.zeros(2))
    x = {"obs": torch.randn(50, 2) * 10.0 ** torch.arange(-2, 3).repeat(10).unsqueeze(1)}  # outliers too
    explore = torch.zeros(50)
    for copied in (host.roles["actor"].sampler.policy, host.roles["critic"].algorithm.peer_module):
        assert torch.equal(copied.normalizer(x["obs"]), learned.normalizer(x["obs"]))
        assert torch.equal(copied.act(x, None, explore).action, learned.act(x, None, explore).action)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"learning_starts": 3}, "--system.learning-starts is 3; it must be above --algorithm.n-step, 3"),
        ({"replay_capacity": 39}, "--system.replay-capacity is 39; with 4 envs it must be at least 40"),
        ({"devices": "critic=cuda:7"}, "--system.devices for critic is 'cuda:7' but torch sees"),
        ({"devices": "learner=cpu"}, "--system.devices lists 'learner'"),
    ],
)
def test_contradictory_settings_raise_before_anything_starts(changes, message):
    with pytest.raises(BadInput, match=message):
        dataclasses.replace(SMALL_PQL, **changes).program(CountingConfig(), CLOCK, SETTINGS)


def test_unsplittable_algorithms_and_discrete_envs_are_rejected():
    class TrajectoryCountingConfig(CountingConfig):
        experience = TrajectorySpec(8)

    discrete = Toy("Clock", 2, discrete=True)
    for algorithm, env, message in (
        (DQNConfig(), discrete, "DQNConfig cannot be split; use TD3Config, SACConfig or"),
        (CountingConfig(), discrete, "toy:Clock has discrete actions; PQL needs continuous ones"),
        (CountingConfig(unsplittable="beta cannot be split"), CLOCK, r"^beta cannot be split\.$"),
        (TrajectoryCountingConfig(), CLOCK, "learns from trajectories, but the pql system"),
    ):
        with pytest.raises(BadInput, match=message):
            SMALL_PQL.program(algorithm, env, SETTINGS)


def test_roles_compute_on_their_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    settings = dataclasses.replace(SETTINGS, device="cuda:0")
    assert SMALL_PQL.role_devices(settings) == {"actor": "cpu", "critic": "cuda:0", "policy": "cuda:0"}
    system = dataclasses.replace(SMALL_PQL, devices="actor=cuda:0,critic=cuda:1")
    nodes = system.program(CountingConfig(), CLOCK, SETTINGS).nodes

    def argument(node, name):
        build = nodes[node].build
        return inspect.signature(build.make).bind(*build.args, **build.kwargs).arguments[name]

    devices = [argument(node, "device") for node in ("transitions", "critic", "observations", "policy")]
    assert devices == ["cuda:1", "cuda:1", "cpu", "cpu"]
    assert argument("critic", "algorithm").args[3] == argument("transitions", "replay").args[5] == "cuda:1"
    assert argument("actor", "sampler").args[2].device == "cuda:0"


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("free_running", [False, True])
@pytest.mark.reliability("R2")
def test_resumed_run_is_bit_equal_to_an_uninterrupted_one(autoreset, free_running):
    env = Toy("PointMass", 3, limit=7, autoreset=autoreset)
    system = dataclasses.replace(
        SMALL_PQL,
        recreate_every=20,
        free_running=free_running,
        replay_capacity=90,
        observation_capacity=70,
    )
    uninterrupted, first, second = (make_host(system, env=env) for _ in range(3))

    def losses(host, rounds):
        metrics = step_rounds(host, rounds)
        return [float(x) for step in metrics for name, x in step.items() if name.startswith("loss/")]

    torch.manual_seed(1)
    expected = losses(uninterrupted, 260)
    torch.manual_seed(1)
    losses_before = losses(first, 130)
    state = copy.deepcopy(first.state_dict())
    torch.manual_seed(12345)
    second.load_state_dict(state)
    assert second.notes() == []
    assert losses_before + losses(second, 130) == expected and len(expected) > 200
    assert differing_paths(uninterrupted.state_dict(), second.state_dict()) == []


@pytest.mark.reliability("R5")
def test_resumed_run_without_saved_replays_warms_up_again():
    system = dataclasses.replace(SMALL_PQL, save_replay=False)
    first, second = make_host(system), make_host(system)
    step_rounds(first, 100)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert len(second.notes()) == 2 and read_counts(second) == (0, 0, 0)
    step_rounds(second, 100)
    assert second.roles["critic"].updates > first.roles["critic"].updates


def test_run_directory_has_the_ratios_and_a_policy_that_acts(tmp_path):
    run = tmp_path / "run"
    fields = {
        "algorithm__actor_hidden": (16,),
        "algorithm__critic_hidden": (16,),
        "system__batch_size": 32,
        "engine__threads": 1,
    }
    troop.train(
        "pql", "toy:PointMass", envs=8, engine="inline", env_steps=1200, run=run, quiet=True, **fields
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    newest = {name: value for line in lines for name, value in line.items()}
    system = api.make_experiment("pql", "toy:PointMass").system
    for name in ("beta_av", "beta_pv"):
        target = getattr(system, name)
        assert newest[f"ratio/{name}_target"] == target
        assert newest[f"ratio/{name}"] == pytest.approx(target, rel=0.05)
    assert newest["updates"] == newest["critic/updates"]
    action = troop.load_policy(run)(torch.zeros(3, 2))
    assert action.shape == (3, 1) and action.abs().max() <= 1


def test_slow_policy_learner_in_processes_limits_the_others_and_queues_stay_short():
    system = dataclasses.replace(SMALL_PQL, replay_capacity=400_000)
    observer = RecordingObserver()
    program = system.program(CountingConfig(critic_s=0.0005, policy_s=0.004), CLOCK, SETTINGS)
    result = Processes(threads=1, log_s=0.2).run(program, Until(env_steps=1000), 3, observer)
    assert result.status == "done" and result.counters.restarts == 0 and observer.evaluations
    state = observer.state
    rows = state["transitions.inserted"]
    assert rows == state["observations.inserted"] == result.counters.env_steps
    steps = rows / 4 - system.learning_starts
    critic, policy = (state[f"{name}.sampled"] / 16 for name in ("transitions", "observations"))
    assert critic == result.counters.updates == state["critic.counts"]["updates"]
    slack = system.tolerance + MAX_IN_FLIGHT + 2  # chunks sent before the reply arrived
    assert abs(critic - 8 * steps) <= 8 * slack and abs(policy - 4 * steps) <= 4 * slack
    longest_queue = max(
        line.get(f"role/{name}/queue", 0) for line in observer.lines for name in ("policy", "critic")
    )
    assert longest_queue <= 4 * (MAX_IN_FLIGHT + 2)
    line = observer.lines[-1]
    assert line["critic/updates"] / line["critic/steps"] == pytest.approx(8, rel=0.1)
    for name in ("critic/policy_lag", "policy/critic_lag", "policy/lag"):
        assert all(math.isfinite(line[name]) for line in observer.lines if name in line)
        assert any(name in line for line in observer.lines)
