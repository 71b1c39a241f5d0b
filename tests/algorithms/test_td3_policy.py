import sys

import pytest
import torch
from td3_cases import batch, config, learner, spec

from troop.core.env import Continuous, Discrete, EnvSpec, Field


def policy(**changes):
    torch.manual_seed(0)
    return config(**changes).policy(spec())


def test_noise_has_the_standard_deviation_of_its_row():
    agent, rows = policy(), 40_000
    obs = {"obs": torch.zeros(rows, 3)}
    sigma = torch.where(torch.arange(rows) % 2 == 0, 0.05, 0.4)
    torch.manual_seed(1)
    noise = agent.act(obs, None, sigma).action - agent.act(obs, None, torch.zeros(rows)).action
    assert noise[::2].std().item() == pytest.approx(0.05, rel=0.03)
    assert noise[1::2].std().item() == pytest.approx(0.4, rel=0.03)
    assert torch.corrcoef(noise[1::2].T)[0, 1].abs() < 0.03  # noise is independent per action dimension


def test_rows_without_exploration_are_exact_beside_exploring_rows():
    agent, obs = policy(), batch(6).obs
    still = agent.act(obs, None, torch.zeros(6)).action
    mixed = agent.act(obs, None, torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0, 0.5])).action
    assert torch.equal(mixed[::2], still[::2]) and (mixed[1::2] != still[1::2]).all()


def test_evaluation_is_noise_free_and_repeatable():
    agent, obs = policy(), batch(6).obs
    state = torch.get_rng_state()
    first, second = (agent.act(obs, None, torch.zeros(6)).action for _ in range(2))
    assert torch.equal(first, second) and torch.equal(state, torch.get_rng_state())


def test_noisy_actions_are_clipped_only_with_clip_actions():
    obs, loud = batch(500).obs, torch.full((500,), 3.0)
    assert policy().act(obs, None, loud).action.abs().max() > 1
    assert policy(clip_actions=True).act(obs, None, loud).action.abs().max() <= 1


def test_std_range_is_the_exploration_range():
    exploration = config(std_min=0.12, std_max=0.34).exploration
    assert (exploration.low, exploration.high) == (0.12, 0.34)
    assert exploration.per_env(3) == pytest.approx((0.12, 0.23, 0.34))


def test_logarithm_of_the_std_is_uniform():
    wide = config(std_min=0.05, std_max=3.2, std_distribution="log_uniform")
    assert wide.exploration.per_env(7) == pytest.approx((0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2))
    drawn = wide.exploration.initial(100_000, torch.device("cpu"))
    assert drawn.min() >= 0.05 and drawn.max() <= 3.2
    assert (drawn < 0.4).float().mean().item() == pytest.approx(0.5, abs=0.01)
    zero = config(std_min=0.0, std_max=1.0, std_distribution="log_uniform")
    assert "std_min above 0" in zero.unsupported_reason(spec())


def test_experience_follows_from_the_config():
    experience = config(n_step=3, gamma=0.9, bootstrap_on_truncation=False).experience
    assert (experience.n, experience.gamma, experience.bootstrap_on_truncation) == (3, 0.9, False)
    assert experience.scale_rewards_to is None
    assert config(normalize_rewards=True, v_min=-5, v_max=20).experience.scale_rewards_to == 5


def test_unsupported_envs_are_rejected_by_name():
    box, image = Field((3,)), Field((84, 84))
    discrete = EnvSpec("Cat", {"obs": box}, Discrete(3), 1)
    assert "Cat has discrete actions" in config().unsupported_reason(discrete)
    assert "image" in config().unsupported_reason(EnvSpec("Cat", {"obs": image}, Continuous(2), 1))
    assert "not a range" in config(v_min=3.0, v_max=3.0).unsupported_reason(spec())
    assert config().unsupported_reason(spec()) is None


def losses(**changes):
    agent = learner(policy_delay=2, **changes)
    torch.manual_seed(5)
    found = []
    for update in range(10):
        metrics = agent.update(batch(32, seed=update)).metrics
        found += [float(metrics[name]) for name in ("loss/critic", "loss/policy") if name in metrics]
    return found


def compiler_missing():
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError):
        return True
    return False


def test_compiled_losses_equal_eager_ones():
    if compiler_missing():
        pytest.skip("no C++ compiler")
    settings = {"policy_noise": 0.3, "lr_end": 0.5, "lr_updates": 10}  # the same noise with both
    assert losses(compile=True, **settings) == pytest.approx(losses(**settings), rel=1e-4, abs=1e-5)


def test_losses_can_be_compiled_between_two_updates():
    if compiler_missing():
        pytest.skip("no C++ compiler")
    agent, plain = (learner(policy_noise=0.3, compile=mode) for mode in ("auto", False))
    for update in range(12):
        agent.set_compiled(4 <= update < 8)
        found = []
        for each in (agent, plain):
            torch.manual_seed(update)
            found.append(each.update(batch(32, seed=update)).metrics["loss/critic"].item())
        assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert agent.compile_error is None


@pytest.mark.parametrize("mode", ["auto", True])
def test_a_failed_compilation_is_kept_if_the_mode_is_auto(mode, monkeypatch):
    from torch._inductor.exc import InductorError

    def fail(*_):
        raise InductorError(RuntimeError("no space left"), None)

    module = sys.modules["troop.algorithms.optim.value_and_grad"]
    monkeypatch.setattr(module, "_compiled", lambda function, device: fail)
    agent = learner(compile=mode, policy_noise=0.0)
    agent.set_compiled(True)
    if mode is True:
        with pytest.raises(InductorError):
            agent.update(batch(32))
        return
    expected = learner(policy_noise=0.0).update(batch(32)).metrics["loss/critic"]
    assert agent.update(batch(32)).metrics["loss/critic"] == expected
    assert "no space left" in agent.compile_error


def test_bf16_losses_are_near_float32_ones():
    plain, amp = losses(policy_noise=0.0), losses(policy_noise=0.0, amp=True)
    assert amp != plain
    assert amp == pytest.approx(plain, rel=0.03, abs=0.05)


def test_infinite_exploration_is_a_uniformly_random_action():
    agent, rows = policy(), 20_000
    obs = {"obs": torch.zeros(rows, 3)}
    explore = torch.where(torch.arange(rows) % 2 == 0, torch.inf, 0.0)
    action = agent.act(obs, None, explore).action
    assert torch.equal(action[1::2], agent.act(obs, None, torch.zeros(rows)).action[1::2])
    random = action[::2]
    assert random.abs().max() <= 1 and random.mean().abs() < 0.02
    assert random.var().item() == pytest.approx(1 / 3, rel=0.03)


def test_random_steps_precede_the_mixed_noise():
    exploration = config(random_steps=100, std_min=0.2, std_max=0.4).exploration
    values = exploration.initial(8, torch.device("cpu"))
    assert values.isinf().all()
    values = exploration.update(values, torch.ones(8, dtype=torch.bool), 96)
    assert values.isinf().all()
    values = exploration.update(values, None, 104)
    assert ((values >= 0.2) & (values <= 0.4)).all()
    assert torch.equal(exploration.update(values, None, 112), values)
    assert exploration.share(4).env_steps == 25 and max(exploration.per_env(3)) == 0.4
