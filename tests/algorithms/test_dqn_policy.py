import pytest
import torch
from dqn_cases import SPEC, learner

from troop.algorithms import C51Config, DQNConfig, RainbowConfig
from troop.core.config import check
from troop.core.config_json import decode, encode
from troop.core.env import Continuous, Discrete, EnvSpec, Field
from troop.core.exploration import LinearSchedule


def sample_obs(rows=64, seed=0):
    return {"obs": torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))}


@pytest.mark.parametrize("kind", [DQNConfig, C51Config])
def test_each_row_uses_its_own_epsilon(kind):
    policy = learner(kind=kind).policy
    obs = {"obs": sample_obs(1)["obs"].expand(30_000, 3)}
    greedy = policy.act(obs, None, torch.zeros(30_000)).action
    assert len(set(greedy.tolist())) == 1
    epsilon = torch.tensor([0.0, 0.3, 1.0]).repeat(10_000)
    action = policy.act(obs, None, epsilon).action
    for which, rate in enumerate((0.0, 0.3, 1.0)):
        off = (action[which::3] != greedy[0]).double().mean().item()
        assert off == pytest.approx(rate * 3 / 4, abs=0.02)  # one of the four random choices is the best one
    assert set(action[2::3].tolist()) == {0, 1, 2, 3}
    assert action.dtype == torch.int64


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_extras_hold_q_of_the_action_and_the_maximum_q(epsilon):
    policy, obs = learner().policy, sample_obs()
    output = policy.act(obs, None, torch.full((64,), epsilon))
    q = policy(obs["obs"])
    for row in range(64):
        assert output.extras["q"][row].item() == pytest.approx(q[row, output.action[row]].item(), abs=1e-6)
        assert output.extras["value"][row].item() == pytest.approx(max(q[row].tolist()), abs=1e-6)
    assert bool((output.extras["q"] < output.extras["value"]).any()) == (epsilon > 0)


def test_c51_returns_no_values_because_its_priorities_are_divergences():
    assert learner(kind=C51Config).policy.act(sample_obs(), None, torch.zeros(64)).extras == {}


def test_c51_acts_on_means_of_the_distributions():
    agent = learner(kind=C51Config, atoms=3, v_min=-1.0, v_max=1.0)
    logits = torch.tensor([[[0.6, 0.0, 0.4], [0.0, 0.9, 0.1], [0.05, 0.95, 0.0], [0.3, 0.4, 0.3]]]).log()
    assert agent.policy.values(logits)[0].tolist() == pytest.approx([-0.2, 0.1, -0.05, 0.0], abs=1e-6)


def test_every_row_of_a_noisy_policy_draws_its_own_noise_at_every_act():
    policy = learner(noisy=0.5).policy
    obs, on = {"obs": sample_obs(1)["obs"].expand(256, 3)}, torch.ones(256)
    first, second = (policy.act(obs, None, on).extras["value"] for _ in range(2))
    assert first.unique().numel() > 200  # the same observation, another noise in each row
    assert not torch.equal(first, second)


@pytest.mark.parametrize("kind", [DQNConfig, RainbowConfig])
def test_a_noisy_policy_is_deterministic_where_explore_is_zero(kind):
    policy, obs, off = learner(kind=kind, noisy=0.5).policy, sample_obs(), torch.zeros(64)
    first, second = (policy.act(obs, None, off) for _ in range(2))
    assert torch.equal(first.action, second.action)


def test_rows_with_explore_zero_are_unaffected_by_noise_of_other_rows():
    policy, obs, off = learner(noisy=0.5).policy, sample_obs(), torch.zeros(64)
    first = policy.act(obs, None, off)
    half = torch.cat((off[:32], torch.ones(32)))
    mixed = policy.act(obs, None, half)
    assert torch.allclose(mixed.extras["value"][:32], first.extras["value"][:32], atol=1e-5)
    assert not torch.allclose(mixed.extras["value"][32:], first.extras["value"][32:], atol=1e-2)


def test_acting_is_reproducible_from_the_seed():
    policy, obs, rate = learner().policy, sample_obs(), torch.full((64,), 0.5)
    found = []
    for _ in range(2):
        torch.manual_seed(7)
        found.append(policy.act(obs, None, rate).action)
    assert torch.equal(*found)


def test_epsilon_decreases_with_env_steps_and_noise_stays_on():
    cfg = DQNConfig(epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=1000)
    assert cfg.exploration == LinearSchedule(1.0, 0.1, 1000)
    held = cfg.exploration.update(torch.zeros(2), None, 500)
    assert held.tolist() == pytest.approx([0.55, 0.55])
    noisy = DQNConfig(noisy=0.5, epsilon_start=0.5, epsilon_end=0.0, epsilon_steps=10)
    assert noisy.exploration == LinearSchedule(1.5, 1.0, 10)
    alone = RainbowConfig().exploration
    assert alone.start == alone.end == 1.0


def test_explore_above_one_is_the_epsilon_of_a_noisy_policy():
    torch.manual_seed(0)
    policy = DQNConfig(noisy=1e-6, hidden=(8,)).policy(spec((3,)))
    obs = {"obs": torch.zeros(4000, 3)}
    rate = torch.cat(
        (torch.zeros(1000), torch.ones(1000), torch.full((1000,), 1.4), torch.full((1000,), 2.0))
    )
    action = policy.act(obs, None, rate).action
    best = int(action[0])
    shares = (action.view(4, 1000) == best).float().mean(1).tolist()
    assert shares == pytest.approx([1.0, 1.0, 0.6 + 0.4 / 4, 1 / 4], abs=0.05)


def spec(shape, dtype=torch.float32, action=None):
    return EnvSpec("Some-v0", {"obs": Field(shape, dtype)}, action or Discrete(4), 4)


REFUSED = {
    "continuous": (DQNConfig(), spec((3,), action=Continuous(2)), "Use FastTD3, TD3, DDPG, SAC or FlashSAC"),
    "dtype": (
        DQNConfig(),
        spec((3, 84, 84), torch.float64),
        "float64; expected torch.uint8 or torch.float32",
    ),
    "matrix": (DQNConfig(), spec((84, 84)), r"(84, 84); expected [n] or images [channels, height, width]"),
    "channels last": (DQNConfig(), spec((84, 84, 3), torch.uint8), "(84, 84, 3), channels last; expected"),
    "minigrid's channels last": (DQNConfig(), spec((7, 7, 3), torch.uint8), "channels last"),
    "too small": (DQNConfig(net="nature"), spec((1, 10, 5)), "10x5 with 1 channels"),
    "too small, what then": (DQNConfig(net="nature"), spec((1, 10, 5)), "small torso takes these"),
    "tiny": (DQNConfig(), spec((1, 2, 5)), "needs 3x3 or more"),
    "torso for vectors": (DQNConfig(net="impala"), spec((3,)), "impala torso takes images"),
    "normalized images": (DQNConfig(normalize_observations=True), spec((1, 10, 5)), "for vectors"),
    "empty range": (C51Config(v_min=1.0, v_max=1.0), spec((3,)), "v_min 1 to v_max 1"),
    "rainbow's range": (RainbowConfig(v_min=2.0, v_max=1.0), spec((3,)), "not a range of values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_reason_names_the_given_and_the_expected_value(name):
    cfg, env, words = REFUSED[name]
    assert words in cfg.unsupported_reason(env)


@pytest.mark.parametrize("kind", [DQNConfig, C51Config, RainbowConfig])
def test_configs_are_valid_round_trip_as_json_and_accept_supported_specs(kind):
    check(kind())
    assert decode(encode(kind()), {kind.__name__: kind}.__getitem__) == kind()
    images = [spec((4, 84, 84), torch.uint8), spec((1, 10, 5)), spec((3, 7, 7), torch.uint8)]
    for env in (SPEC, spec((128,), torch.uint8), *images):
        assert kind().unsupported_reason(env) is None


def test_rainbow_defaults_are_the_papers():
    cfg = RainbowConfig()
    assert (cfg.double, cfg.dueling, cfg.n_step, cfg.atoms, cfg.noisy) == (True, True, 3, 51, 0.5)
    assert (cfg.optimizer, cfg.lr, cfg.eps, cfg.v_min, cfg.v_max) == ("adam", 6.25e-5, 1.5e-4, -10, 10)
    assert cfg.experience.n == 3 and cfg.target_update_period * 4 == 8000  # env steps, at one update in four
