"""Numbers of FlashSAC computed by hand or by quadrature, and its policy."""

import math

import pytest
import torch
from flash_cases import config, learner
from td3_cases import batch, spec, weights

from troop.core.batch import NStep, Rollout
from troop.core.env import Continuous, EnvSpec, Field
from troop.functional import tanh_normal
from troop.replay.reward_scale import RewardScale
from troop.replay.uniform import ReplaySize, UniformReplay


def entropy(mean, std):
    """Return the entropy of tanh N(mean, std^2) in one dimension, by quadrature."""
    noise = torch.linspace(-9, 9, 20_001, dtype=torch.float64).unsqueeze(-1)
    mass = torch.exp(-0.5 * noise.square()) / math.sqrt(2 * math.pi) * (18 / 20_000)
    log_std = torch.full_like(noise, math.log(std))
    log_prob = tanh_normal.log_prob(mean + std * noise, noise, log_std)
    return -(mass.squeeze(-1) * log_prob).sum().item()


def test_target_entropy_per_action_dimension():
    expected = {0.05: -1.5768, 0.1: -0.8836, 0.15: -0.4782, 0.2: -0.1905, 0.25: 0.0326}
    for std, per_dimension in expected.items():
        assert config(target_std=std).target_entropy(7) / 7 == pytest.approx(per_dimension, abs=5e-5)
    assert config(target_std=0.0890).target_entropy(1) == pytest.approx(-1, abs=1e-3)
    assert config(target_std=0.1468).target_entropy(1) == pytest.approx(-0.5, abs=1e-3)
    agent = learner()
    assert agent.actor_learner.target_entropy == pytest.approx(-0.4782 * 2, abs=1e-4)


def test_standard_deviation_that_meets_the_target_entropy():
    assert entropy(0.0, 0.1535) == pytest.approx(-0.4782, abs=1e-3)
    torch.manual_seed(0)
    actions = (torch.randn(1_000_000) * 0.1535).tanh()
    assert actions.std().item() == pytest.approx(0.150, abs=1e-3)
    best = max((entropy(0.0, std / 100), std / 100) for std in range(50, 130, 2))
    assert best[0] == pytest.approx(0.6836, abs=1e-4) and best[1] == pytest.approx(0.87, abs=0.02)


def test_a_saturated_policy_cannot_meet_the_target_entropy():
    assert entropy(3.0, 0.15) == pytest.approx(-5.0971, abs=1e-3)

    def best(mean):
        return max(entropy(mean, 1.05**k / 100) for k in range(130))

    assert best(1.473) == pytest.approx(-0.4782, abs=2e-3) and math.tanh(1.473) == pytest.approx(
        0.9, abs=2e-3
    )
    assert best(1.6) < -0.4782
    assert best(3.0) == pytest.approx(-2.85, abs=0.01) and best(5.0) == pytest.approx(-6.38, abs=0.01)


@pytest.mark.parametrize("u, log_det", [(0.0, 0.0), (3.0, -4.61866), (-3.0, -4.61866), (10.0, -18.61371)])
def test_log_determinant_of_tanh(u, log_det):
    zero = torch.zeros(1, 1)
    found = tanh_normal.log_prob(torch.full((1, 1), u), zero, zero).item()
    assert found == pytest.approx(-0.5 * math.log(2 * math.pi) - log_det, abs=1e-4)


def one_row_target(reward, discount, bonus, atom):
    """Return the target of one row; the first target critic has all mass on `atom`, the other a higher Q."""
    agent = learner(atoms=101, alpha_init=0.5)
    logits = torch.full((2, 1, 101), -100.0)
    logits[0, 0, 50 + round(atom * 10)] = logits[1, 0, 90] = 100.0
    sample = batch(1)
    sample.reward[:], sample.discount[:] = reward, discount
    target = agent.critic_learner.target(sample, logits, torch.tensor([bonus / 0.5]))
    assert target.sum().item() == pytest.approx(1, abs=1e-6)
    return {k: x.item() for k, x in enumerate(target[0]) if x > 1e-6}


def test_projected_targets():
    assert one_row_target(0.25, 0.99, 0.02, 1.0) == pytest.approx({62: 0.798, 63: 0.202}, abs=1e-4)
    assert one_row_target(0.4875, 0.0, 0.02, 1.0) == pytest.approx({54: 0.125, 55: 0.875}, abs=1e-4)
    assert one_row_target(9.0, 0.99, 0.02, 1.0) == pytest.approx({100: 1.0}, abs=1e-6)


def test_the_lower_critic_is_selected_before_clipping():
    """Both distributions end at the upper atom once shifted; the whole lower one is used regardless."""
    agent, sample = learner(atoms=101), batch(1)
    logits = torch.full((2, 1, 101), -100.0)
    logits[0, 0, 80] = logits[1, 0, 20] = logits[1, 0, 100] = 100.0  # means 3 and 1
    sample.reward[:], sample.discount[:] = 1.0, 0.9
    target = agent.critic_learner.target(sample, logits, torch.zeros(1))[0]
    assert target[100].item() == pytest.approx(0.5, abs=1e-5)
    assert target[:50].sum().item() == pytest.approx(0.5, abs=1e-5)


def add_rewards(scale, rewards, done_at):
    """Return the scale after each reward of one env; episodes end at the steps `done_at`, counted from 1."""
    found = []
    for step, reward in enumerate(rewards, 1):
        flags = [torch.tensor([[flag]]) for flag in (step in done_at, False, False)]
        obs, action = {"obs": torch.zeros(1, 1, 1)}, torch.zeros(1, 1, 1)
        scale.add(Rollout(torch.tensor([0]), obs, action, torch.tensor([[float(reward)]]), *flags))
        found.append(scale.value.item())
    return found


def test_reward_scale_divides_by_the_standard_deviation_or_a_fifth_of_the_largest_return():
    """The paper's numbers, without its initial variance of 1 with weight 1e-4, until an episode ends."""
    experience = config(gamma=0.9).experience
    assert experience == NStep(1, 0.9, True, 5.0)
    found = add_rewards(RewardScale(experience, 1), [1, 1, 1, 1], ())
    assert found == pytest.approx([0.2, 0.45006, 0.69846, 0.90966], abs=2e-4)
    scale = RewardScale(experience, 1)
    found = add_rewards(scale, [0, 0, 1, 0, 0, 0], (3, 6))
    assert found[2] == pytest.approx(0.47144, abs=2e-4)
    # The return after the end of an episode is that of the new one: 0, 0, 1, then 0, not 0.9 and 0.81.
    expected = [(n - 1) ** 0.5 / n for n in (3, 4, 5, 6)]
    assert found[2:] == pytest.approx(expected, abs=1e-4) and scale.returns.item() == 0


def test_a_rare_success_is_scaled_to_the_end_of_the_support():
    """One reward of 1 at the end of each tenth episode of 100 steps becomes 5."""
    scale = RewardScale(config().experience, 1)
    for episode in range(20):
        add_rewards(scale, [0] * 99 + [int(episode % 10 == 0)], (100,))
    assert 1 / scale.value.item() == pytest.approx(5.0)


def test_three_step_returns_and_their_discounts():
    """R = 1 + 0.99 * 2 + 0.99^2 * 3; a truncation after k steps discounts by 0.99^k, not by 0.99^3."""
    experience = config(n_step=3, normalize_rewards=False).experience
    replay = UniformReplay(
        EnvSpec("steps", {"obs": Field((1,))}, Continuous(1), 1), experience, ReplaySize(40, 1, ""), 0, "cpu"
    )
    rewards, truncated_at = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 4
    for step, reward in enumerate(rewards):
        obs = {"obs": torch.full((1, 1, 1), float(step))}
        flags = [torch.tensor([[flag]]) for flag in (False, step == truncated_at, False)]
        action = torch.zeros(1, 1, 1)
        replay.add(Rollout(torch.tensor([0]), obs, action, torch.tensor([[reward]]), *flags))
        if step == truncated_at:
            final, nothing = {"obs": torch.full((1, 1, 1), 99.0)}, torch.zeros(1, 1)
            closing = [torch.tensor([[flag]]) for flag in (False, False, True)]
            replay.add(Rollout(torch.tensor([0]), final, action, nothing, *closing))
    sample = replay.sample(400)
    found = {
        int(o): (r, d) for o, r, d in zip(sample.obs["obs"], sample.reward, sample.discount, strict=True)
    }
    assert found[0][0].item() == pytest.approx(5.9203) and found[0][1].item() == pytest.approx(0.970299)
    assert found[3][0].item() == pytest.approx(4 + 0.99 * 5) and found[3][1].item() == pytest.approx(0.99**2)
    assert found[4][0].item() == pytest.approx(5) and found[4][1].item() == pytest.approx(0.99)
    assert set(sample.next_obs["obs"][sample.obs["obs"] == 3].tolist()) == {99.0}


WIDE = EnvSpec("wide", {"obs": Field((17,))}, Continuous(6), 4)


def test_initial_critics_have_logits_of_unit_variance():
    """The cross entropy starts at 5.0; 4.615 would mean constant logits."""
    losses, values = [], []
    for seed in range(6):
        torch.manual_seed(seed)
        agent = config(atoms=101, critic_width=128, actor_width=64).algorithm(WIDE)
        obs, next_obs = torch.randn(512, 17), torch.randn(512, 17)
        sample = batch(512, seed=seed)
        sample.reward[:] = 0.1 * torch.randn(512)
        sample = type(sample)(
            {"obs": obs}, torch.rand(512, 6) * 2 - 1, sample.reward, sample.discount, {"obs": next_obs}
        )
        losses.append(agent.critic_learner.loss(sample)[0].item())
        q = agent.critic(torch.cat((obs, sample.action), -1)).softmax(-1) @ agent.critic_learner.atoms
        values.append(q.abs().mean().item())
    assert sum(losses) / 6 == pytest.approx(5.0, abs=0.15)
    assert sum(values) / 6 == pytest.approx(0.3, abs=0.15)


def test_the_papers_initial_policy_is_neither_centred_nor_broad():
    means, stds = [], []
    for seed in range(20):
        torch.manual_seed(seed)
        policy = config(actor_width=128).policy(WIDE)
        outputs, _ = policy.actor.forward_train(torch.randn(256, 17))
        mean, log_std = policy.gaussian(outputs.detach())
        means.append(mean)
        stds.append(log_std.exp())
    means, stds = torch.cat(means), torch.cat(stds)
    assert means.std().item() == pytest.approx(1, abs=0.1)
    assert (means.tanh().abs() > 0.9).float().mean().item() == pytest.approx(0.14, abs=0.04)
    quartiles = stds.flatten()[:100_000].quantile(torch.tensor([0.25, 0.5, 0.75]))
    assert quartiles[0] < 0.002 and 0.003 < quartiles[1] < 0.03 and 0.1 < quartiles[2] < 0.8


def test_a_small_initial_head_starts_centred_with_the_given_standard_deviation():
    torch.manual_seed(0)
    agent = config(actor_init=1e-3, std_init=0.4).algorithm(WIDE)
    mean, log_std = agent.policy.gaussian(agent.policy.actor(torch.randn(64, 17) * 3))
    assert mean.abs().max() < 0.05 and torch.allclose(log_std.exp(), torch.tensor(0.4))
    obs = {"obs": torch.randn(64, 17)}
    sample = batch(64)
    sample = type(sample)(obs, torch.rand(64, 6) * 2 - 1, sample.reward, sample.discount, obs)
    for _ in range(4):
        agent.update(sample)
    assert agent.policy.actor.layers[-2].norm(dim=-1).max() < 0.1  # the projection does not undo it


def test_policies_are_bounded_by_the_length_of_the_features():
    torch.manual_seed(0)
    policy = config(actor_width=128).policy(WIDE)
    mean, _ = policy.gaussian(policy.actor(torch.randn(1000, 17) * 100))
    assert mean.abs().max() <= math.sqrt(128)


def test_evaluation_returns_the_mean_and_changes_neither_noise_nor_statistics():
    policy, obs = learner().policy, batch(6).obs
    state = policy.act(obs, policy.initial_state(6), torch.ones(6)).state
    random, before = torch.get_rng_state(), policy.state_dict()
    statistics = {name: x.clone() for name, x in before.items()}
    output = policy.act(obs, state, torch.zeros(6))
    assert torch.equal(output.state["noise"], state["noise"]) and torch.equal(random, torch.get_rng_state())
    mean, _ = policy.gaussian(policy.actor(obs["obs"]))
    assert torch.equal(output.action, mean.tanh())
    policy.act(obs, state, torch.ones(6))
    assert all(torch.equal(x, statistics[name]) for name, x in policy.state_dict().items())
    mixed = policy.act(obs, state, torch.tensor([0.0, 1.0] * 3))
    assert torch.equal(mixed.state["noise"][::2], state["noise"][::2])
    assert torch.equal(mixed.action[::2], output.action[::2])
    assert policy.act(obs, None, torch.zeros(6)).state is None
    assert policy.act(obs, None, torch.ones(6)).state["noise"].shape == (6, 3)


def test_exploration_adds_held_noise_to_a_mean_that_changes_every_step():
    torch.manual_seed(0)
    policy, rows = learner(actor_init=1e-3).policy, 500
    state, before, held = policy.initial_state(rows), None, 0
    for _ in range(30):
        obs = {"obs": torch.randn(rows, 3)}
        output = policy.act(obs, state, torch.ones(rows))
        mean, log_std = policy.gaussian(policy.actor(obs["obs"]))
        noise = output.state["noise"][:, :-1]
        assert torch.allclose(output.action, (mean + log_std.exp() * noise).tanh(), atol=1e-6)
        if before is not None:
            kept = state["noise"][:, -1] > 0
            assert torch.equal(noise[kept], before[kept]) and (noise[~kept] != before[~kept]).all()
            held += int(kept.sum())
        state, before = output.state, noise
    assert held / (29 * rows) == pytest.approx(0.5314, abs=0.05)


def test_infinite_exploration_is_uniformly_random():
    policy, rows = config().policy(spec()), 20_000
    obs = {"obs": torch.zeros(rows, 3)}
    action = policy.act(obs, policy.initial_state(rows), torch.full((rows,), math.inf)).action
    assert action.min() >= -1 and action.max() <= 1 and action.mean().abs() < 0.02
    assert action.var().item() == pytest.approx(1 / 3, abs=0.01)
    schedule = config(random_steps=10).exploration
    values = schedule.initial(4, torch.device("cpu"))
    assert values.isinf().all() and (schedule.update(values, None, 12) == 1).all()


@pytest.mark.parametrize("shared", [True, False])
def test_envs_draw_new_noise_together_only_if_repeats_are_shared(shared):
    torch.manual_seed(0)
    policy = config(shared_repeats=shared).policy(spec())
    state = policy.initial_state(64)
    for _ in range(20):
        state = policy.act({"obs": torch.zeros(64, 3)}, state, torch.ones(64)).state
    assert (len(state["noise"][:, -1].unique()) == 1) == shared


def test_an_update_leaves_the_state_of_the_noise_alone():
    """Losses sample with fresh noise."""
    agent = learner()
    before = weights(agent.policy.actor)
    actions = [agent.policy.sample(batch(4).obs["obs"])[0] for _ in range(2)]
    assert not torch.equal(*actions) and torch.equal(before, weights(agent.policy.actor))
