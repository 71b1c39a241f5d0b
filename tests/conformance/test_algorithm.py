"""Conformance of every algorithm: learning, state, row-wise acting, no I/O."""

import copy
import math
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch

from troop.algorithms import C51Config, DQNConfig, FlashSACConfig, RainbowConfig, SACConfig, TD3Config
from troop.core.batch import NStep, Transition
from troop.core.env import Continuous, Discrete, EnvSpec, Field

SMALL = {"actor_hidden": (16,), "critic_hidden": (32,), "v_min": -10.0, "v_max": 10.0, "critic_lr": 3e-3}
CONTINUOUS = {
    "fast_td3": TD3Config(atoms=21, **SMALL),
    "fast_td3, mean of its critics": TD3Config(atoms=21, clipped_double_q=False, layer_norm=True, **SMALL),
    "td3": TD3Config(atoms=0, target_policy=True, delay_targets=True, policy_noise=0.2, tau=0.005, **SMALL),
    "ddpg": TD3Config(
        atoms=0,
        critics=1,
        policy_delay=1,
        policy_noise=0.0,
        target_policy=True,
        tau=0.005,
        weight_decay=0.0,
        **SMALL,
    ),
    "ddpg of pql-d": TD3Config(
        atoms=21, categorical_min="elementwise_min", policy_delay=1, activation="elu", **SMALL
    ),
    "fast_td3, simbav2": TD3Config(
        atoms=21,
        net="simbav2",
        weight_decay=0.0,
        **SMALL | {"actor_hidden": (16,), "critic_hidden": (16, 16)},
    ),
    "fast_td3, simbav2 port": TD3Config(
        atoms=21, net="simbav2_port", weight_decay=0.0, **SMALL | {"critic_hidden": (16, 16)}
    ),
    "sac": SACConfig(**SMALL),
    "fastsac": SACConfig(
        atoms=21,
        clipped_double_q=False,
        activation="silu",
        layer_norm=True,
        actor_init=0.0,
        log_std_max=0.0,
        alpha_init=0.001,
        target_entropy_ratio=0.0,
        **SMALL,
    ),
    "flash_sac": FlashSACConfig(actor_width=8, critic_width=16, atoms=21, v_max=10.0, critic_lr=3e-3),
    "flash_sac, bounded": FlashSACConfig(
        actor_width=8,
        critic_width=16,
        atoms=21,
        v_max=10.0,
        critic_lr=3e-3,
        actor_init=1e-3,
        alpha_min=1e-4,
        shared_repeats=True,
    ),
}
PIXELS = {
    "td3, pixels": TD3Config(atoms=21, random_shift=0, **SMALL),
    "sac, pixels": SACConfig(random_shift=0, normalize_observations=True, **SMALL),
}
ADAM = {"optimizer": "adam", "lr": 3e-3, "hidden": (32,), "target_update_period": 5}
DISCRETE = {
    "dqn": DQNConfig(**ADAM | {"optimizer": "rmsprop", "centered": False}),
    "double, dueling": DQNConfig(double=True, dueling=True, **ADAM),
    "noisy": DQNConfig(noisy=0.1, **ADAM),
    "c51": C51Config(atoms=21, **ADAM),
    "rainbow": RainbowConfig(**ADAM | {"atoms": 21, "noisy": 0.1}),
}
ALGORITHMS = CONTINUOUS | PIXELS | DISCRETE
SPEC = EnvSpec("test", {"obs": Field((4,)), "privileged": Field((2,))}, Continuous(3), 5)
CHOICES = replace(SPEC, action=Discrete(3))
BYTES = EnvSpec("bytes", {"obs": Field((2, 7, 7), torch.uint8)}, Discrete(3), 5)
IMAGES = EnvSpec("images", {"obs": Field((1, 10, 5))}, Discrete(3), 5)
ROBOT = EnvSpec(
    "robot",
    {
        "obs": Field((2, 7, 7), torch.uint8),
        "privileged": Field((2,)),
        "hand.camera": Field((1, 5, 8), torch.uint8),
        "joints": Field((3,)),
    },
    Continuous(3),
    5,
)
CASES = [(name, SPEC) for name in CONTINUOUS] + [
    (name, spec) for name in DISCRETE for spec in (CHOICES, BYTES, IMAGES)
]
CASES += [(name, ROBOT) for name in PIXELS]
CASES += [(name, replace(ROBOT, action=Discrete(3))) for name in ("double, dueling", "c51", "rainbow")]


@dataclass(frozen=True)
class Case:
    """An algorithm config and an env spec it supports."""

    config: object
    spec: EnvSpec

    def learner(self, seed=0):
        torch.manual_seed(seed)
        return self.config.algorithm(self.spec)

    def obs(self, random, rows):
        def draw(field):
            if field.dtype == torch.uint8:
                return torch.randint(0, 256, (rows, *field.shape), dtype=torch.uint8, generator=random)
            return torch.randn(rows, *field.shape, generator=random)

        return {name: draw(field) for name, field in self.spec.obs.items()}

    def batch(self, seed=0, rows=64):
        """Rewards are a function of the observation and every row terminates, so the target is known."""
        random = torch.Generator().manual_seed(seed)
        obs, after = self.obs(random, rows), self.obs(random, rows)
        first = obs["obs"].flatten(1)[:, 0].float()
        reward = 3 * (first / 128 - 1 if obs["obs"].dtype == torch.uint8 else first.tanh())
        if "joints" in obs:
            reward = reward + obs["joints"][:, 0] + obs["hand.camera"].flatten(1)[:, 0] / 128
        if isinstance(self.spec.action, Discrete):  # these algorithms do not read privileged observations
            action = torch.randint(3, (rows,), generator=random)
        else:
            action = torch.rand(rows, 3, generator=random) * 2 - 1
            reward = reward + obs["privileged"][:, 0]
        return Transition(obs, action, reward, torch.zeros(rows), after)


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]} on {case[1].id}")
def case(request):
    name, spec = request.param
    return Case(ALGORITHMS[name], spec)


def leaves(tree, path=""):
    if isinstance(tree, dict):
        return {k: v for key, x in tree.items() for k, v in leaves(x, f"{path}/{key}").items()}
    return {path: tree}


def test_loss_of_a_fixed_batch_decreases(case):
    agent = case.learner()
    losses = [float(agent.update(case.batch()).metrics["loss/critic"]) for _ in range(150)]
    assert all(math.isfinite(x) for x in losses)
    # A categorical loss converges to the entropy of the targets, a squared one to zero.
    assert losses[-1] < (0.75 if getattr(case.config, "atoms", 0) else 0.2) * losses[0]


def test_metrics_are_detached_scalar_tensors(case):
    metrics = case.learner().update(case.batch()).metrics
    assert metrics and all(isinstance(x, torch.Tensor) and x.numel() == 1 for x in metrics.values())
    assert not any(x.requires_grad for x in metrics.values())


@pytest.mark.reliability("R1")
def test_a_restored_algorithm_continues_bit_equal(case):
    agent, other = case.learner(), case.learner(seed=9)
    for seed in range(3):
        agent.update(case.batch(seed))
    other.load_state_dict(copy.deepcopy(agent.state_dict()))
    for one in (agent, other):
        torch.manual_seed(4)
        for seed in range(5):
            one.update(case.batch(seed))
    here, there = leaves(agent.state_dict()), leaves(other.state_dict())
    assert here.keys() == there.keys()
    for path, value in here.items():
        assert isinstance(value, torch.Tensor | int | float | str | bool), path
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(there[path])), path


def test_acting_is_row_wise(case):
    agent, obs = case.learner(), case.batch().obs
    agent.update(case.batch())
    policy, still = agent.policy, torch.zeros(64)
    whole = policy.act(obs, policy.initial_state(64), still).action
    parts = [
        policy.act({k: x[rows] for k, x in obs.items()}, policy.initial_state(32), still[:32]).action
        for rows in (slice(0, 32), slice(32, 64))
    ]
    assert torch.allclose(whole, torch.cat(parts), atol=1e-6)
    if isinstance(case.spec.action, Discrete):
        assert whole.shape == (64,) and whole.dtype == torch.int64 and set(whole.tolist()) <= {0, 1, 2}
    else:
        assert whole.shape == (64, 3) and whole.abs().max() <= 1


def test_a_separate_policy_loads_the_learners_weights(case):
    agent, alone = case.learner(), case.config.policy(case.spec)
    agent.update(case.batch())
    alone.load_state_dict(agent.policy.state_dict())
    obs, still = case.batch(1).obs, torch.zeros(64)
    assert torch.equal(alone.act(obs, None, still).action, agent.policy.act(obs, None, still).action)


def first_update(case, batch):
    """Return the result of the first update, with a normalizer that stays constant: it ignores weights."""
    agent = case.learner()
    if getattr(agent.policy, "normalizer", None) is not None:
        agent.policy.normalizer.update = lambda x, weight: (x.mean(0), x.var(0))
    torch.manual_seed(2)
    return agent.update(batch)


def test_importance_weights_scale_row_losses(case):
    weight = torch.arange(64) % 2 * 2.0
    sample = replace(case.batch(), weight=weight, index=torch.arange(64))
    outcome = first_update(case, sample)
    loss = float(outcome.metrics["loss/critic"])
    if isinstance(case.config, FlashSACConfig):
        # BatchNorm: leaving out rows changes the others. Rewards of rows without weight change nothing, and
        # opposite weights have the mean of the unweighted loss.
        other = replace(sample, reward=torch.where(weight == 0, -9.0, sample.reward))
        assert float(first_update(case, other).metrics["loss/critic"]) == pytest.approx(loss, rel=1e-6)
        other = first_update(case, replace(sample, weight=2 - weight)).metrics["loss/critic"]
        plain = first_update(case, replace(sample, weight=None)).metrics["loss/critic"]
        assert (loss + float(other)) / 2 == pytest.approx(float(plain), rel=1e-4) and loss != float(other)
    else:
        obs, next_obs = ({k: x[1::2] for k, x in each.items()} for each in (sample.obs, sample.next_obs))
        half = Transition(obs, sample.action[1::2], sample.reward[1::2], sample.discount[1::2], next_obs)
        assert loss == pytest.approx(float(first_update(case, half).metrics["loss/critic"]), rel=1e-4)
    assert outcome.priority.shape == (64,) and (outcome.priority >= 0).all()


def test_experience_and_unsupported_reason(case):
    assert isinstance(case.config.experience, NStep)
    assert case.config.unsupported_reason(case.spec) is None
    if isinstance(case.spec.action, Discrete):
        reason = case.config.unsupported_reason(SPEC)
        assert "Use FastTD3, TD3, DDPG, SAC or FlashSAC" in reason
    else:
        reason = case.config.unsupported_reason(CHOICES)
        assert "Use DQN, C51, Rainbow or R2D2" in reason
    assert "PPO, A2C, A3C, IMPALA, APPO and UNREAL take both" in reason


def test_importing_algorithms_imports_no_env_or_engine():
    others = [
        f"troop.{package}" for package in ("envs", "replay", "roles", "systems", "engines", "logs", "runs")
    ]
    heavy = ["gymnasium", "envpool", "ray", *others]
    code = f"import sys, troop.algorithms; print([name for name in {heavy} if name in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
