"""Every algorithm against C3: learns from a batch, is its state, acts row by row, does no I/O."""

import copy
import math
import subprocess
import sys

import pytest
import torch

from troop.algorithms.fast_td3 import FastTD3Config
from troop.core.batch import NStep, Transition
from troop.core.env import Continuous, Discrete, EnvSpec, Field

SMALL = {"actor_hidden": (16,), "critic_hidden": (32,), "v_min": -10.0, "v_max": 10.0, "critic_lr": 3e-3}
ALGORITHMS = {
    "fast_td3": FastTD3Config(atoms=21, **SMALL),
    "fast_td3, mean of its critics": FastTD3Config(
        atoms=21, clipped_double_q=False, layer_norm=True, **SMALL
    ),
    "td3": FastTD3Config(
        atoms=0, target_policy=True, delay_targets=True, policy_noise=0.2, tau=0.005, **SMALL
    ),
    "ddpg": FastTD3Config(
        atoms=0,
        critics=1,
        policy_delay=1,
        policy_noise=0.0,
        target_policy=True,
        tau=0.005,
        weight_decay=0.0,
        **SMALL,
    ),
}
SPEC = EnvSpec("test", {"obs": Field((4,)), "privileged": Field((2,))}, Continuous(3), 5)


@pytest.fixture(params=ALGORITHMS, ids=str)
def config(request):
    return ALGORITHMS[request.param]


def learner(config, seed=0):
    torch.manual_seed(seed)
    return config.algorithm(SPEC)


def batch(seed=0, rows=64):
    """Rewards that can be told from the observation, in a world that always ends: the target is known."""
    random = torch.Generator().manual_seed(seed)
    obs, after = (
        {"obs": torch.randn(rows, 4, generator=random), "privileged": torch.randn(rows, 2, generator=random)}
        for _ in "ab"
    )
    action = torch.rand(rows, 3, generator=random) * 2 - 1
    return Transition(
        obs, action, 3 * obs["obs"][:, 0].tanh() + obs["privileged"][:, 0], torch.zeros(rows), after
    )


def leaves(tree, path=""):
    if isinstance(tree, dict):
        return {k: v for key, x in tree.items() for k, v in leaves(x, f"{path}/{key}").items()}
    return {path: tree}


def test_a_known_batch_lowers_its_loss(config):
    made = learner(config)
    losses = [float(made.update(batch()).metrics["loss/critic"]) for _ in range(150)]
    assert all(math.isfinite(x) for x in losses)
    # A categorical loss ends at the entropy of the targets, a squared one at zero.
    assert losses[-1] < (0.75 if config.atoms else 0.2) * losses[0]


def test_metrics_are_scalars_that_nobody_has_read(config):
    metrics = learner(config).update(batch()).metrics
    assert metrics and all(isinstance(x, torch.Tensor) and x.numel() == 1 for x in metrics.values())
    assert not any(x.requires_grad for x in metrics.values())


def test_state_round_trips_and_training_goes_on_bit_equal(config):
    made, other = learner(config), learner(config, seed=9)
    for seed in range(3):
        made.update(batch(seed))
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    for one in (made, other):
        torch.manual_seed(4)
        for seed in range(5):
            one.update(batch(seed))
    here, there = leaves(made.state_dict()), leaves(other.state_dict())
    assert here.keys() == there.keys()
    for path, value in here.items():
        assert isinstance(value, torch.Tensor | int | float | str | bool), path
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(there[path])), path


def test_the_policy_acts_row_by_row(config):
    made, obs = learner(config), batch().obs
    made.update(batch())
    policy, still = made.publishes, torch.zeros(64)
    whole = policy.act(obs, policy.initial_state(64), still).action
    parts = [
        policy.act({k: x[rows] for k, x in obs.items()}, policy.initial_state(32), still[:32]).action
        for rows in (slice(0, 32), slice(32, 64))
    ]
    assert torch.allclose(whole, torch.cat(parts), atol=1e-6)
    assert whole.shape == (64, 3) and whole.abs().max() <= 1


def test_the_policy_alone_loads_what_the_learner_publishes(config):
    made, alone = learner(config), config.policy(SPEC)
    made.update(batch())
    alone.load_state_dict(made.publishes.state_dict())
    obs, still = batch(1).obs, torch.zeros(64)
    assert torch.equal(alone.act(obs, None, still).action, made.publishes.act(obs, None, still).action)


def test_weighted_rows_count_by_their_weight(config):
    sample, weight = batch(), torch.arange(64) % 2 * 2.0
    half = Transition(
        {k: x[1::2] for k, x in sample.obs.items()},
        sample.action[1::2],
        sample.reward[1::2],
        sample.discount[1::2],
        {k: x[1::2] for k, x in sample.next_obs.items()},
    )
    weighted = Transition(
        sample.obs, sample.action, sample.reward, sample.discount, sample.next_obs, weight, torch.arange(64)
    )
    one, other = learner(config), learner(config)
    for made in (
        one,
        other,
    ):  # the normalizer looks at all rows, so it is shown the same ones before and left alone
        made.policy.normalizer.update = lambda x: None
    outcome = one.update_critic(weighted)
    assert float(outcome.metrics["loss/critic"]) == pytest.approx(
        float(other.update_critic(half).metrics["loss/critic"]), rel=1e-4
    )
    assert outcome.priority.shape == (64,) and (outcome.priority >= 0).all()


def test_it_says_what_it_eats_and_what_it_refuses(config):
    assert isinstance(config.experience, NStep)
    assert config.refuse(SPEC) is None
    assert "discrete" in config.refuse(EnvSpec("x", {"obs": Field((4,))}, Discrete(2), 1))


def test_importing_the_algorithms_starts_no_simulator_or_process():
    others = [f"troop.{room}" for room in ("envs", "replay", "roles", "systems", "engines", "logs", "runs")]
    heavy = ["gymnasium", "envpool", "ray", *others]
    code = f"import sys, troop.algorithms; print([name for name in {heavy} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
