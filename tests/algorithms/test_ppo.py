"""PPO: whole updates against an independent version, and what must be true of its parts."""

import copy
import dataclasses
import functools
import math

import pytest
import torch
from torch import nn

from troop.algorithms.actor_critic_policy import evaluate_trajectory
from troop.algorithms.ppo import PPOConfig, adapt_learning_rate, clip_groups, explained_variance
from troop.core.batch import TrajectorySpec
from troop.core.env import Continuous, Discrete, EnvSpec, Field, Step
from troop.envs import Toy
from troop.nets.recurrent import build_core
from troop.replay.recorders.trajectories import TrajectoryRecorder
from troop.roles.collector import Collector, EnvFactory

PLAIN = {"normalize_observations": False, "normalize_rewards": False, "hidden": (16, 16)}


def spec(action=None, envs=6, obs=3):
    return EnvSpec("test", {"obs": Field((obs,))}, action or Continuous(2), envs)


def rollout(config, env=None, steps=1, seed=0, act=None):
    """Return a learner and the trajectory that its policy collects in a toy env, with `act` if given."""
    env = env or Toy("PointMass", 6, limit=5)
    torch.manual_seed(seed)
    learner = config.algorithm(env.spec)
    if act is not None:
        learner.policy.act = functools.partial(act, learner.policy)
    recorder = TrajectoryRecorder(env.envs, config.experience)
    collector = Collector(EnvFactory(env.make, 1), learner.policy, recorder, config.exploration)
    trajectories = []
    while len(trajectories) < steps:
        collector.send()
        trajectories += collector.recv()[0]
    return learner, trajectories[-1]


@torch.no_grad()
def act_with_values(policy, obs, state, explore):
    """Act as the policy does, and return also the values of the observations."""
    output = type(policy).act(policy, obs, state, explore)
    _, value, _ = policy(obs, state, torch.zeros(1, len(explore), dtype=torch.bool))
    return dataclasses.replace(output, extras=output.extras | {"value": value})


class PlainPPO:
    """PPO in plain PyTorch, step by step as the papers describe it, for feed-forward Gaussian policies."""

    def __init__(self, learner):
        layers = list(learner.policy.net.actor.layers), list(learner.policy.net.critic.layers)
        self.actor, self.critic = ([x.detach().clone().requires_grad_() for x in part] for part in layers)
        self.log_std = learner.policy.log_std.detach().clone().requires_grad_()
        self.parameters = [*self.actor, *self.critic, self.log_std]
        self.optimizer = torch.optim.Adam(self.parameters, lr=learner.cfg.lr, eps=learner.cfg.eps)
        self.cfg = learner.cfg

    @staticmethod
    def network(x, layers):
        for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
            x = torch.tanh(x @ weight.t() + bias)
        return x @ layers[-2].t() + layers[-1]

    def log_prob(self, obs, action):
        normal = torch.distributions.Normal(self.network(obs, self.actor), self.log_std.exp())
        return normal.log_prob(action).sum(-1), normal.entropy().sum(-1)

    def advantages(self, batch):
        """Sum TD errors over the rest of each episode; the successor at a time limit is the final one."""
        cfg, (steps, streams) = self.cfg, batch.reward.shape
        value = self.network(batch.obs["obs"], self.critic).squeeze(-1).detach()
        final = self.network(batch.final_obs["obs"], self.critic).squeeze(-1).detach()
        finals = dict(zip(batch.final_index.tolist(), final.tolist(), strict=True))
        advantage = torch.zeros(steps, streams)
        for b in range(streams):
            for first in range(steps):
                weight = 1.0
                for t in range(first, steps):
                    if not batch.valid[t, b]:
                        break
                    successor = finals.get(t * streams + b, float(value[t + 1, b]))
                    delta = batch.reward[t, b] + batch.discount[t, b] * successor - value[t, b]
                    advantage[first, b] += weight * delta
                    weight *= cfg.gamma * cfg.gae_lambda
                    if batch.ended[t, b]:
                        break
        return advantage, value[:-1]

    def update(self, batch, orders):
        cfg = self.cfg
        advantage, value = self.advantages(batch)
        rows = {
            "obs": batch.obs["obs"][:-1],
            "action": batch.action,
            "log_prob": batch.extras["log_prob"],
            "advantage": advantage,
            "target": advantage + value,
            "value": value,
            "valid": batch.valid,
        }
        rows = {name: x.flatten(0, 1) for name, x in rows.items()}
        for order in orders:
            for index in order.chunk(cfg.minibatches):
                index = index[rows["valid"][index]]
                mb = {name: x[index] for name, x in rows.items()}
                scaled = (mb["advantage"] - mb["advantage"].mean()) / (mb["advantage"].std() + 1e-8)
                log_prob, entropy = self.log_prob(mb["obs"], mb["action"])
                ratio = (log_prob - mb["log_prob"]).exp()
                surrogate = torch.min(ratio * scaled, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * scaled)
                new_value = self.network(mb["obs"], self.critic).squeeze(-1)
                error = (new_value - mb["target"]) ** 2
                if cfg.value_clip:
                    near = mb["value"] + (new_value - mb["value"]).clamp(-cfg.value_clip, cfg.value_clip)
                    error = torch.max(error, (near - mb["target"]) ** 2)
                loss = (
                    -surrogate.mean()
                    + cfg.value_coef * 0.5 * error.mean()
                    - cfg.entropy_coef * entropy.mean()
                )
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, cfg.max_grad_norm)
                self.optimizer.step()


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("value_clip", [0.0, 0.1])
def test_a_whole_update_matches_an_independent_version(autoreset, value_clip):
    config = PPOConfig(rollout_length=16, epochs=3, minibatches=4, lr=1e-2, value_clip=value_clip, **PLAIN)
    learner, batch = rollout(config, Toy("PointMass", 6, limit=5, autoreset=autoreset))
    assert batch.ended.any() and (autoreset == "same_step" or not batch.valid.all())
    plain = PlainPPO(learner)
    state = torch.get_rng_state()
    learner.update(batch)
    torch.set_rng_state(state)
    plain.update(batch, [torch.randperm(batch.reward.numel()) for _ in range(3)])
    ours = [*learner.policy.net.actor.layers, *learner.policy.net.critic.layers, learner.policy.log_std]
    for one, two in zip(ours, plain.parameters, strict=True):
        assert torch.allclose(one, two, atol=1e-5), float((one - two).abs().max())


def test_at_the_first_minibatch_nothing_is_clipped_and_the_loss_is_that_of_the_advantages():
    learner, batch = rollout(PPOConfig(rollout_length=16, entropy_coef=0.0, **PLAIN))
    rows = learner.with_normalized_advantages(learner.prepare(batch))
    _, (kl, outside, policy_loss, _, _) = learner.loss(rows, torch.tensor(0.2))
    assert float(kl) == pytest.approx(0, abs=1e-6) and float(outside) == 0
    assert float(policy_loss) == pytest.approx(0, abs=1e-6)  # minus the mean of normalized advantages
    learner, batch = rollout(PPOConfig(rollout_length=16, normalize_advantages="none", **PLAIN))
    rows = learner.prepare(batch)
    _, (_, _, policy_loss, _, _) = learner.loss(rows, torch.tensor(0.2))
    assert float(policy_loss) == pytest.approx(-float(rows.advantage.mean()), abs=1e-5)


def test_with_one_epoch_one_minibatch_and_no_clip_the_gradient_is_that_of_a2c():
    settings = {
        "rollout_length": 8,
        "epochs": 1,
        "minibatches": 1,
        "gae_lambda": 1.0,
        "normalize_advantages": "none",
    }
    learner, batch = rollout(PPOConfig(clip=0.0, **settings, **PLAIN))
    rows, policy = learner.prepare(batch), learner.policy
    grads, _, _ = learner.value_and_grad(rows, torch.tensor(0.0))
    outputs, value, _ = policy(rows.obs)
    log_prob = policy.distribution.log_prob(outputs, rows.action)
    entropy = policy.distribution.entropy(outputs)
    loss = (-log_prob * rows.advantage + 0.25 * (value - rows.target) ** 2 - 0.01 * entropy).mean()
    expected = torch.autograd.grad(loss, list(policy.parameters()))
    infinite = PPOConfig(clip=1e9, **settings, **PLAIN).algorithm(Toy("PointMass", 6).spec)
    infinite.load_state_dict(copy.deepcopy(learner.state_dict()))
    ratio_grads, _, _ = infinite.value_and_grad(rows, torch.tensor(1e9))
    for a2c, ours, ratio in zip(expected, grads, ratio_grads, strict=True):
        assert torch.allclose(a2c, ours, atol=1e-6) and torch.allclose(a2c, ratio, atol=1e-6)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("valid", [True, False])
def test_a_probability_that_grew_without_bound_leaves_the_gradient_finite(sign, valid):
    learner, batch = rollout(PPOConfig(rollout_length=8, normalize_advantages="none", **PLAIN))
    rows = learner.prepare(batch)
    rows.log_prob[3] -= 300.0  # the exponential of the difference overflows float32
    rows.advantage[3], rows.weight[3] = sign, float(valid)
    grads, loss, _ = learner.value_and_grad(rows, torch.tensor(0.2))
    assert torch.isfinite(loss) and all(torch.isfinite(x).all() for x in grads)


def clock_step(time, limit, next_step):
    """Constant observations, reward 1, truncation every `limit` steps, in either autoreset mode."""
    obs, other = ({"obs": torch.ones(4, 1)} for _ in range(2))
    false, true = torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)
    if not next_step:
        ended = true if (time + 1) % limit == 0 else false
        return Step(obs, other if ended.any() else obs, torch.ones(4), false, ended, true)
    phase = time % (limit + 1)
    if phase == limit:
        return Step(obs, obs, torch.zeros(4), false, false, false)
    return Step(obs, obs, torch.ones(4), false, true if phase == limit - 1 else false, true)


@pytest.mark.parametrize("next_step", [False, True])
@pytest.mark.parametrize("gae_lambda", [0.0, 0.95, 1.0])
def test_the_value_at_time_limits_is_bootstrapped(next_step, gae_lambda):
    config = PPOConfig(
        rollout_length=7, gamma=0.9, gae_lambda=gae_lambda, epochs=4, minibatches=1, lr=0.02, **PLAIN
    )
    torch.manual_seed(0)
    learner = config.algorithm(spec(Discrete(2), 4, 1))
    recorder, time, obs = TrajectoryRecorder(4, TrajectorySpec(7, 0.9)), 0, {"obs": torch.ones(4, 1)}
    for _ in range(300):
        completed = []
        while not completed:
            output = learner.policy.act(obs, None, torch.ones(4))
            recorder.on_action(obs, output)
            completed = recorder.on_step(clock_step(time, 10, next_step))
            time += 1
        learner.update(completed[0])
    value = float(learner.policy(obs)[1][0])
    assert value == pytest.approx(10, abs=0.5)  # a limit that counts as a termination gives 4.1 to 5.3


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("envs", [6, 16])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_replaying_a_stored_rollout_reproduces_what_the_policy_returned(core, autoreset, envs, layers):
    memory = {"core": core, "core_size": 8, "core_layers": layers}
    config = PPOConfig(rollout_length=11, minibatches=2, **memory, **PLAIN)
    env = Toy("PointMass", envs, limit=5, autoreset=autoreset)
    learner, batch = rollout(config, env, steps=3, act=act_with_values)
    assert batch.started[1:].any() and all(x.any() for x in batch.state["core"].values())
    assert len(batch.state["core"]) == layers * (2 if core == "lstm" else 1)
    # Libraries round the last rows differently unless their number is a multiple of the vector width.
    orders = [torch.arange(envs)] + [torch.randperm(envs) for _ in range(3) if envs % 16 == 0]
    for order in orders:
        shuffled = batch.columns(order)
        state = shuffled.state
        for t in range(11):  # as acting does: the same shapes, hence the same bits
            state = learner.policy.reset_state(state, shuffled.started[t])
            obs = {name: x[t] for name, x in shuffled.obs.items()}
            outputs, value, state = learner.policy(obs, state, torch.zeros(1, envs, dtype=torch.bool))
            log_prob = learner.policy.distribution.log_prob(outputs, shuffled.action[t])
            assert torch.equal(log_prob, shuffled.extras["log_prob"][t])
            assert torch.equal(value, shuffled.extras["value"][t])
    for order in (torch.arange(envs), torch.randperm(envs)):  # all steps at once, as the learner does
        shuffled = batch.columns(order)
        outputs, values, _ = evaluate_trajectory(learner.policy, shuffled)
        log_prob = learner.policy.distribution.log_prob(outputs, shuffled.action.flatten(0, 1))
        assert torch.allclose(log_prob, shuffled.extras["log_prob"].flatten(), atol=1e-5)
        assert torch.allclose(values[:-1], shuffled.extras["value"], atol=1e-5)


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_recurrent_cores_match_torch_and_forget_at_episode_starts(core, layers):
    torch.manual_seed(0)
    ours = build_core(core, 5, 4, layers)
    theirs = (nn.LSTM if core == "lstm" else nn.GRU)(5, 4, layers)
    with torch.no_grad():
        for i, layer in enumerate([ours] if layers == 1 else ours.layers):
            layer.bias.normal_()
            layer.bias_h.normal_()
            getattr(theirs, f"weight_ih_l{i}").copy_(layer.weight_x)
            getattr(theirs, f"weight_hh_l{i}").copy_(layer.weight_h)
            getattr(theirs, f"bias_ih_l{i}").copy_(layer.bias)
            getattr(theirs, f"bias_hh_l{i}").zero_()
            if core == "gru":
                getattr(theirs, f"bias_hh_l{i}")[8:] = layer.bias_h
    x = torch.randn(7, 3, 5)
    y, states = ours(x, ours.initial_state(3))
    expected, final = theirs(x)
    assert torch.allclose(y, expected, atol=1e-6)
    for name, last in zip("hc", final if core == "lstm" else (final,), strict=False):
        keys = [name, *(f"{name}{i}" for i in range(2, layers + 1))]
        assert torch.allclose(torch.stack([states[key][-1] for key in keys]), last, atol=1e-6)
    started = torch.zeros(7, 3, dtype=torch.bool)
    started[4, 1] = True
    y, _ = ours(x, ours.initial_state(3), started)
    assert torch.allclose(y[4:, 1], theirs(x[4:, 1:2])[0][:, 0], atol=1e-6)
    assert torch.allclose(y[:, 0], expected[:, 0], atol=1e-6)
    assert torch.equal(states["h" if layers == 1 else f"h{layers}"], ours(x, ours.initial_state(3))[0])


def test_every_layer_forgets_what_was_before_an_episode_start():
    core = build_core("lstm", 5, 4, 3)
    state = {name: torch.randn(2, 4) for name in core.initial_state(2)}
    started = torch.tensor([[True, False]])
    x = torch.randn(1, 2, 5)
    y, states = core(x, state, started)
    fresh, fresh_states = core(x, core.initial_state(2))
    assert torch.equal(y[:, 0], fresh[:, 0]) and not torch.isclose(y[:, 1], fresh[:, 1]).any()
    assert all(torch.equal(states[name][:, 0], x[:, 0]) for name, x in fresh_states.items())


def test_one_layer_has_the_weights_of_older_checkpoints():
    names = {"weight_x", "weight_h", "bias", "bias_h"}
    assert set(build_core("lstm", 5, 4, 1).state_dict()) == names
    assert set(build_core("lstm", 5, 4, 1).initial_state(2)) == {"h", "c"}


@pytest.mark.parametrize("layers", [1, 2])
def test_the_value_at_a_time_limit_uses_the_state_before_it(layers):
    memory = {"core": "lstm", "core_size": 8, "core_layers": layers}
    config = PPOConfig(rollout_length=6, minibatches=1, **memory, **PLAIN)
    learner, batch = rollout(config, Toy("PointMass", 2, limit=4), steps=2)
    _, _, final_values = evaluate_trajectory(learner.policy, batch)
    assert len(final_values)
    for value, index, final in zip(final_values, batch.final_index, batch.final_obs["obs"], strict=True):
        t, b = divmod(int(index), 2)
        state = {"core": {name: x[b : b + 1] for name, x in batch.state["core"].items()}}
        for step in range(t + 1):
            state = learner.policy.reset_state(state, batch.started[step, b : b + 1])
            obs = {"obs": batch.obs["obs"][step, b : b + 1]}
            _, _, state = learner.policy(obs, state, torch.zeros(1, 1, dtype=torch.bool))
        _, expected, _ = learner.policy({"obs": final[None]}, state, torch.zeros(1, 1, dtype=torch.bool))
        assert float(value) == pytest.approx(float(expected), abs=1e-5)


def test_the_learning_rate_follows_the_kl_divergence_within_its_bounds():
    rates = [adapt_learning_rate(1e-3, kl, 0.01) for kl in (0.03, 0.01, 0.003, 0.0)]
    assert rates == pytest.approx([1e-3 / 1.5, 1e-3, 1.5e-3, 1e-3])
    assert adapt_learning_rate(1.2e-5, 1.0, 0.01) == 1e-5 and adapt_learning_rate(9e-3, 1e-4, 0.01) == 1e-2
    assert adapt_learning_rate(9e-4, 1e-4, 0.01, lr_max=1e-3) == 1e-3
    assert adapt_learning_rate(5e-3, 1e-4, 0.01, lr_max=1e-3) == 5e-3  # a rate set by the user is kept


def test_the_highest_learning_rate_is_lower_with_images():
    vectors, images = Toy("PointMass", 2).spec, Toy("Reach", 2).spec
    assert PPOConfig().algorithm(vectors).lr_max == 1e-2
    assert PPOConfig().algorithm(images).lr_max == 1e-3
    assert PPOConfig(lr_max=5e-3).algorithm(images).lr_max == 5e-3


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_first_minibatch_does_not_change_the_learning_rate(core):
    settings = {"rollout_length": 8, "epochs": 1, "core": core, "core_size": 4, "desired_kl": 100.0}
    rates = {}
    for minibatches in (1, 2, 3):
        learner, batch = rollout(PPOConfig(minibatches=minibatches, **settings, **PLAIN))
        value_and_grad = learner.value_and_grad

        def rounded(*args, value_and_grad=value_and_grad):
            grads, loss, (kl, *rest) = value_and_grad(*args)
            return grads, loss, (kl + 1e-7, *rest)

        learner.value_and_grad = rounded
        learner.update(batch)
        rates[minibatches] = learner.lr / learner.cfg.lr
    assert rates == pytest.approx({1: 1.0, 2: 1.5, 3: 2.25})


@pytest.mark.parametrize(("desired_kl", "factor"), [(100.0, 1.5), (1e-9, 1 / 1.5)])
def test_the_learning_rate_can_adapt_once_per_update(desired_kl, factor):
    settings = {"rollout_length": 8, "epochs": 1, "desired_kl": desired_kl, "adapt_lr": "update"}
    for minibatches, expected in ((1, 1.0), (2, factor), (4, factor)):  # one minibatch does not tell
        learner, batch = rollout(PPOConfig(minibatches=minibatches, **settings, **PLAIN))
        learner.update(batch)
        assert learner.lr == pytest.approx(expected * learner.cfg.lr)


@pytest.mark.parametrize("adapt_lr", ["update", "minibatch"])
def test_an_update_that_stops_early_lowers_the_learning_rate(adapt_lr):
    settings = {"rollout_length": 8, "epochs": 3, "desired_kl": 1e-9, "target_kl": 1e-8}
    learner, batch = rollout(PPOConfig(minibatches=2, adapt_lr=adapt_lr, **settings, **PLAIN))
    result = learner.update(batch)
    assert float(result.metrics["policy/gradient_steps"]) < 6
    assert learner.lr == pytest.approx(learner.cfg.lr / 1.5)


def test_statistics_are_merged_after_each_update_and_frozen_otherwise():
    config = PPOConfig(rollout_length=8, hidden=(16,))
    learner, batch = rollout(config, steps=1)
    before = copy.deepcopy(learner.policy.state_dict())
    result = learner.update(batch)  # the first trajectory only initialises them
    assert float(result.metrics["policy/gradient_steps"]) == 0
    normalizer = learner.policy.normalizer
    rows = batch.obs["obs"][:-1][batch.valid]
    assert torch.allclose(normalizer.mean, rows.mean(0), atol=1e-5)
    assert torch.allclose(normalizer.var, rows.var(0, correction=0), atol=1e-4)
    assert all(
        torch.equal(x, before[name])
        for name, x in learner.policy.state_dict().items()
        if not name.startswith("normalizer")
    )
    learner.policy.act(batch.obs | {"obs": batch.obs["obs"][0] * 100}, None, torch.zeros(6))
    assert torch.allclose(normalizer.mean, rows.mean(0), atol=1e-5)
    assert float(normalizer.count) == len(rows)


def test_rewards_are_divided_by_the_standard_deviation_of_returns():
    learner, batch = rollout(
        PPOConfig(rollout_length=8, normalize_observations=False, gae_lambda=0.0, hidden=(16,))
    )
    rows = learner.prepare(batch)
    std = batch.extras["episode_return"][batch.valid].std(correction=0)
    _, values, final = evaluate_trajectory(learner.policy, batch)
    successors = values[1:].clone()
    successors.view(-1)[batch.final_index] = final
    expected = batch.reward / (std + 1e-4) + batch.discount * successors
    assert torch.allclose(rows.target.view_as(expected), expected, atol=1e-4)


def test_metrics_of_values_ignore_rows_that_are_not_steps():
    torch.manual_seed(0)
    value, target = torch.randn(2, 50)
    weight = (torch.arange(50) % 3 > 0).float()
    target[weight == 0] = 1e6
    kept = weight > 0
    expected = 1 - (target - value)[kept].var() / target[kept].var()
    assert float(explained_variance(value, target, weight)) == pytest.approx(float(expected), abs=1e-5)
    for rows in (0, 1):  # a rollout of one step of one env, and one that only resets it
        weight = (torch.arange(50) < rows).float()
        assert float(explained_variance(value, target, weight)) == 0
    config = PPOConfig(rollout_length=12, lr=1e-6, **PLAIN)
    learner, batch = rollout(config, Toy("PointMass", 4, limit=3, autoreset="next_step"))
    assert not batch.valid.all()
    rows = learner.prepare(batch)
    mean = float(learner.update(batch).metrics["value/mean"])
    assert mean == pytest.approx(float(rows.target[rows.weight > 0].mean()), abs=1e-6)


def test_a_target_kl_stops_the_update():
    learner, batch = rollout(PPOConfig(rollout_length=16, epochs=50, lr=0.05, target_kl=0.01, **PLAIN))
    steps = float(learner.update(batch).metrics["policy/gradient_steps"])
    assert 1 <= steps < 50


def test_learning_rate_and_clip_fall_linearly_to_zero():
    config = PPOConfig(rollout_length=8, anneal_steps=480, anneal_clip=True, **PLAIN)
    learner, batch = rollout(config)
    for expected in (1.0, 0.9, 0.8):
        learner.update(batch)
        assert learner.lr == pytest.approx(config.lr * expected)
    learner.env_steps = 10_000
    learner.update(batch)
    assert learner.lr == 0 and learner.lr_fraction == 0


@pytest.mark.parametrize(
    "config, numbers",
    [
        (PPOConfig(rollout_length=10, minibatches=7), "4, 5, 6"),
        (PPOConfig(core="gru", minibatches=4), "2, 3, 6"),
    ],
)
def test_minibatches_that_do_not_divide_the_rollout_are_refused_with_numbers_that_do(config, numbers):
    reason = config.indivisible_reason(6)
    assert reason is not None and numbers in reason and str(config.minibatches) in reason
    assert PPOConfig(rollout_length=10, minibatches=6).indivisible_reason(6) is None


def test_divisors_of_a_huge_batch_are_found_at_once():
    reason = PPOConfig(rollout_length=100_000, minibatches=7).indivisible_reason(2**20)
    assert reason is not None and "; 4, 5, 8 would" in reason


def test_two_schedules_of_the_learning_rate_are_refused():
    reason = PPOConfig(desired_kl=0.01, anneal_steps=1000).unsupported_reason(spec())
    assert reason is not None and "--desired-kl" in reason and "--anneal-steps" in reason


def test_a_saved_learner_continues_equal():
    config = PPOConfig(rollout_length=8, hidden=(16,), desired_kl=0.01)
    learner, batch = rollout(config)
    learner.update(batch)
    other = config.algorithm(Toy("PointMass", 6).spec)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    for each in (learner, other):
        torch.manual_seed(3)
        each.update(batch)
        each.update(batch)
    assert learner.lr == other.lr != config.lr
    for one, two in zip(learner.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_policy_mixes_sampled_and_most_probable_actions_by_row():
    policy = PPOConfig(**PLAIN).policy(spec(Discrete(5)))
    obs = {"obs": torch.randn(6, 3)}
    greedy = policy.act(obs, None, torch.zeros(6)).action
    mixed = torch.stack([policy.act(obs, None, torch.tensor([0.0, 1.0] * 3)).action for _ in range(60)])
    assert (mixed[:, ::2] == greedy[::2]).all() and (mixed[:, 1::2] != greedy[1::2]).any()


@pytest.mark.parametrize("actions", [1, 4, 17])
def test_the_initial_noise_of_an_action_falls_with_the_number_of_actions(actions):
    env = spec(Continuous(actions))
    policy = PPOConfig(log_std_init=None).policy(env)
    assert policy.log_std.exp().square().sum().item() == pytest.approx(math.sqrt(actions))
    assert PPOConfig(log_std_init=-1.0).policy(env).log_std.tolist() == [-1.0] * actions


def test_a_core_without_hidden_layers_reads_the_observations():
    config = PPOConfig(rollout_length=8, minibatches=1, hidden=(), core="gru", core_size=4)
    learner, batch = rollout(config)
    learner.update(batch)
    assert learner.policy.net.shared_layer is None


def test_a_clip_range_that_cannot_fall_is_refused():
    reason = PPOConfig(anneal_clip=True).unsupported_reason(Toy("PointMass", 2).spec)
    assert reason is not None and "--anneal-steps" in reason


@pytest.mark.parametrize("separate", [False, True])
def test_gradients_of_actor_and_critic_are_clipped_together_or_apart(separate):
    config = PPOConfig(
        rollout_length=8, max_grad_norm=1e-3, separate_grad_clip=separate, optimizer="adam", **PLAIN
    )
    learner, batch = rollout(config)
    rows = learner.prepare(batch)
    grads, _, _ = learner.value_and_grad(rows, torch.tensor(0.2))
    learner.optimizer.step(grads, torch.zeros(()))
    norms = [
        torch.stack([learner.optimizer._grads[index].norm() for index in group]).norm().item()
        for group in clip_groups(learner.policy)
    ]
    if separate:
        assert norms == pytest.approx([1e-3, 1e-3], rel=1e-3)
    else:
        assert math.hypot(*norms) == pytest.approx(1e-3, rel=1e-3) and min(norms) < 0.999e-3


def test_advantages_can_be_normalized_over_the_batch():
    learner, batch = rollout(PPOConfig(rollout_length=8, normalize_advantages="batch", **PLAIN))
    raw, _ = rollout(PPOConfig(rollout_length=8, normalize_advantages="none", **PLAIN))
    raw.policy.load_state_dict(learner.policy.state_dict())
    valid = batch.valid.flatten()
    expected = raw.prepare(batch).advantage[valid]
    expected = (expected - expected.mean()) / expected.std()
    assert torch.allclose(learner.prepare(batch).advantage[valid], expected, atol=1e-4)
