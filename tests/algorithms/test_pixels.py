"""SAC and TD3 on images: the critics train the encoder, the actor takes its features; older checkpoints."""

import pytest
import torch

from troop.algorithms import DQNConfig, FlashSACConfig, SACConfig, TD3Config
from troop.algorithms.augmentation import shift_images
from troop.core.batch import Transition
from troop.core.env import Continuous, Discrete, EnvSpec, Field
from troop.core.errors import BadInput

SMALL = {"actor_hidden": (16,), "critic_hidden": (16,), "weight_decay": 0.0, "image_features": 8}
CONFIGS = {"td3": TD3Config(atoms=11, policy_delay=1, **SMALL), "sac": SACConfig(**SMALL)}
FIELDS = {"obs": Field((2, 12, 12), torch.uint8), "speed": Field((3,))}
SPEC = EnvSpec("car", FIELDS, Continuous(2), 4)


def batch(rows=16):
    def obs():
        pixels = torch.randint(0, 256, (rows, 2, 12, 12), dtype=torch.uint8)
        return {"obs": pixels, "speed": torch.randn(rows, 3)}

    action = torch.rand(rows, 2) * 2 - 1
    return Transition(obs(), action, torch.randn(rows), torch.full((rows,), 0.9), obs())


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_encoder_learns_from_the_critic_loss_alone(name):
    torch.manual_seed(0)
    agent, sample = CONFIGS[name].algorithm(SPEC), batch()
    encoder, actor = weights(agent.policy.encoder), weights(agent.policy.actor)
    agent.actor_learner.update_actor(sample.obs)
    assert torch.equal(weights(agent.policy.encoder), encoder)
    assert not torch.equal(weights(agent.policy.actor), actor)
    actor = weights(agent.policy.actor)
    agent.critic_learner.update_critic(sample)
    assert not torch.equal(weights(agent.policy.encoder), encoder)
    assert torch.equal(weights(agent.policy.actor), actor)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_actor_reads_every_observation(name):
    torch.manual_seed(0)
    agent, obs = CONFIGS[name].algorithm(SPEC), batch(4).obs
    for _ in range(5):
        agent.update(batch())

    def act(changed):
        return agent.policy.act(obs | changed, None, torch.zeros(4)).action

    assert not torch.equal(act({}), act({"obs": 255 - obs["obs"]}))
    assert not torch.equal(act({}), act({"speed": obs["speed"] + 1}))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_gradient_of_the_encoder_is_that_of_the_critic_loss(name):
    torch.manual_seed(0)
    agent, sample = CONFIGS[name].algorithm(SPEC), batch()
    torch.manual_seed(1)
    grads, _, _ = agent.critic_learner.value_and_grad(sample)
    torch.manual_seed(1)
    loss, _ = agent.critic_learner.loss(sample)
    parameters = [*agent.critic.parameters(), *agent.policy.encoder.parameters()]
    expected = torch.autograd.grad(loss, parameters)
    assert len(grads) == len(expected) and all(
        torch.equal(a, b) for a, b in zip(grads, expected, strict=True)
    )
    assert all(g.abs().sum() > 0 for g in expected[-4:])  # both convolutions of the small torso


def test_images_of_obs_and_next_obs_are_shifted_independently():
    torch.manual_seed(0)
    sample = batch(64)
    sample = Transition(sample.obs, sample.action, sample.reward, sample.discount, sample.obs)
    shifted = shift_images(sample, ["obs"], 3)
    assert not torch.equal(shifted.obs["obs"], shifted.next_obs["obs"])
    assert shifted.obs["speed"] is sample.obs["speed"]
    assert shift_images(sample, [], 3) is sample and shift_images(sample, ["obs"], 0) is sample


def test_learners_on_separate_hosts_refuse_images():
    for build in (CONFIGS["td3"].critic_learner, CONFIGS["sac"].actor_learner):
        with pytest.raises(BadInput, match="car has images"):
            build(SPEC)


def test_flash_sac_names_the_algorithms_that_take_images():
    assert "sac-pixels" in FlashSACConfig().unsupported_reason(SPEC)


def test_a_q_network_loads_weights_of_a_checkpoint_that_precedes_the_encoder():
    spec = EnvSpec("catch", {"obs": Field((1, 10, 5))}, Discrete(3), 4)
    torch.manual_seed(0)
    agent, other = DQNConfig(hidden=(8,)).algorithm(spec), DQNConfig(hidden=(8,)).algorithm(spec)
    state = agent.state_dict()
    for part, prefix in (("policy", "q."), ("target_q", "")):
        state[part] = {
            key.replace(f"{prefix}encoder.torsos.0.", f"{prefix}torso."): value
            for key, value in state[part].items()
        }
    assert any("torso." in key and "encoder" not in key for key in state["policy"])
    other.load_state_dict(state)
    assert torch.equal(weights(agent.policy), weights(other.policy))
    assert torch.equal(weights(agent.target_q), weights(other.target_q))
