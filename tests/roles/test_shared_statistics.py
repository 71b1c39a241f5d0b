"""Statistics of observations and rewards that the learners of one run share through the parameter servers."""

import copy

import pytest
import torch
from fake_remote import FakeRemote
from torch import Tensor

from troop.algorithms import C51Config, DQNConfig, RainbowConfig, SACConfig, TD3Config
from troop.core.batch import NStep, Rollout, Transition
from troop.core.env import Continuous, Discrete, EnvSpec, Field
from troop.core.peers import Moments
from troop.replay.reward_scale import RewardScale
from troop.roles.parameter_server import AdaGradConfig, ParameterServer
from troop.roles.server_peers import OutlierConfig, ServerPeers

OBS = {"obs": Field((3,))}
ALGORITHMS = {
    "dqn": DQNConfig(hidden=(8,), normalize_observations=True),
    "c51": C51Config(hidden=(8,), normalize_observations=True),
    "rainbow": RainbowConfig(hidden=(8,), normalize_observations=True),
    "td3": TD3Config(actor_hidden=(8,), critic_hidden=(8,), atoms=0),
    "sac": SACConfig(actor_hidden=(8,), critic_hidden=(8,), atoms=0, normalize_observations=True),
}


def make_peers(server):
    return ServerPeers([server], OutlierConfig())


def moments(x):
    var, mean = torch.var_mean(x, 0, correction=0)
    return Moments(torch.tensor(float(len(x))), mean, var, x.abs().amax(0))


def make_batch(seed, discrete, shift):
    g = torch.Generator().manual_seed(seed)
    obs, next_obs = ({"obs": shift + torch.randn(16, 3, generator=g)} for _ in range(2))
    action = torch.randint(2, (16,), generator=g) if discrete else torch.rand(16, 2, generator=g)
    return Transition(obs, action, torch.zeros(16), torch.full((16,), 0.9), next_obs)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_normalizers_of_all_learners_hold_the_statistics_of_all_batches(name):
    discrete = name in ("dqn", "c51", "rainbow")
    spec = EnvSpec("x", OBS, Discrete(2) if discrete else Continuous(2), 1)
    server = ParameterServer(AdaGradConfig())
    learners = [ALGORITHMS[name].algorithm(spec, make_peers(server)) for _ in range(2)]
    batches = [make_batch(i, discrete, shift=10.0 * (i % 2)) for i in range(12)]
    for i, batch in enumerate(batches):
        learners[i % 2].update(batch)
    everything = torch.cat([batch.obs["obs"] for batch in batches])
    var, mean = torch.var_mean(everything, 0, correction=0)
    newest, older = learners[1].policy.normalizer, learners[0].policy.normalizer
    assert newest.count == 12 * 16 and older.count == 11 * 16
    assert torch.allclose(newest.mean, mean, atol=1e-4) and torch.allclose(newest.var, var, rtol=1e-4)
    assert torch.allclose(older.mean, newest.mean, rtol=0.15)  # without sharing: 0 and 10
    x = torch.randn(5, 3)
    assert torch.allclose(newest(x), (x - mean) / (var.sqrt() + newest.eps), atol=1e-4)


def rollout(rewards: Tensor) -> Rollout:
    """Return one step of `len(rewards)` streams with these rewards, each an episode of its own."""
    count = len(rewards)
    true = torch.ones(1, count, dtype=torch.bool)
    obs = {"obs": torch.zeros(1, count, 3)}
    return Rollout(torch.arange(count), obs, torch.zeros(1, count), rewards[None], true, ~true, ~true)


def test_all_replays_divide_rewards_by_one_value():
    server, experience = ParameterServer(AdaGradConfig()), NStep(1, 0.9, scale_rewards_to=10.0)
    generator = torch.Generator().manual_seed(0)
    large, small = (RewardScale(experience, 4, "cpu", make_peers(server)) for _ in range(2))
    alone = [RewardScale(experience, 4) for _ in range(2)]
    everything = RewardScale(experience, 4)
    for _ in range(300):
        for scale, single, size in ((large, alone[0], 25.0), (small, alone[1], 1.37)):
            rows = rollout(size * torch.randn(4, generator=generator))
            for x in (scale, single, everything):
                x.add(rows)
    divisors = [single.value.item() for single in alone]
    assert divisors == pytest.approx([25.0, 1.37], rel=0.1)  # a reward of 1 would be seen as 0.04 and 0.73
    assert large.value.item() == pytest.approx(everything.value.item(), rel=0.01)
    assert small.value.item() == pytest.approx(everything.value.item(), rel=0.01)
    assert server.moments["returns"].count == pytest.approx(2400, rel=0.01)


class RemoteServer:
    """A parameter server on another host; replies arrive when the test delivers them."""

    def __init__(self, server):
        self.merge_moments = FakeRemote(server.merge_moments)


def test_remote_statistics_arrive_later_and_no_batch_is_lost_or_counted_twice():
    server = ParameterServer(AdaGradConfig())
    remote = RemoteServer(server)
    peers, batches = make_peers(remote), [torch.randn(8, 3) + i for i in range(6)]
    own = moments(batches[0])
    assert peers.merge_moments("x", own, own) is None  # sent; the reply is not awaited
    for x in batches[1:4]:  # collected while the reply is missing
        own = own.merge(moments(x))
        assert peers.merge_moments("x", moments(x), own) is None
    assert len(remote.merge_moments.requests) == 1
    other = moments(torch.randn(80, 3))
    server.merge_moments("x", other, other)  # of another learner, after the first request was handled
    remote.merge_moments.deliver()
    own = peers.merge_moments("x", moments(batches[4]), own)
    assert len(remote.merge_moments.requests) == 2  # with the four batches since the first
    assert own.count == 5 * 8 and server.moments["x"].count == 5 * 8 + 80
    remote.merge_moments.deliver()
    own = peers.merge_moments("x", moments(batches[5]), own)
    everything = moments(torch.cat(batches)).merge(other)
    for name in ("count", "mean", "var", "max_abs"):
        for x in (own, server.moments["x"]):
            assert torch.allclose(getattr(x, name).float(), getattr(everything, name), rtol=1e-4), name


def test_few_new_samples_are_collected_before_they_are_sent():
    server = ParameterServer(AdaGradConfig())
    start = moments(torch.randn(100_000, 1))
    own, counts = server.merge_moments("x", start, start), set()
    peers = make_peers(server)
    for _ in range(100):
        batch = moments(torch.randn(10, 1))
        own = own.merge(batch)
        own = peers.merge_moments("x", batch, own) or own
        counts.add(int(server.moments["x"].count))
    assert len(counts) == 10 and own.count == 101_000  # a message per 1/1000 of all samples


def test_server_that_lost_its_state_takes_the_statistics_of_the_first_caller():
    server = ParameterServer(AdaGradConfig())
    peers = make_peers(server)
    own = None
    for _ in range(5):
        batch = moments(torch.randn(8, 3) + 4.0)
        own = batch if own is None else own.merge(batch)
        own = peers.merge_moments("x", batch, own) or own
    server.moments.clear()  # restarted without a checkpoint
    batch = moments(torch.randn(8, 3) + 4.0)
    merged = peers.merge_moments("x", batch, own.merge(batch))
    assert merged.count == 48 and server.moments["x"].count == 48


def test_statistics_are_in_the_checkpoint_of_the_server():
    server, other = ParameterServer(AdaGradConfig()), ParameterServer(AdaGradConfig())
    for x in (torch.randn(8, 3), torch.randn(8, 3)):
        server.merge_moments("x", moments(x), moments(x))
    observations = Moments(torch.tensor(4.0), torch.ones(3), torch.ones(3))  # without the largest magnitude
    server.merge_moments("observations", observations, observations)
    other.load_state_dict(copy.deepcopy(server.state_dict()))
    for name, x in server.moments.items():
        for field, value in x.as_dict().items():
            restored = getattr(other.moments[name], field)
            assert restored is None if value is None else torch.equal(restored, value)


def test_bad_batch_of_one_learner_does_not_spoil_the_statistics_of_all():
    server = ParameterServer(AdaGradConfig())
    good, bad = make_peers(server), make_peers(server)
    own = moments(torch.randn(8, 3))
    good.merge_moments("x", own, own)
    broken = moments(torch.full((8, 3), torch.nan))
    bad.merge_moments("x", broken, own)
    for field in ("mean", "var", "max_abs"):
        assert torch.isfinite(getattr(server.moments["x"], field)).all()
