"""Small FastTD3 learners whose updates can be computed by hand."""

import torch

from troop.algorithms.td3 import TD3Config
from troop.core.batch import Transition
from troop.core.env import Continuous, EnvSpec, Field

SMALL = {
    "actor_hidden": (8,),
    "critic_hidden": (16, 8),
    "atoms": 11,
    "v_min": -10.0,
    "v_max": 10.0,
    "actor_init": 0.3,
}
PLAIN = {"normalize_observations": False, "weight_decay": 0.0, "policy_noise": 0.0}


def spec(privileged=0, envs=4):
    obs = {"obs": Field((3,))} | ({"privileged": Field((privileged,))} if privileged else {})
    return EnvSpec("small", obs, Continuous(2), envs)


def config(**changes):
    return TD3Config(**(SMALL | changes))


def learner(seed=0, privileged=0, spread=4.0, **changes):
    """Return a FastTD3 whose target critics are perturbed by `spread`."""
    torch.manual_seed(seed)
    agent = config(**changes).algorithm(spec(privileged))
    with torch.no_grad():
        for parameter in agent.target_critic.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1 * spread)
    return agent


def batch(rows=16, seed=0, privileged=0, discount=None):
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=random)

    def obs():
        return {"obs": draw(rows, 3)} | ({"privileged": draw(rows, privileged)} if privileged else {})

    here, action, reward = obs(), draw(rows, 2).clamp(-1, 1), draw(rows) * 3
    ended = torch.rand(rows, generator=random) < 0.25
    chosen = torch.where(ended, 0.0, 0.9) if discount is None else torch.full((rows,), discount)
    return Transition(here, action, reward, chosen, obs())


def weights(module):
    """Return a copy of all parameters, concatenated."""
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


def leaves(tree, path=""):
    """All leaves of nested dicts and lists by path."""
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list | tuple):
        items = enumerate(tree)
    else:
        return {path: tree}
    return {k: v for key, value in items for k, v in leaves(value, f"{path}/{key}").items()}


def different_paths(one, other):
    """Return the paths at which two states are not bit-equal."""
    here, there = leaves(one), leaves(other)
    assert here.keys() == there.keys()
    return [
        path
        for path, value in here.items()
        if not (torch.equal(value, there[path]) if isinstance(value, torch.Tensor) else value == there[path])
    ]
