"""TD3 with memory: whole updates against an independent version, targets, delays and exploration."""

import copy
from dataclasses import replace

import pytest
import torch
from memory_cases import (
    ACTIONS,
    SMALL,
    SPEC,
    STREAMS,
    copies,
    critic_loss,
    features,
    head,
    n_step_target,
    sequences,
    steps_of,
)

from troop.algorithms import TD3GRUConfig

CONFIG = TD3GRUConfig(**SMALL)
LOG_UNIFORM = replace(CONFIG, std_min=0.0, std_max=3.2, std_distribution="log_uniform")


def learner_and_batch(config=CONFIG, seed=0):
    torch.manual_seed(seed)
    learner = config.algorithm(SPEC)
    return learner, sequences(learner.policy)


def plain_targets(target_actor, target_critic, batch, cfg):
    """Return {(t, b): y} of all steps; draws the same noise as the learner."""
    _, actor_next = features(target_actor, batch, "actor", cfg)
    _, critic_next = features(target_critic, batch, "critic", cfg)
    _, every = steps_of(batch, cfg.burn_in)
    noise = (torch.randn(len(every), ACTIONS) * cfg.policy_noise).clamp(-cfg.noise_clip, cfg.noise_clip)
    values = {}
    for row, (t, b) in enumerate(every):
        action = (head(target_actor, actor_next[t, b], "head.net").tanh() + noise[row]).clamp(-1, 1)
        x = torch.cat((critic_next[t, b], action))
        q = min(float(head(target_critic, x, "head.nets", i)[0].detach()) for i in (0, 1))
        values[t, b] = q
    steps, _ = steps_of(batch, cfg.burn_in)
    return {(t, b): n_step_target(batch, values, t, b, cfg.n_step) for t, b in steps}


def plain_update(learner, batch, updates):
    """Return actor, critic and the last priorities after updates in plain PyTorch, and target networks."""
    cfg = learner.cfg
    actor, critic = copies(learner.actor), copies(learner.critic)
    target_actor, target_critic = (
        {name: x.detach().clone() for name, x in each.items()} for each in (actor, critic)
    )
    actor_adam, critic_adam = (
        torch.optim.Adam(list(x.values()), 1e-2, betas=(0.9, 0.999), eps=1e-8) for x in (actor, critic)
    )
    for update in range(1, updates + 1):
        targets = plain_targets(target_actor, target_critic, batch, cfg)
        loss, priority = critic_loss(critic, targets, batch, cfg)
        critic_adam.zero_grad()
        loss.backward()
        critic_adam.step()
        if update % cfg.policy_delay:
            continue
        own, _ = features(actor, batch, "actor", cfg)
        others, _ = features(critic, batch, "critic", cfg)
        steps, _ = steps_of(batch, cfg.burn_in)
        values = []
        for t, b in steps:
            u = head(actor, own[t, b], "head.net")
            x = torch.cat((others[t, b].detach(), u.tanh()))
            penalty = torch.stack([(abs(each) - 1.5) ** 2 * (abs(each) > 1.5) for each in u]).mean()
            values.append(head(critic, x, "head.nets", 0)[0] - cfg.preactivation_penalty * penalty)
        actor_adam.zero_grad()
        (-torch.stack(values).mean()).backward()
        actor_adam.step()
        with torch.no_grad():
            for target, online in ((target_actor, actor), (target_critic, critic)):
                for name, x in target.items():
                    x.lerp_(online[name], cfg.tau)
    return actor, critic, target_actor, target_critic, priority


@pytest.mark.parametrize(
    "settings",
    [
        {"burn_in": 0},
        {"burn_in": 3, "input_shortcut": True},
        {"n_step": 3, "preactivation_penalty": 0.5, "actor_init": 3.0},  # some actions are saturated
    ],
)
def test_whole_updates_match_an_independent_version(settings):
    learner, batch = learner_and_batch(replace(CONFIG, **settings))
    torch.manual_seed(1)
    *expected, priority = plain_update(learner, batch, 4)
    torch.manual_seed(1)
    results = [learner.update(batch) for _ in range(4)]
    modules = (learner.actor, learner.critic, learner.target_actor, learner.target_critic)
    for module, weights in zip(modules, expected, strict=True):
        for name, x in module.named_parameters():
            assert torch.allclose(x, weights[name], atol=1e-5), (name, (x - weights[name]).abs().max())
    assert torch.allclose(results[-1].priority, priority, atol=1e-4)


def test_actor_and_targets_move_only_on_every_second_update():
    learner, batch = learner_and_batch()
    before = copy.deepcopy(learner.state_dict())
    learner.update(batch)
    for name in ("target_actor", "target_critic"):
        assert all(
            torch.equal(x, before[name][key]) for key, x in getattr(learner, name).state_dict().items()
        )
    assert all(torch.equal(x, before["policy"][f"actor.{k}"]) for k, x in learner.actor.state_dict().items())
    metrics = learner.update(batch).metrics
    assert not torch.equal(learner.actor.head.net.layers[0], before["policy"]["actor.head.net.layers.0"])
    assert {"loss/policy", "policy/saturation"} <= metrics.keys()


def target_of(learner, batch):
    from troop.algorithms.memory_policy import Sequences

    torch.manual_seed(5)
    rows = Sequences.of(learner.policy, batch, learner.cfg.burn_in)
    return learner.target(rows).view(-1, STREAMS)


def test_targets_at_terminations_and_time_limits():
    learner, batch = learner_and_batch()
    burn_in, y = learner.cfg.burn_in, target_of(learner, batch)
    assert y[5 - burn_in, 2] == batch.reward[5, 2]  # terminated: no bootstrap

    def changed(obs=None, final=None):
        other = copy.deepcopy(batch)
        if obs is not None:
            other.obs["obs"][obs] += 1.0
        if final is not None:
            other.final_obs["obs"][final] += 1.0
        return (target_of(learner, other) != y).nonzero().tolist()

    # A time limit with a reset within the step: the target reads the final observation, not the next entry.
    assert changed(final=0) == [[4 - burn_in, 3]]
    assert [4 - burn_in, 3] not in changed(obs=(5, 3))
    # A time limit followed by a row for the reset: the target reads the next entry.
    assert [5 - burn_in, 4] in changed(obs=(6, 4))
    # The memory does not carry over an episode start, and carries over all else.
    assert not any(b == 3 and t >= 5 - burn_in for t, b in changed(obs=(4, 3)))
    assert [7 - burn_in, 0] in changed(obs=(0, 0))
    # Padding before the start of an episode has no effect.
    assert not changed(obs=(1, 1))


@pytest.mark.parametrize("field", ["reward", "action", "discount"])
def test_rows_that_are_no_steps_have_no_effect(field):
    learner, batch = learner_and_batch()
    changed = copy.deepcopy(batch)
    getattr(changed, field)[~batch.valid] += 0.5
    results = []
    for each in (batch, changed):
        torch.manual_seed(3)
        results.append((learner.value_and_grad(each), learner.actor_value_and_grad(each)))
    for one, two in zip(*results, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(one[0], two[0], strict=True))


def test_exploration_noise_is_added_per_row_and_clipped():
    torch.manual_seed(0)
    policy = CONFIG.policy(SPEC)
    obs, state = {"obs": torch.randn(1, 3).expand(3000, 3)}, policy.initial_state(3000)
    explore = torch.tensor([0.0, 0.3, float("inf")]).repeat_interleave(1000)
    action = policy.act(obs, state, explore).action
    greedy = policy.act(obs, state, torch.zeros(3000)).action
    assert torch.equal(action[:1000], greedy[:1000]) and action.abs().max() <= 1
    assert torch.allclose((action - greedy)[1000:2000].std(0), torch.tensor(0.3), atol=0.05)
    assert torch.allclose(action[2000:].square().mean(0), torch.tensor(1 / 3), atol=0.05)


def test_each_episode_draws_its_noise():
    cpu = torch.device("cpu")
    drawn = replace(CONFIG, std_min=0.05, std_max=3.2).exploration.initial(20_000, cpu)
    assert drawn.median() == pytest.approx(1.625, abs=0.05)  # the middle
    drawn = replace(LOG_UNIFORM, std_min=0.05).exploration.initial(20_000, cpu)
    assert drawn.min() >= 0.05 and drawn.max() <= 3.2
    assert drawn.median() == pytest.approx(0.4, abs=0.02)  # the middle of the logarithms


def test_held_noise_is_part_of_the_state():
    config = replace(CONFIG, noise_repeats=8)
    policy = config.policy(SPEC)
    output = policy.act({"obs": torch.randn(4, 3)}, policy.initial_state(4), torch.ones(4))
    assert set(output.state) == {"actor", "critic", "noise"}
    assert set(CONFIG.policy(SPEC).initial_state(4)) == {"actor", "critic"}


@pytest.mark.parametrize(
    "config, sentence",
    [
        (replace(CONFIG, overlap=2), "burn_in <= overlap < length, not 3, 2 and 8"),
        (replace(CONFIG, overlap=8), "not 3, 8 and 8"),
        (replace(CONFIG, std_min=0.5), "std_min 0.5 is above std_max 0.1"),
        (LOG_UNIFORM, "needs a std_min above 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(config, sentence):
    assert sentence in config.unsupported_reason(SPEC)
