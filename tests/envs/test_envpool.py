import time

import numpy as np
import pytest
import torch

from troop.core.env import Continuous, Discrete, Field
from troop.core.errors import BadInput
from troop.envs import EnvPool
from troop.envs.envpool.adapter import EnvPoolEnv
from troop.envs.seeding import hash_seed
from troop.envs.tensor_env import to_tensors

envpool = pytest.importorskip("envpool")


def test_specs_of_several_families():
    walker = EnvPool("WalkerWalk-v1").spec
    assert (
        walker.obs == {"obs": Field((24,))}
        and walker.action == Continuous(6)
        and walker.episode_limit == 1000
    )
    assert EnvPool("Pong-v5").spec.obs == {"obs": Field((4, 84, 84), torch.uint8, stack=4)}
    assert EnvPool("CartPole-v1").spec.action == Discrete(2)
    assert EnvPool("FrozenLake-v1").spec.obs == {"obs": Field((16,))}
    assert EnvPool("H1JoystickGaitTracking-v1").spec.obs == {"obs": Field((113,))}


@pytest.mark.parametrize(
    ("id", "public", "private"),
    [
        ("G1JoystickFlatTerrain-v1", 103, 216),
        ("T1JoystickFlatTerrain-v1", 85, 180),
        ("Go1JoystickFlatTerrain-v1", 48, 123),
    ],
)
def test_privileged_omits_the_columns_that_obs_contains(id, public, private):
    cfg = EnvPool(id, 2, 1)
    assert cfg.spec.width("obs") == public and cfg.spec.width("privileged") == private - public
    env = EnvPoolEnv(cfg, 0)
    step = env.reset(0)
    env.close()
    pool = envpool.make_gymnasium(id, num_envs=2, seed=hash_seed(0))
    raw, _ = pool.reset()
    joined = np.concatenate([step.obs["obs"], step.obs["privileged"]], 1)
    assert np.array_equal(joined, raw["privileged_state"].astype(np.float32))


@pytest.mark.parametrize("id", ["HalfCheetah-v5", "WalkerWalk-v1", "LunarLander-v3", "Pong-v5"])
def test_rows_equal_single_envs(id):
    """Row i equals EnvPool's env with seed + i, in the spec's order of keys, including end and reset."""
    settings = (("max_episode_steps", 6),)
    cfg = EnvPool(id, 3, 2, settings)
    env = to_tensors(EnvPoolEnv(cfg, 9), "cpu")
    singles = [
        envpool.make_gymnasium(id, num_envs=1, seed=hash_seed(9) + i, **dict(settings)) for i in range(3)
    ]
    keys = [k[4:] for k in envpool.make_spec(id).state_array_spec if k.startswith("obs:")]

    def flat(raw):
        arrays = [raw[k].reshape(1, -1) for k in keys] if keys else [raw]
        return torch.from_numpy(np.concatenate(arrays, axis=1)).to(cfg.spec.obs["obs"].dtype)

    step = env.reset(9)
    assert torch.equal(step.obs["obs"], torch.cat([flat(single.reset()[0]) for single in singles]))
    random = torch.Generator().manual_seed(0)
    for _ in range(16):
        if isinstance(cfg.spec.action, Discrete):
            action = torch.randint(cfg.spec.action.choices, (3,), generator=random)
        else:
            action = torch.rand(3, cfg.spec.action.size, generator=random) * 2 - 1
        step = env.step(action)
        results = [single.step(a.numpy()) for single, a in zip(singles, action.split(1), strict=True)]
        assert torch.equal(step.obs["obs"], torch.cat([flat(r[0]) for r in results]))
        was_reset = torch.tensor([int(r[4]["elapsed_step"][0]) == 0 for r in results])
        assert torch.equal(~step.valid, was_reset)
        rewards = torch.tensor([float(r[1][0]) for r in results])
        assert torch.equal(step.reward, rewards.masked_fill(was_reset, 0.0))
    env.close()


def test_lost_lives_terminate_and_an_invalid_row_follows():
    cfg = EnvPool("Breakout-v5", 2, 1, (("episodic_life", True),))
    env = cfg.make(0)
    before = env.reset(0)
    ends = 0
    for i in range(250):
        step = env.step(torch.tensor([i % 4, 1]))
        if i:
            assert torch.equal(~step.valid, before.terminated | before.truncated)
        ends += int(step.terminated.sum())
        before = step
    assert ends > 1


class FakePool:
    """Stores the last action that was sent."""

    def send(self, action):
        self.action = action

    def close(self):
        pass


@pytest.mark.parametrize(
    ("id", "high"), [("Humanoid-v5", 0.4), ("Pendulum-v1", 2.0), ("HalfCheetah-v5", 1.0)]
)
def test_actions_are_clipped_and_rescaled_to_the_bounds(id, high):
    cfg = EnvPool(id, 3, 1)
    env = EnvPoolEnv(cfg, 0)
    env.close()
    env.pool = pool = FakePool()
    size = cfg.spec.action.size
    env.send(np.stack([np.full(size, value, np.float32) for value in (-5.0, 0.0, 1.0)]))
    bound = np.asarray(high, dtype=pool.action.dtype)
    space = envpool.make_spec(id).gymnasium_action_space
    assert pool.action[0].tolist() == space.low.tolist() and pool.action[2].tolist() == space.high.tolist()
    assert np.allclose(pool.action[1], 0) and np.allclose(pool.action[2], bound)


def test_actions_are_rescaled_to_asymmetric_bounds():
    env = EnvPoolEnv(EnvPool("CarRacing-v3", 1, 1), 0)
    env.close()
    env.pool = pool = FakePool()
    env.send(np.array([[0.0, -1.0, 0.0]], np.float32))
    assert pool.action.tolist() == [[0.0, 0.0, 0.5]]


def test_send_returns_before_the_simulator_finishes():
    env = EnvPool("HalfCheetah-v5", 256, 1).make(0)
    env.reset(0)
    action = torch.zeros(256, 6)
    env.step(action)
    send_s = recv_s = 0.0
    for _ in range(5):
        start = time.perf_counter()
        env.send(action)
        middle = time.perf_counter()
        env.recv()
        send_s, recv_s = send_s + middle - start, recv_s + time.perf_counter() - middle
    assert send_s < recv_s / 2


def test_later_steps_do_not_overwrite_earlier_results():
    """EnvPool must not write into arrays whose memory earlier results share."""
    env = EnvPool("Pendulum-v1", 4, 1).make(0)
    env.reset(0)
    results = [env.step(torch.ones(4, 1)) for _ in range(100)]
    copies = [(s.obs["obs"].clone(), s.reward.clone()) for s in results]
    for _ in range(100):
        env.step(-torch.ones(4, 1))
    assert all(
        torch.equal(s.obs["obs"], o) and torch.equal(s.reward, r)
        for s, (o, r) in zip(results, copies, strict=True)
    )


def test_neighbouring_seeds_share_no_env():
    first, second = (EnvPool("Pendulum-v1", 8, 1).make(seed) for seed in (0, 1))
    one, two = first.reset(0).obs["obs"], second.reset(1).obs["obs"]
    assert not (one[:, None] == two[None]).all(dim=2).any()


def test_user_errors_are_explained():
    with pytest.raises(BadInput, match="did you mean 'WalkerWalk-v1'"):
        _ = EnvPool("WalkrWalk-v1").spec
    with pytest.raises(BadInput, match="did you mean 'push_enable'"):
        _ = EnvPool("G1JoystickFlatTerrain-v1", settings=(("push_enabled", False),)).spec
    with pytest.raises(BadInput, match="num_envs"):
        _ = EnvPool("Pendulum-v1", settings=(("num_envs", 3),)).spec
    with pytest.raises(BadInput, match="has 2 players"):
        _ = EnvPool("Go9x9-v1").spec
