"""Small DQN, C51 and Rainbow learners whose updates can be computed by hand."""

import torch

from troop.algorithms import C51Config, DQNConfig, RainbowConfig
from troop.core.batch import Transition
from troop.core.env import Discrete, EnvSpec, Field

SPEC = EnvSpec("small", {"obs": Field((3,))}, Discrete(4), 4)
SMALL = {"hidden": (16, 8)}


def learner(kind=DQNConfig, seed=0, spread=0.4, spec=SPEC, **changes):
    """Return a learner whose target network is perturbed by `spread`."""
    torch.manual_seed(seed)
    agent = kind(**(SMALL | changes)).algorithm(spec)
    with torch.no_grad():
        for parameter in agent.target_q.parameters():
            parameter.add_(torch.randn_like(parameter) * spread)
    return agent


def batch(rows=16, seed=0, index=False, weight=None):
    random = torch.Generator().manual_seed(seed)
    obs, after = ({"obs": torch.randn(rows, 3, generator=random)} for _ in "ab")
    action = torch.randint(4, (rows,), generator=random)
    reward = torch.randn(rows, generator=random) * 2
    discount = torch.where(torch.rand(rows, generator=random) < 0.25, 0.0, 0.9)
    return Transition(obs, action, reward, discount, after, weight, torch.arange(rows) if index else None)


def mean_of(logits, agent):
    """Mean of one distribution, atom by atom."""
    cfg = agent.cfg
    gap = (cfg.v_max - cfg.v_min) / (cfg.atoms - 1)
    return sum(p * (cfg.v_min + k * gap) for k, p in enumerate(logits.softmax(-1).tolist()))


SUPPORT = {"atoms": 11, "v_min": -5.0, "v_max": 5.0}
C51_SMALL = SUPPORT | {"kind": C51Config}
# Rainbow without its extensions is C51; each of them can be switched on again.
C51_PARTS = SUPPORT | {"kind": RainbowConfig, "double": False, "dueling": False, "noisy": 0.0}
