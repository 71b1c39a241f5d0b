import copy
import math

import pytest
import torch
from sac_cases import FAST, config, learner
from td3_cases import batch, different_paths, spec, weights

from troop.core.env import Continuous, Discrete, EnvSpec, Field
from troop.core.program import construct
from troop.core.system import Evaluation, RunSettings
from troop.envs import Toy
from troop.functional import categorical, tanh_normal
from troop.roles.update_schedule import UpdateSchedule
from troop.systems.sync import Sync


def sampled(agent, obs, seed):
    """Sample actions and log-probabilities with torch.distributions."""
    mean, log_std = agent.policy.actor(obs)
    torch.manual_seed(seed)
    u = mean + log_std.exp() * torch.randn_like(mean)
    normal = torch.distributions.Normal(mean, log_std.exp())
    log_prob = (normal.log_prob(u).double() - torch.log(1 - u.double().tanh() ** 2)).sum(-1)
    return u.tanh(), log_prob.float()


@pytest.mark.parametrize("clipped", [True, False])
def test_the_target_by_hand(clipped):
    """R + discount (min Q' - alpha log pi), or each critic's own Q'."""
    agent, sample = learner(alpha_init=0.37, clipped_double_q=clipped), batch(20)
    after = sample.next_obs["obs"]
    torch.manual_seed(5)
    found = agent.critic_learner.target(sample, after)
    action, log_prob = sampled(agent, after, 5)
    for row in range(20):
        values = agent.target_critic(after[row : row + 1], action[row : row + 1]).flatten().tolist()
        for critic, value in enumerate([min(values)] if clipped else values):
            soft = value - 0.37 * log_prob[row].item()
            by_hand = sample.reward[row].item() + sample.discount[row].item() * soft
            assert found[critic, row].item() == pytest.approx(by_hand, abs=1e-4)


def test_the_entropy_bonus_is_added_to_the_reward_before_the_projection():
    agent, sample = learner(**FAST | {"alpha_init": 0.5, "normalize_observations": False}), batch(16)
    after = sample.next_obs["obs"]
    torch.manual_seed(5)
    found = agent.critic_learner.target(sample, after)
    action, log_prob = sampled(agent, after, 5)
    atoms = agent.critic_learner.atoms
    moved = categorical.bellman_shift(
        sample.reward - sample.discount * 0.5 * log_prob, sample.discount, atoms
    )
    target_output = agent.target_critic(after, action).softmax(-1)
    assert found.shape == (2, 16, 11)  # no clipped double Q: each critic has its own
    for critic in range(2):
        assert torch.allclose(
            found[critic], categorical.project(target_output[critic], moved, atoms), atol=1e-5
        )
    ended = sample.discount == 0
    assert ended.any() and torch.allclose(
        found[0, ended] @ atoms, sample.reward[ended].clamp(-10, 10), atol=1e-4
    )


@pytest.mark.parametrize("fast", [False, True])
def test_actor_loss_reduces_the_critics_as_configured(fast):
    """alpha log pi - min Q, or mean Q without clipped double Q."""
    changes = FAST | {"normalize_observations": False} if fast else {}
    agent, sample = learner(**changes | {"alpha_init": 0.2}), batch()
    obs = sample.obs["obs"]
    action, log_prob = sampled(agent, obs, 3)
    outputs = agent.critic(obs, action)
    value = (
        (outputs.softmax(-1) @ agent.critic_learner.atoms).mean(0) if fast else outputs.squeeze(-1).amin(0)
    )
    expected = (0.2 * log_prob - value).mean()
    torch.manual_seed(3)
    metrics = agent.actor_learner.update_actor(sample.obs).metrics
    assert metrics["loss/policy"].item() == pytest.approx(expected.item(), abs=1e-5)
    assert metrics["policy/entropy"].item() == pytest.approx(-log_prob.mean().item(), abs=1e-5)
    assert metrics["policy/alpha"].item() == pytest.approx(0.2)


@pytest.mark.parametrize("ratio, up", [(-1.0, True), (5.0, False)])
def test_the_temperature_moves_towards_the_target_entropy(ratio, up):
    agent = learner(target_entropy_ratio=ratio, alpha_lr=1e-2, alpha_init=0.3)
    alphas = []
    for update in range(20):
        metrics = agent.update(batch(seed=update)).metrics
        assert (metrics["policy/entropy"] < -ratio * 2) == up  # two action dimensions
        alphas.append(float(agent.policy.temperature()))
    assert all(alpha > 0 for alpha in alphas)
    assert (alphas[-1] > 0.3) == up and sorted(alphas, reverse=not up) == alphas


def test_entropy_converges_to_the_target_entropy():
    """One-step task with reward -3 |action|^2: the temperature alone determines the entropy."""
    found = []
    for rate in (0.03, 0.0):
        agent = learner(alpha_init=1.0, alpha_lr=rate, actor_lr=0.01, critic_lr=0.01, actor_init=0.01)
        entropies = []
        for update in range(600 if rate else 200):
            sample = batch(64, seed=update, discount=0.0)
            sample.reward.copy_(-3 * sample.action.square().sum(-1))
            entropies.append(agent.update(sample).metrics["policy/entropy"].item())
        found.append(sum(entropies[-150:]) / 150)
    assert found[0] == pytest.approx(-2.0, abs=0.4)  # minus one per action dimension
    assert found[1] > 0


def test_weight_decay_does_not_apply_to_the_temperature():
    """FastSAC's code decays log alpha too, which pulls alpha towards 1."""
    free, decayed = (learner(weight_decay=w, alpha_lr=0.1, alpha_init=0.01) for w in (0.0, 0.5))
    for agent in (free, decayed):
        torch.manual_seed(1)
        agent.update(batch())
    assert not torch.equal(weights(free.policy.actor), weights(decayed.policy.actor))
    assert torch.equal(free.policy.temperature(), decayed.policy.temperature())
    assert free.policy.temperature().item() != pytest.approx(0.01, rel=1e-3)


def test_alpha_lr_zero_keeps_the_temperature():
    agent = learner(alpha_lr=0.0, alpha_init=0.2)
    agent.update(batch())
    assert agent.policy.temperature().item() == pytest.approx(0.2)


def test_explore_zero_returns_the_mean_and_otherwise_a_sample():
    agent, rows = config(actor_init=1.0).policy(spec()), 20_000
    obs = {"obs": torch.full((rows, 3), 0.3)}
    mean, log_std = agent.actor(obs["obs"][:1])
    still = agent.act(obs, None, torch.zeros(rows)).action
    assert torch.equal(still, mean.tanh().expand_as(still))
    torch.manual_seed(0)
    wild = agent.act(obs, None, (torch.arange(rows) % 2).float()).action
    assert torch.equal(wild[::2], still[::2])
    # Quantiles, because atanh of an action that rounds to 1 is infinite.
    low, middle, high = (
        wild[1::2].double().quantile(torch.tensor([0.1587, 0.5, 0.8413]).double(), 0).atanh().float()
    )
    assert torch.allclose(middle, mean[0], atol=0.1)
    assert torch.allclose((high - low) / 2, log_std.exp()[0], rtol=0.05)
    assert config().exploration.initial(3, torch.device("cpu")).tolist() == [1, 1, 1]


def test_noise_is_scaled_by_a_factor_of_each_episode():
    cfg, rows = config(actor_init=1.0, noise_scale_max=4.0), 20_000
    factors = cfg.exploration.initial(rows, torch.device("cpu"))
    assert factors.min() >= 1 and factors.max() <= 4 and factors.median() == pytest.approx(2, abs=0.05)
    agent, obs = cfg.policy(spec()), {"obs": torch.full((rows, 3), 0.3)}
    mean, log_std = agent.actor(obs["obs"][:1])
    torch.manual_seed(0)
    action = agent.act(obs, None, torch.full((rows,), 3.0)).action.double()
    low, high = action.quantile(torch.tensor([0.1587, 0.8413]).double(), 0).clamp(-1 + 1e-7, 1 - 1e-7).atanh()
    expected = [(mean + sign * 3 * log_std.exp())[0].clamp(-8, 8) for sign in (-1, 1)]
    for quantile, value in zip((low, high), expected, strict=True):
        assert torch.allclose(quantile.tanh().float(), value.tanh(), atol=0.03)


def test_evaluation_uses_no_random_numbers():
    agent, obs = config().policy(spec()), batch(6).obs
    state = torch.get_rng_state()
    agent.act(obs, None, torch.zeros(6))
    assert torch.equal(state, torch.get_rng_state())


def test_actor_init_zero_starts_at_mean_zero_and_mid_range_std():
    agent = config(**FAST).policy(spec())
    mean, log_std = agent.actor(torch.randn(10, 3) * 100)
    assert not mean.any() and torch.equal(log_std, torch.full((10, 2), -2.5))


def test_log_std_stays_in_its_range_and_keeps_a_gradient():
    actor = config(actor_init=3.0, log_std_min=-3.0, log_std_max=1.0).policy(spec()).actor
    log_std = actor(torch.randn(500, 3) * 5)[1]
    assert log_std.min() >= -3 and log_std.max() <= 1 and log_std.max() - log_std.min() > 2
    one = actor(torch.randn(4, 3))[1].sum()
    assert torch.autograd.grad(one, actor.net.layers[-2])[0][2:].abs().sum() > 0


def test_extras_hold_the_soft_value_of_the_sampled_action():
    torch.manual_seed(0)
    agent = config(actor_carries_critic=True, alpha_init=0.3).policy(spec(2))
    obs = batch(8, privileged=2).obs
    torch.manual_seed(4)
    output = agent.act(obs, None, torch.tensor([1.0, 0.0] * 4))
    sample_obs = torch.cat((obs["obs"], obs["privileged"]), -1)
    values = agent.critic(sample_obs, output.action).squeeze(-1).amin(0)
    assert torch.allclose(output.extras["q"], values)
    assert torch.equal(output.extras["value"][1::2], values[1::2])
    mean, log_std = agent.actor(obs["obs"])
    torch.manual_seed(4)
    _, log_prob = tanh_normal.sample(mean, log_std)
    assert torch.allclose(output.extras["value"][::2], (values - 0.3 * log_prob)[::2], atol=1e-5)


@pytest.mark.parametrize("changes", [{}, FAST, {"actor_carries_critic": True}], ids=["plain", "fast", "told"])
def test_split_learners_in_turn_equal_the_whole_algorithm(changes):
    settings = changes | {"policy_delay": 1, "normalize_observations": False, "alpha_lr": 1e-2}
    agent = {}
    for name in ("algorithm", "critic_learner", "actor_learner"):
        torch.manual_seed(0)
        agent[name] = getattr(config(**settings), name)(spec())
    whole, critic_learner, actor_learner = agent.values()
    torch.manual_seed(1)
    for update in range(6):
        whole.update(batch(seed=update))
    torch.manual_seed(1)
    for update in range(6):
        critic_learner.update(batch(seed=update))
        actor_learner.peer_module.load_state_dict(copy.deepcopy(critic_learner.module.state_dict()))
        actor_learner.update(batch(seed=update))
        critic_learner.peer_module.load_state_dict(copy.deepcopy(actor_learner.module.state_dict()))
    assert torch.equal(weights(critic_learner.critic), weights(whole.critic))
    assert torch.equal(weights(critic_learner.target_critic), weights(whole.target_critic))
    assert torch.equal(weights(actor_learner.policy.actor), weights(whole.policy.actor))
    assert torch.equal(critic_learner.peer_module.temperature(), whole.policy.temperature())
    assert whole.policy.temperature() != config(**settings).alpha_init


def test_the_temperature_is_part_of_the_published_policy():
    agent = config().actor_learner(spec())
    agent.update(batch())
    assert "temperature.log_alpha" in agent.module.state_dict()


def test_a_restored_learner_continues_bit_equal():
    agent, other = learner(alpha_lr=1e-2), learner(seed=7, alpha_lr=1e-2)
    for update in range(4):
        agent.update(batch(seed=update))
    other.load_state_dict(copy.deepcopy(agent.state_dict()))
    for one in (agent, other):
        torch.manual_seed(2)
        for update in range(4):
            one.update(batch(seed=update))
    assert different_paths(agent.state_dict(), other.state_dict()) == []


def test_a_nan_loss_does_not_change_the_temperature():
    agent, bad = learner(), batch()
    bad.obs["obs"][0] = math.nan
    before = agent.policy.temperature().item()
    agent.update(bad)
    assert agent.policy.temperature().item() == before and agent.consecutive_skips == 1


def test_unsupported_envs_are_rejected_by_name():
    box, image = Field((3,)), Field((3, 2, 84))
    assert "Cat has discrete actions" in config().unsupported_reason(
        EnvSpec("Cat", {"obs": box}, Discrete(3), 1)
    )
    assert "image" in config().unsupported_reason(EnvSpec("Cat", {"obs": image}, Continuous(2), 1))
    assert "log_std_max" in config(log_std_min=1.0, log_std_max=1.0).unsupported_reason(spec())
    assert "all equal" in config(net="simbav2", critic_hidden=(16, 8)).unsupported_reason(spec())
    assert config(net="simbav2", critic_hidden=(16, 16)).unsupported_reason(spec()) is None


@pytest.mark.parametrize("world, limit", [("Clock", True), ("Clock", False), ("Countdown", True)])
@pytest.mark.reliability("N5")
def test_values_of_toy_envs_with_known_solution(world, limit):
    """With almost no entropy bonus: time limits are bootstrapped, terminations are not."""
    gamma, steps = 0.8, 5
    torch.manual_seed(0)
    cfg = config(
        gamma=gamma,
        bootstrap_on_truncation=limit,
        alpha_init=1e-6,
        alpha_lr=0.0,
        tau=0.2,
        actor_lr=1e-5,  # actions have no effect here: keep the actor from following critic errors
        critic_lr=5e-3,
        critic_hidden=(64,),
        atoms=41,
        v_min=-1.0,
        v_max=7.0,
        normalize_observations=True,
    )
    env = Toy(world, 4, limit=steps)
    system = Sync(
        UpdateSchedule(batch_size=64, updates_per_step=2),
        replay_capacity=4_000,
        learning_starts=20,
        recreate_every=0,
    )
    program = system.program(cfg, env, RunSettings(1, "cpu", Evaluation(episodes=1)))
    trainer = construct(program.nodes["trainer"].build, {}.__getitem__)
    for _ in range(250):
        trainer.step()
    left = range(1, steps + 1) if world == "Countdown" else range(steps, 0, -1)
    obs = (torch.tensor(left) if world == "Countdown" else steps - torch.tensor(left)).unsqueeze(1) / steps
    agent = trainer.algorithm
    with torch.no_grad():
        x = agent.policy.critic_input({"obs": obs})
        found = agent.policy.value(agent.critic(x, agent.policy.sample(x)[0]))
    forever = world == "Clock" and limit
    wanted = [1 / (1 - gamma) if forever else sum(gamma**i for i in range(n)) for n in left]
    assert found.tolist() == pytest.approx(wanted, abs=0.15)
