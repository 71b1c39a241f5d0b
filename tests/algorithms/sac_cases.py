"""Small SAC learners whose updates can be computed by hand."""

import torch
from td3_cases import spec

from troop.algorithms.sac import SACConfig

SMALL = {"actor_hidden": (8,), "critic_hidden": (16, 8), "v_min": -10.0, "v_max": 10.0, "actor_init": 0.3}
FAST = {  # FastSAC's choices
    "atoms": 11,
    "clipped_double_q": False,
    "activation": "silu",
    "layer_norm": True,
    "actor_init": 0.0,
    "log_std_max": 0.0,
    "alpha_init": 0.001,
    "target_entropy_ratio": 0.0,
    "beta2": 0.95,
    "normalize_observations": True,
}


def config(**changes):
    return SACConfig(**(SMALL | changes))


def learner(seed=0, privileged=0, **changes):
    """Return a SAC whose target critics are perturbed, so that they differ from the online ones."""
    torch.manual_seed(seed)
    agent = config(**changes).algorithm(spec(privileged))
    with torch.no_grad():
        for parameter in agent.target_critic.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.4)
    return agent
