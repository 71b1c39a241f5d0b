"""A chain of five one-hot states with known values, which every DQN variant must learn."""

import pytest
import torch

from troop.algorithms import C51Config, DQNConfig, RainbowConfig
from troop.core.batch import Transition
from troop.core.env import Discrete, EnvSpec, Field

STATES, LEFT, RIGHT, GAMMA = 5, 0, 1, 0.9
SPEC = EnvSpec("walk", {"obs": Field((STATES,))}, Discrete(2), 1)


def step(state, action):
    """RIGHT of the last state terminates with reward 1; LEFT costs 0.1 and stops at the first state."""
    if action == RIGHT:
        return state + 1, float(state == STATES - 1), state == STATES - 1
    return max(state - 1, 0), -0.1, False


def value_iteration(rounds=500):
    """Value iteration."""
    q = [[0.0, 0.0] for _ in range(STATES + 1)]
    for _ in range(rounds):
        for state in range(STATES):
            for action in (LEFT, RIGHT):
                after, reward, ended = step(state, action)
                q[state][action] = reward + (0.0 if ended else GAMMA * max(q[after]))
    return torch.tensor(q[:STATES])


def transitions(n):
    """Every state and action once, followed by the best action until n steps or termination."""
    rows = []
    for state in range(STATES):
        for action in (LEFT, RIGHT):
            at, total, discount = state, 0.0, 1.0
            for k in range(n):
                at, reward, ended = step(at, action if k == 0 else RIGHT)
                total, discount = total + discount * reward, discount * GAMMA * (not ended)
                if ended:
                    break
            rows.append((state, action, total, discount, min(at, STATES - 1)))
    start, action, reward, discount, end = (torch.tensor(x) for x in zip(*rows, strict=True))
    eye = torch.eye(STATES)
    return Transition({"obs": eye[start]}, action, reward, discount, {"obs": eye[end]})


ADAM = {"optimizer": "adam", "eps": 1e-8, "lr": 0.02, "target_update_period": 25, "hidden": ()}
RMSPROP = DQNConfig(**ADAM | {"optimizer": "rmsprop_tf", "eps": 1e-2, "tau": 0.1})
ATOMS = {"atoms": 41, "v_min": -1.0, "v_max": 2.0}
KINDS = {
    "dqn": DQNConfig(**ADAM),
    "squared": DQNConfig(loss="squared", **ADAM),
    "rmsprop": RMSPROP,
    "double": DQNConfig(double=True, **ADAM),
    "dueling": DQNConfig(dueling=True, **ADAM),
    "deep": DQNConfig(double=True, dueling=True, **ADAM | {"hidden": (32, 32), "lr": 1e-3}),
    "3 steps": DQNConfig(n_step=3, **ADAM),
    "3 steps, double": DQNConfig(n_step=3, double=True, **ADAM),
    "c51": C51Config(**ADAM | ATOMS | {"lr": 0.05}),
    "c51, double, dueling, 3 steps": RainbowConfig(noisy=0.0, **ADAM | ATOMS | {"lr": 0.05}),
    "rainbow": RainbowConfig(**ADAM | ATOMS | {"lr": 0.02, "hidden": (32,)}),
}
CLOSE = {
    "c51": 0.02,
    "c51, double, dueling, 3 steps": 0.02,
    "rainbow": 0.08,
}  # rainbow: parameter noise stays on


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.reliability("N5")
def test_learned_values_equal_value_iteration(name):
    cfg = KINDS[name]
    torch.manual_seed(0)
    agent, batch = cfg.algorithm(SPEC), transitions(cfg.n_step)
    for _ in range(1200):
        agent.update(batch)
    found = agent.policy(torch.eye(STATES)).detach()
    assert (found - value_iteration()).abs().max() < CLOSE.get(name, 0.01), found
    assert (agent.policy.act({"obs": torch.eye(STATES)}, None, torch.zeros(STATES)).action == RIGHT).all()


@pytest.mark.parametrize("cfg", [RMSPROP, C51Config(v_min=0.0, v_max=20.0, **ADAM)])
@pytest.mark.parametrize("bootstraps", [True, False])
@pytest.mark.reliability("N5")
def test_bootstrapping_at_time_limits_gives_r_over_one_minus_gamma(cfg, bootstraps):
    torch.manual_seed(0)
    agent, start, action = cfg.algorithm(SPEC), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    obs, after = ({"obs": torch.eye(STATES)[x]} for x in (start, 1 - start))
    discount = torch.full((4,), 0.9 if bootstraps else 0.0)  # at a time limit, after termination
    for _ in range(1200):
        agent.update(Transition(obs, action, torch.ones(4), discount, after))
    worth = 10.0 if bootstraps else 1.0
    assert agent.policy(torch.eye(STATES)[:2]).flatten().tolist() == pytest.approx([worth] * 4, rel=0.03)
