"""Updates of FlashSAC, compared with plain PyTorch."""

import copy
import dataclasses
import math

import pytest
import torch
from flash_cases import PlainFlashSAC, config, copies, learner, statistics
from td3_cases import batch, different_paths, spec, weights

from troop.core.batch import Transition
from troop.core.env import Continuous, Discrete, EnvSpec, Field

QUICK = {"actor_lr": 2e-3, "critic_lr": 2e-3, "alpha_lr": 1e-2, "batch_norm_momentum": 0.1, "tau": 0.1}


def every(net):
    """Return parameters and running statistics of a tested network."""
    return torch.cat((copies(net), statistics(net)), 1)


@pytest.mark.parametrize("privileged", [0, 2])
@pytest.mark.parametrize(
    "changes", [{"input_clip": 0.0}, {"lr_updates": 6}, {"policy_delay": 1, "blocks": 1}, {"policy_delay": 3}]
)
def test_whole_updates_equal_plain_pytorch(changes, privileged):
    agent = learner(privileged=privileged, **QUICK | changes)
    plain = PlainFlashSAC(agent, agent.cfg, 3, 3 + privileged, 2)
    for update in range(6):
        sample = batch(32, seed=update, privileged=privileged)
        named = sample.obs, sample.next_obs
        whole = [torch.cat((o["obs"], o["privileged"]), 1) if privileged else o["obs"] for o in named]
        torch.manual_seed(update)
        found = agent.update(sample).metrics
        torch.manual_seed(update)
        expected = plain.update(*(o["obs"] for o in named), *whole, sample)
        assert (
            ("loss/policy" in found) == ("loss/policy" in expected) == (update % agent.cfg.policy_delay == 0)
        )
        for name, value in expected.items():
            assert found[name].item() == pytest.approx(value, rel=1e-4, abs=1e-5)
    pairs = [(agent.policy.actor, [plain.actor]), (agent.critic, plain.critics)]
    for net, nets in pairs:
        expected = torch.stack([torch.cat([p.flatten() for p in one.flat()]) for one in nets])
        assert torch.allclose(copies(net), expected, atol=5e-5)
        assert torch.allclose(statistics(net), torch.stack([one.statistics() for one in nets]), atol=1e-4)
    slow = torch.stack([torch.cat([p.flatten() for p in one.flat()]) for one in plain.targets])
    assert torch.allclose(copies(agent.target_critic), slow, atol=5e-5)
    assert agent.policy.temperature.log_alpha.item() == pytest.approx(plain.log_alpha.item(), abs=1e-5)
    assert abs(plain.log_alpha.item() - math.log(0.01)) > 0.009  # it moved


def test_target_critics_are_averaged_but_not_projected_and_collect_no_statistics():
    agent = learner(**QUICK)
    for update in range(4):
        before = weights(agent.target_critic)
        agent.update(batch(32, seed=update))
        moved = before + 0.1 * (weights(agent.critic) - before)
        assert torch.allclose(weights(agent.target_critic), moved, atol=1e-6)
    assert (agent.target_critic.layers[2].norm(dim=-1) - 1).abs().max() > 1e-5
    assert (agent.critic.layers[2].norm(dim=-1) - 1).abs().max() < 1e-6
    assert not agent.target_critic.running_mean.any()


def test_actor_updates_leave_the_critics_and_critic_updates_leave_the_actor():
    agent, sample = learner(**QUICK), batch(32)
    critic, actor = every(agent.critic), every(agent.policy.actor)
    agent.actor_learner.update_actor(sample)
    assert torch.equal(critic, every(agent.critic)) and not torch.equal(actor, every(agent.policy.actor))
    assert all(parameter.requires_grad for parameter in agent.critic.parameters())
    actor = every(agent.policy.actor)
    agent.critic_learner.update(sample)
    assert torch.equal(actor, every(agent.policy.actor)) and not torch.equal(critic, every(agent.critic))


def test_the_first_update_and_every_policy_delay_th_after_it_includes_the_actor():
    agent = learner(policy_delay=3)
    for update in range(7):
        metrics = agent.update(batch(32, seed=update)).metrics
        assert ("policy/saturation" in metrics) == ("policy/alpha" in metrics) == (update % 3 == 0)


def test_actor_and_temperature_follow_the_whole_learning_rate_schedule():
    """The authors' code steps the schedules only on actor updates, which end at 2.25e-4."""
    agent = learner(lr_updates=20, policy_delay=2)

    def rates():
        optimizers = (
            agent.critic_learner.optimizer,
            agent.actor_learner.optimizer,
            agent.actor_learner.alpha_optimizer,
        )
        return [each.optimizer.param_groups[0]["lr"] for each in optimizers]

    for update in range(22):
        agent.update(batch(8))
        if update == 10:
            assert rates() == pytest.approx([2.25e-4] * 3)
    assert rates() == pytest.approx([1.5e-4] * 3)


@pytest.mark.parametrize("privileged", [0, 2])
def test_split_learners_in_turn_equal_the_whole_algorithm(privileged):
    settings = QUICK | {"policy_delay": 1}
    agent = {}
    for name in ("algorithm", "critic_learner", "actor_learner"):
        torch.manual_seed(0)
        agent[name] = getattr(config(**settings), name)(spec(privileged))
    whole, critic_learner, actor_learner = agent.values()
    torch.manual_seed(1)
    for update in range(6):
        whole.update(batch(32, seed=update, privileged=privileged))
    torch.manual_seed(1)
    for update in range(6):
        sample = batch(32, seed=update, privileged=privileged)
        actor_learner.update(sample)
        critic_learner.peer_module.load_state_dict(copy.deepcopy(actor_learner.module.state_dict()))
        critic_learner.update(sample)
        actor_learner.peer_module.load_state_dict(copy.deepcopy(critic_learner.module.state_dict()))
    assert torch.equal(every(critic_learner.critic), every(whole.critic))
    assert torch.equal(weights(critic_learner.target_critic), weights(whole.target_critic))
    assert torch.equal(every(actor_learner.policy.actor), every(whole.policy.actor))
    assert torch.equal(critic_learner.peer_module.temperature(), whole.policy.temperature())


def test_a_separate_actor_learner_needs_only_observations():
    """PQL's buffer of the actor learner has no next observations: statistics are those of `obs` alone."""
    agent, sample = config().actor_learner(spec()), batch(32)
    nothing = torch.full((32,), math.nan)
    result = agent.update(Transition(sample.obs, nothing[:0], nothing, nothing, {}))
    assert all(value.isfinite() for value in result.metrics.values()) and result.priority is None
    mean = agent.policy.actor.running_mean[:3] / 0.01
    assert torch.allclose(mean, sample.obs["obs"].mean(0), atol=1e-4)


def test_the_published_modules_contain_the_running_statistics():
    agent = learner(**QUICK)
    agent.update(batch(32))
    policy, critic = agent.policy.state_dict(), agent.critic.state_dict()
    assert policy["actor.running_mean"].any() and critic["running_mean"].any()
    assert "temperature.log_alpha" in policy
    alone = config(**QUICK).policy(spec())
    alone.load_state_dict(policy)
    obs, still = batch(8).obs, torch.zeros(8)
    assert torch.equal(alone.act(obs, None, still).action, agent.policy.act(obs, None, still).action)


def test_a_restored_learner_continues_bit_equal():
    agent, other = learner(**QUICK), learner(seed=7, **QUICK)
    for update in range(5):
        agent.update(batch(32, seed=update))
    other.load_state_dict(copy.deepcopy(agent.state_dict()))
    for one in (agent, other):
        torch.manual_seed(2)
        for update in range(4):
            one.update(batch(32, seed=update))
    assert different_paths(agent.state_dict(), other.state_dict()) == []


def test_a_nan_batch_changes_neither_weights_nor_statistics():
    agent = learner(**QUICK)
    for _ in range(2):
        agent.update(batch(32))
    modules = (agent.critic, agent.policy.actor, agent.policy.temperature)
    before = [weights(module) for module in modules]
    bad = batch(32)
    bad.obs["obs"][0] = math.nan
    assert agent.update(bad).metrics["count/skipped_updates"] == 2 and agent.consecutive_skips == 1
    for old, module in zip(before, modules, strict=True):
        assert torch.allclose(old, weights(module), atol=1e-6)
    assert every(agent.critic).isfinite().all() and every(agent.policy.actor).isfinite().all()
    assert agent.update(batch(32)).metrics["count/skipped_updates"] == 0


def test_importance_weights_scale_the_losses_of_rows():
    sample, weight = batch(32), torch.rand(32, generator=torch.Generator().manual_seed(0)) * 2
    agent, index = learner(), torch.arange(32)

    def loss(weights):
        torch.manual_seed(0)
        return agent.critic_learner.loss(dataclasses.replace(sample, weight=weights, index=index))

    rows = torch.stack([loss(32.0 * (index == row))[0] for row in range(32)])
    assert loss(weight)[0].item() == pytest.approx((rows * weight).mean().item(), rel=1e-5)
    assert loss(None)[0].item() == pytest.approx(rows.mean().item(), rel=1e-5)
    priority = loss(weight)[1][0]
    assert priority.shape == (32,) and (priority >= 0).all() and torch.equal(priority, loss(None)[1][0])


@pytest.mark.parametrize("std, up", [(2.0, True), (1e-4, False)])
def test_the_temperature_moves_towards_the_target_entropy(std, up):
    agent = learner(target_std=std, alpha_lr=1e-2, alpha_init=0.3, policy_delay=1)
    alphas = [0.3]
    for update in range(20):
        metrics = agent.update(batch(32, seed=update)).metrics
        assert (metrics["policy/entropy"] < agent.cfg.target_entropy(2)) == up
        alphas.append(float(agent.policy.temperature()))
    assert sorted(alphas, reverse=not up) == pytest.approx(alphas) and alphas[-1] != alphas[0]


def test_alpha_min_bounds_the_temperature():
    """Without a bound alpha falls exponentially while the entropy is above its target."""
    free, bounded = (
        learner(alpha_lr=0.5, target_std=1e-5, alpha_min=minimum, policy_delay=1) for minimum in (0.0, 1e-3)
    )
    for update in range(12):
        for agent in (free, bounded):
            torch.manual_seed(update)
            agent.update(batch(16, seed=update))
    assert free.policy.temperature() < 5e-4
    assert bounded.policy.temperature().item() == pytest.approx(1e-3)


def test_saturation_is_the_share_of_outputs_near_the_ends_of_the_action_range():
    agent, sample = learner(), batch(32)
    with torch.no_grad():
        agent.policy.actor.output_bias[0] = 50.0  # the first of two action dimensions
        agent.policy.actor.layers[-2][1] *= 1e-3
    assert agent.actor_learner.update_actor(sample).metrics["policy/saturation"] == 0.5


def compiler_missing():
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError):
        return True
    return False


def test_compiled_updates_equal_eager_ones():
    from torch._inductor import config as inductor

    if compiler_missing():
        pytest.skip("no C++ compiler")
    settings = QUICK | {"blocks": 1}
    one, other = learner(**settings), learner(compile=True, **settings)
    with inductor.patch(fallback_random=True):  # the random numbers of the eager operations
        for update in range(3):
            found = []
            for agent in (one, other):
                torch.manual_seed(update)
                found.append(agent.update(batch(32, seed=update)).metrics)
            assert found[0].keys() == found[1].keys()
            for name, value in found[0].items():
                assert value.item() == pytest.approx(found[1][name].item(), rel=1e-4, abs=1e-5), name
    assert torch.allclose(every(one.critic), every(other.critic), atol=1e-4)
    assert torch.allclose(every(one.policy.actor), every(other.policy.actor), atol=1e-4)


def test_bf16_losses_are_close_to_exact_ones():
    losses = []
    for amp in (False, True):
        agent = learner(amp=amp, **QUICK)
        torch.manual_seed(0)
        losses.append(agent.update(batch(32)).metrics)
        assert agent.critic.running_mean.dtype == torch.float32
    for name in ("loss/critic", "loss/policy"):
        assert losses[0][name].item() == pytest.approx(losses[1][name].item(), abs=0.1)


def test_unsupported_envs_and_settings_are_rejected():
    box, image = Field((3,)), Field((3, 84, 84))
    cat = EnvSpec("Cat", {"obs": box}, Discrete(3), 1)
    assert "Cat has discrete actions" in config().unsupported_reason(cat)
    assert "image" in config().unsupported_reason(EnvSpec("Cat", {"obs": image}, Continuous(2), 1))
    assert "log_std_max" in config(log_std_min=1.0, log_std_max=1.0).unsupported_reason(spec())
    assert "std_init is 9" in config(actor_init=1e-3, std_init=9.0).unsupported_reason(spec())
    assert config(actor_init=1e-3).unsupported_reason(spec()) is None
