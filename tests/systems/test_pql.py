import copy
import dataclasses
import inspect
import itertools
import json
import math

import pytest
import torch
from split import Split
from test_apex import leaves
from watching import RunObserver

import troop
from troop import api
from troop.algorithms.dqn import DQNConfig
from troop.algorithms.td3 import TD3Config
from troop.core.batch import TrajectorySpec
from troop.core.engine import Until
from troop.core.errors import BadInput
from troop.core.program import construct
from troop.engines import Processes
from troop.engines.host import Host
from troop.envs import Toy
from troop.roles.replay_sender import MAX_IN_FLIGHT
from troop.systems.pql import PQL, mixed
from troop.systems.settings import Evaluation, RunSettings

SETTING = RunSettings(3, "cpu", Evaluation(episodes=2, env_steps=10**9))
SMALL = PQL(batch_size=16, replay_capacity=4000, learning_starts=8)
CLOCK = Toy("Clock", 4, limit=100_000)  # its observation counts its steps


def host(system=SMALL, algorithm=None, env=CLOCK, setting=SETTING):
    return Host(system.program(algorithm or Split(), env, setting), 3)


def rounds(running, count):
    return [metrics for _ in range(count) for metrics in running.round()]


def counts(running):
    """Vector steps since the warm-up, critic updates, policy updates."""
    stores = [running.roles[name] for name in ("transitions", "observations")]
    read = [store.gauges() for store in stores]
    assert read[0]["critic/steps"] == read[1]["policy/steps"]
    return read[0]["critic/steps"], read[0]["critic/updates"], read[1]["policy/updates"]


def test_mixed_noise_has_the_papers_numbers():
    hundred = mixed(100, 0.05, 0.8)
    assert (hundred[0], round(hundred[49], 4), hundred[-1]) == (0.05, 0.4212, 0.8)
    assert all(low < high for low, high in itertools.pairwise(hundred))
    assert mixed(1, 0.05, 0.8) == (0.8,) and mixed(2, 0.05, 0.8) == (0.05, 0.8)
    assert mixed(5, 0.3, 0.3) == (0.3,) * 5  # a constant is a ladder without rungs


@pytest.mark.parametrize("overlap", [False, True])
def test_each_env_has_its_noise_for_good_also_in_another_life(overlap):
    system = dataclasses.replace(SMALL, overlap=overlap)
    env = Toy("Clock", 4, limit=5)
    running = host(system, env=env)
    wanted = torch.tensor(mixed(4, 0.05, 0.8))

    def explored():
        return torch.cat([collector.explore for collector in running.roles["actor"].sampler.collectors])

    assert torch.equal(explored(), wanted)
    rounds(running, 100)  # many episodes later
    assert running.roles["actor"].env_steps > 40 and torch.equal(explored(), wanted)
    node = system.program(Split(), env, SETTING).nodes["actor"]
    running.roles["actor"] = construct(node.build, running.roles.__getitem__)
    assert torch.equal(explored(), wanted)
    deviations = torch.randn(20_000, 4) * explored()
    assert torch.allclose(deviations.std(0), wanted, rtol=0.05)


@pytest.mark.parametrize(
    "beta_av, beta_pv", [(4.0, 1.0), (4.0, 4.0), (8.0, 0.5), (8.0, 2.0), (16.0, 1.0), (16.0, 4.0)]
)
def test_ratios_are_held_in_every_hundred_vector_steps(beta_av, beta_pv):
    running = host(dataclasses.replace(SMALL, beta_av=beta_av, beta_pv=beta_pv, replay_capacity=40_000))
    readings = {}
    while len(readings) < 125:
        running.round()
        steps, critic, policy = counts(running)
        readings[steps] = (critic, policy)
    for begun in range(1, 20):
        (critic, policy), (later_critic, later_policy) = readings[begun], readings[begun + 100]
        critic, policy = later_critic - critic, later_policy - policy
        assert critic / 100 == pytest.approx(beta_av, rel=0.1)
        assert critic / policy == pytest.approx(beta_pv, rel=0.1)


SLOWED = {"nobody": {}, "actor": {"actor": 30}, "critic": {"critic": 3}, "policy": {"policy": 9}}


@pytest.mark.parametrize("slow", SLOWED)
def test_whoever_is_slow_the_others_wait_for_him(slow):
    running = host(dataclasses.replace(SMALL, replay_capacity=40_000))
    for name, times in SLOWED[slow].items():
        role, turns = running.roles[name], itertools.count()
        role.step = lambda step=role.step, turns=turns, times=times: None if next(turns) % times else step()
    while counts(running)[0] < 100:
        running.round()
    steps, critic, policy = counts(running)
    assert abs(critic - 8 * steps) <= 8 * 3 and abs(policy - 4 * steps) <= 4 * 3  # slack, and a piece
    assert len(running.roles["transitions"].store) == len(running.roles["observations"].store)


@pytest.mark.parametrize("paused", ["critic", "policy"])
def test_with_a_learner_paused_all_stop_within_the_slack_and_go_on_after(paused):
    running = host()
    rounds(running, 200)
    step, running.roles[paused].step = running.roles[paused].step, lambda: None
    before = counts(running)
    moved = [len(running.round()) for _ in range(200)]
    after = counts(running)
    assert moved[0] > 0 and moved[-1] == 0
    assert 0 <= after[0] - before[0] <= 2 * SMALL.tolerance + 1
    other = 1 if paused == "policy" else 2
    assert 0 < after[other] - before[other] <= (4 * SMALL.tolerance + 2) * (8 if other == 1 else 4)
    running.roles[paused].step = step
    rounds(running, 200)
    assert counts(running)[0] > after[0] + 10


def test_running_free_nobody_waits():
    running = host(dataclasses.replace(SMALL, free_running=True, beta_av=100.0))
    while counts(running)[0] == 0:
        running.round()
    assert all(len(running.round()) == 3 for _ in range(100))
    steps, critic, policy = counts(running)
    assert steps > 50 and abs(critic - steps) <= 2 and abs(policy - steps) <= 2
    assert running.gauges()["critic/updates_per_step_wanted"] == 0


def test_each_learner_follows_the_other_and_lags_by_one_publication_at_most():
    running = host(dataclasses.replace(SMALL, publish_every=2.0))
    said = rounds(running, 400)
    critic, policy = (running.roles[name].algorithm for name in ("critic", "policy"))
    for half, other, every in ((critic, policy, 8), (policy, critic, 16)):
        assert half.followed == sorted(half.followed) and len(set(half.followed)) > 5
        assert all(version % every == 0 for version in half.followed)
        assert int(other.module.updates) - half.followed[-1] <= 2 * every
    lags = {
        name: {float(step[name]) for step in said if name in step}
        for name in ("critic/policy_lag", "policy/critic_lag", "policy/lag")
    }
    assert lags == {"critic/policy_lag": {8.0}, "policy/critic_lag": {16.0}, "policy/lag": {8.0}}
    read = running.gauges()
    assert (read["critic/policy_lag_max"], read["policy/critic_lag_max"]) == (8, 16)
    assert (read["critic/version"], read["policy/version"]) == (
        running.roles["critics"].version, running.roles["policies"].version,
    )  # fmt: skip


def test_updates_of_the_run_are_those_of_the_critics():
    said = rounds(host(), 300)
    critic, policy = (
        sum(step.get(f"count/{name}", 0) for step in said) for name in ("updates", "policy_updates")
    )
    assert critic == sum("loss/critic" in step for step in said) > 100
    assert policy == sum("loss/policy" in step for step in said) > 50


def test_only_the_policy_is_taken_for_a_policy():
    running = host()
    for _ in range(3):  # the first checkpoint is made before anything was published
        assert torch.equal(running.policy()["drawn"], running.roles["policy"].algorithm.module.drawn)
        assert not torch.equal(running.policy()["drawn"], running.roles["critic"].algorithm.module.drawn)
        running.roles["critic"].step()
    hosts = list(SMALL.program(Split(), CLOCK, SETTING).hosts())
    assert hosts[:3] == ["weights", "policy", "critic"]  # engines ask in this order


# The reference's defects: time-outs taken for ends, n-step sums with a gamma of their own, ends mixed up.


def batches(env, rounds_=150, **algorithm):
    running = host(SMALL, Split(**algorithm), env)
    rounds(running, rounds_)
    found = running.roles["critic"].algorithm.batches
    obs, after = (torch.cat([getattr(b, name)["obs"][:, 0] for b in found]) for name in ("obs", "next_obs"))
    return obs, torch.cat([b.reward for b in found]), torch.cat([b.discount for b in found]), after


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("n, gamma", [(1, 0.9), (3, 0.7), (5, 0.95)])
def test_time_outs_bootstrap_from_the_last_observation_with_the_gamma_that_was_set(autoreset, n, gamma):
    obs, reward, discount, after = batches(Toy("Clock", 4, limit=7, autoreset=autoreset), n=n, gamma=gamma)
    step, limit = (obs * 7).round(), (after * 7).round()
    taken = torch.minimum(torch.full_like(step, n), 7 - step)
    assert torch.equal(limit, step + taken) and limit.max() == 7  # never of another episode
    assert torch.allclose(discount, gamma**taken)  # nothing ends
    assert torch.allclose(reward, sum(torch.where(taken > i, gamma**i, 0.0) for i in range(n)))


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_ends_do_not_bootstrap(autoreset):
    env = Toy("Countdown", 4, limit=7, autoreset=autoreset)
    obs, reward, discount, after = batches(env, n=3, gamma=0.7)
    left = (obs * 7).round()
    ends = left <= 3
    assert 0.2 < ends.float().mean() < 0.9
    assert (discount[ends] == 0).all() and torch.allclose(discount[~ends], torch.tensor(0.7**3))
    assert torch.equal((after * 7).round()[~ends], left[~ends] - 3)
    taken = left.clamp(max=3)
    assert torch.allclose(reward, (1 - 0.7**taken) / (1 - 0.7))


def test_a_limit_that_is_part_of_the_task_is_an_end_if_that_is_asked_for():
    obs, _, discount, _ = batches(Toy("Clock", 4, limit=7), n=1, bootstrap_on_truncation=False)
    assert torch.equal(discount == 0, (obs * 7).round() == 6)


def test_the_policy_learns_from_observations_that_were_acted_on_and_from_nothing_else():
    running = host(env=Toy("Clock", 4, limit=7, autoreset="next_step"))
    rounds(running, 200)
    batch = running.roles["policy"].algorithm.batches[-1]
    assert batch.next_obs == {} and not batch.action.numel()
    drawn = torch.cat([b.obs["obs"] for b in running.roles["policy"].algorithm.batches]) * 7
    assert set(drawn.round().flatten().tolist()) == set(range(7))  # 7 is where an episode ended
    stored = running.roles["observations"].store
    assert (len(stored), stored.written) == (running.roles["transitions"].limiter.inserted,) * 2


def test_all_three_see_an_observation_as_the_same_version_of_the_policy_does():
    """The reference clamps normalized observations in two of the three."""
    algorithm = TD3Config(actor_hidden=(8,), critic_hidden=(8,), atoms=0)
    running = host(dataclasses.replace(SMALL, publish_every=0.1), algorithm, Toy("PointMass", 4, limit=9))
    rounds(running, 130)
    for name in ("actor", "critic"):  # both take the newest
        running.roles[name].step()
    learned = running.roles["policy"].algorithm.module
    assert float(learned.normalizer.count) > 500 and not torch.equal(learned.normalizer.mean, torch.zeros(2))
    x = {"obs": torch.randn(50, 2) * 10.0 ** torch.arange(-2, 3).repeat(10).unsqueeze(1)}  # far out too
    acting, judging = running.roles["actor"].sampler.policy, running.roles["critic"].algorithm.peer_module
    for other in (acting, judging):
        assert torch.equal(other.normalizer(x["obs"]), learned.normalizer(x["obs"]))
        still = torch.zeros(50)
        assert torch.equal(other.act(x, None, still).action, learned.act(x, None, still).action)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"learning_starts": 3}, "--system.learning-starts is 3; it must be above the 3 steps"),
        ({"replay_capacity": 39}, "--system.replay-capacity is 39; with 4 env streams it must be at least 40"),
        ({"devices": "critic=cuda:7"}, "--system.devices for critic is 'cuda:7' but torch sees"),
        ({"devices": "learner=cpu"}, "--system.devices names 'learner'"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_starts(changes, said):
    with pytest.raises(BadInput, match=said):
        dataclasses.replace(SMALL, **changes).program(Split(), CLOCK, SETTING)


def test_algorithms_and_envs_that_cannot_be_split_are_refused():
    with pytest.raises(BadInput, match="DQNConfig cannot be split; use FastTD3"):
        SMALL.program(DQNConfig(), Toy("Clock", 2, discrete=True), SETTING)
    with pytest.raises(BadInput, match="toy:Clock has discrete actions; PQL takes continuous"):
        SMALL.program(Split(), Toy("Clock", 2, discrete=True), SETTING)
    with pytest.raises(BadInput, match=r"^telling cannot be split\.$"):
        SMALL.program(Split(refused="telling cannot be split"), CLOCK, SETTING)

    class Wants(Split):
        experience = TrajectorySpec(8)

    with pytest.raises(BadInput, match="Wants wants trajectories"):
        SMALL.program(Wants(), CLOCK, SETTING)


def test_roles_compute_where_they_are_told_to(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    one = dataclasses.replace(SETTING, device="cuda:0")  # acting is the CPU's, unless somebody says otherwise
    assert SMALL.parse_devices(one) == {"actor": "cpu", "critic": "cuda:0", "policy": "cuda:0"}
    system = dataclasses.replace(SMALL, devices="actor=cuda:0,critic=cuda:1")
    nodes = system.program(Split(), CLOCK, SETTING).nodes

    def told(node, name):
        made = nodes[node].build
        return inspect.signature(made.make).bind(*made.args, **made.kwargs).arguments[name]

    assert [told(node, "device") for node in ("transitions", "critic", "observations", "policy")] == [
        "cuda:1", "cuda:1", "cpu", "cpu",
    ]  # fmt: skip
    assert told("critic", "algorithm").args[3] == told("transitions", "store").args[4] == "cuda:1"
    assert told("actor", "sampler").args[2].device == "cuda:0"


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("free", [False, True])
def test_a_resumed_run_is_bit_equal_to_one_that_was_not_stopped(autoreset, free):
    env = Toy("PointMass", 3, limit=7, autoreset=autoreset)
    system = dataclasses.replace(
        SMALL, recreate_every=20, free_running=free, replay_capacity=90, observation_capacity=70
    )
    whole, first, second = (host(system, env=env) for _ in range(3))

    def losses(running, count):
        return [
            float(x)
            for step in rounds(running, count)
            for name, x in step.items()
            if name.startswith("loss/")
        ]

    torch.manual_seed(1)
    wanted = losses(whole, 260)
    torch.manual_seed(1)
    before = losses(first, 130)
    state = copy.deepcopy(first.state_dict())
    torch.manual_seed(12345)
    second.load_state_dict(state)
    assert second.notes() == []
    assert before + losses(second, 130) == wanted and len(wanted) > 200
    one, two = leaves(whole.state_dict()), leaves(second.state_dict())
    assert one.keys() == two.keys()
    for key, x in one.items():
        assert torch.equal(x, two[key]) if isinstance(x, torch.Tensor) else x == two[key], key


def test_without_saved_replays_a_resumed_run_warms_up_again():
    system = dataclasses.replace(SMALL, save_replay=False)
    first, second = host(system), host(system)
    rounds(first, 100)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert len(second.notes()) == 2 and counts(second) == (0, 0, 0)
    rounds(second, 100)
    assert second.roles["critic"].updates > first.roles["critic"].updates


def test_a_run_leaves_its_ratios_and_a_policy_that_acts(tmp_path):
    run = tmp_path / "run"
    small = {
        "algorithm__actor_hidden": (16,),
        "algorithm__critic_hidden": (16,),
        "system__batch_size": 32,
        "engine__threads": 1,
    }
    troop.train("pql", "toy:PointMass", envs=8, engine="inline", env_steps=1200, run=run, quiet=True, **small)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = {name: value for line in lines for name, value in line.items()}
    wanted = api.experiment("pql", "toy:PointMass").system
    assert last["ratio/beta_av_wanted"] == wanted.beta_av and last["ratio/beta_pv_wanted"] == wanted.beta_pv
    assert last["ratio/beta_av"] == pytest.approx(wanted.beta_av, rel=0.05)
    assert last["ratio/beta_pv"] == pytest.approx(wanted.beta_pv, rel=0.05)
    assert last["updates"] == last["critic/updates"]
    action = troop.load_policy(run)(torch.zeros(3, 2))
    assert action.shape == (3, 1) and action.abs().max() <= 1


def test_in_processes_a_slow_policy_learner_holds_the_others_and_nothing_piles_up():
    system = dataclasses.replace(SMALL, replay_capacity=400_000)
    watch = RunObserver()
    program = system.program(Split(critic_s=0.0005, policy_s=0.004), CLOCK, SETTING)
    result = Processes(threads=1, log_s=0.2).run(program, Until(env_steps=1000), 3, watch)
    assert result.status == "done" and result.counters.restarts == 0 and watch.evaluations
    rows = {name: watch.state[f"{name}.inserted"] for name in ("transitions", "observations")}
    assert rows["transitions"] == rows["observations"] == result.counters.env_steps
    steps = rows["transitions"] / 4 - system.learning_starts
    critic, policy = (watch.state[f"{name}.sampled"] / 16 for name in ("transitions", "observations"))
    assert critic == result.counters.updates == watch.state["critic.counts"]["updates"]
    slack = system.tolerance + MAX_IN_FLIGHT + 2  # what was sent before the answer came
    assert abs(critic - 8 * steps) <= 8 * slack and abs(policy - 4 * steps) <= 4 * slack
    waited = max(line.get(f"role/{name}/queue", 0) for line in watch.lines for name in ("policy", "critic"))
    assert waited <= 4 * (MAX_IN_FLIGHT + 2)
    lines = watch.lines[-1]
    assert lines["critic/updates"] / lines["critic/steps"] == pytest.approx(8, rel=0.1)
    for name in ("critic/policy_lag", "policy/critic_lag", "policy/lag"):
        assert all(math.isfinite(line[name]) for line in watch.lines if name in line)
        assert any(name in line for line in watch.lines)
