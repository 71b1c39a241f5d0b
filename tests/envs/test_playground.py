import numpy as np
import pytest
import torch

from troop.core.errors import BadInput
from troop.envs import EnvPool, tuned_reward

envpool = pytest.importorskip("envpool")
TABLE = {  # FastTD3's weight, default weight of the task
    "energy": (-5e-5, 0.0),
    "action_rate": (-0.1, 0.0),
    "torques": (-1e-3, 0.0),
    "pose": (-1.0, -0.1),
    "tracking_ang_vel": (1.25, 0.75),
    "tracking_lin_vel": (1.25, 1.0),
    "feet_phase": (1.0, 1.0),
    "ang_vel_xy": (-0.3, -0.15),
    "orientation": (-5.0, -2.0),
}


def _rollout(id, settings):
    """Return rewards [T, N], weighted terms {name: [T, N]} and EnvPool's config; same seed and actions."""
    settings = (*settings, ("push_enable", False))
    cfg = EnvPool(id, 4, 1, settings)
    env = cfg.make_numpy(0).env  # without the guard
    env.reset(0)
    random = np.random.default_rng(0)
    rewards, terms = [], []
    for _ in range(8):
        _, reward, _, _, info = env.pool.step(random.uniform(-0.3, 0.3, (4, cfg.spec.action.size)))
        rewards.append(reward)
        terms.append({key[7:]: value for key, value in info.items() if key.startswith("reward_")})
    env.close()
    config = envpool.make_spec(id, **dict(settings)).config
    return np.stack(rewards), {name: np.stack([t[name] for t in terms]) for name in terms[0]}, config


def test_g1_reward_terms_are_scaled_by_the_tuned_weights():
    """EnvPool's `reward_*` are weighted terms; the reward is their sum times the control time step."""
    id = "G1JoystickFlatTerrain-v1"
    plain, plain_terms, plain_config = _rollout(id, ())
    tuned, tuned_terms, tuned_config = _rollout(id, tuned_reward(id))
    np.testing.assert_allclose(plain, sum(plain_terms.values()) * plain_config.ctrl_dt, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tuned, sum(tuned_terms.values()) * tuned_config.ctrl_dt, rtol=1e-5, atol=1e-6)
    for name, values in tuned_terms.items():
        new, old = TABLE.get(name, (1.0, 1.0))
        if old == 0.0:
            assert not plain_terms[name].any() and (values < 0).any()
        else:
            np.testing.assert_allclose(values, plain_terms[name] * new / old, rtol=1e-6, atol=1e-12)
    # A term is weight x raw value: a doubled weight doubles the term.
    doubled = tuple((key, value * 2 if key == "energy_scale" else value) for key, value in tuned_reward(id))
    np.testing.assert_allclose(_rollout(id, doubled)[1]["energy"], tuned_terms["energy"] * 2, rtol=1e-6)


def test_task_defaults_are_those_of_the_paper():
    config = envpool.make_spec("G1JoystickFlatTerrain-v1").config
    for name, (_, default) in TABLE.items():
        assert getattr(config, f"{name}_scale") == default
    tuned = dict(tuned_reward("G1JoystickRoughTerrain-v1"))
    assert tuned == {f"{name}_scale": value for name, (value, _) in TABLE.items()}


def test_t1_uses_the_g1_weights_and_clips_rewards_at_zero():
    id = "T1JoystickFlatTerrain-v1"
    rewards, terms, config = _rollout(id, tuned_reward(id))
    np.testing.assert_allclose(
        rewards, np.maximum(sum(terms.values()) * config.ctrl_dt, 0), rtol=1e-5, atol=1e-6
    )


def test_other_envs_have_no_tuned_reward():
    assert tuned_reward("WalkerWalk-v1") == () and tuned_reward("toy:Clock") == ()


def _rewards(cfg):
    """Return the rewards [T, N] of fixed actions; same seed."""
    env = cfg.make(0)
    env.reset(0)
    generator = torch.Generator().manual_seed(0)
    shape = (8, cfg.envs, cfg.spec.action.size)
    rewards = [env.step(action).reward for action in torch.rand(shape, generator=generator) * 0.6 - 0.3]
    env.close()
    return torch.stack(rewards)


@pytest.mark.parametrize("id", ["G1JoystickFlatTerrain-v1", "MuJoCoPlayground/T1JoystickFlatTerrain-v1"])
def test_evaluation_uses_the_default_reward_whatever_the_reward_of_training(id):
    no_pushes = (("push_enable", False),)
    tuned = EnvPool(id, 4, 1, no_pushes, reward="tuned")
    default = EnvPool(id, 4, 1, no_pushes)
    assert tuned.for_evaluation() == EnvPool(id, 4, 1).for_evaluation() == default.for_evaluation() == default
    weights_as_settings = EnvPool(id, 4, 1, (*tuned_reward(id), ("tracking_sigma", 0.5)))
    assert weights_as_settings.for_evaluation() == default
    assert not torch.equal(_rewards(tuned), _rewards(default))
    assert torch.equal(_rewards(tuned.for_evaluation()), _rewards(default))


def test_evaluation_keeps_settings_that_are_not_part_of_the_reward():
    id = "BerkeleyHumanoidJoystickFlatTerrain-v1"
    settings = (("action_scale", 0.25), ("pose_scale", -9.0), ("noise_level", 0.0), ("push_enable", True))
    evaluation = EnvPool(id, 4, 1, settings).for_evaluation()
    assert dict(evaluation.settings) == {"action_scale": 0.25, "noise_level": 0.0, "push_enable": False}
    assert evaluation.for_evaluation() is evaluation
    apollo = EnvPool("ApolloJoystickFlatTerrain-v1", 2, 1).for_evaluation()  # its push_enable is a number
    assert dict(apollo.settings) == {"push_enable": 0.0} and apollo.spec.envs == 2
    for other in (EnvPool("Go1JoystickFlatTerrain-v1"), EnvPool("WalkerWalk-v1")):
        assert other.for_evaluation() is other


def test_settings_win_over_the_tuned_weights():
    id = "G1JoystickFlatTerrain-v1"
    options = EnvPool(id, settings=(("pose_scale", -7.0),), reward="tuned").options
    assert dict(options) == dict(tuned_reward(id)) | {"pose_scale": -7.0}


def test_tuned_reward_of_another_task_is_rejected():
    with pytest.raises(BadInput, match=r"--env.reward is tuned but 'WalkerWalk-v1' has no tuned reward"):
        _ = EnvPool("WalkerWalk-v1", reward="tuned").spec
