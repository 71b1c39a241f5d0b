"""Envs can be closed twice, before their first step, and between send and recv."""

import pytest
import torch

from troop.core.env import Continuous
from troop.envs import resolve

ENVS = ["toy:PointMass", "toy:Chain", "gym:CartPole-v1", "gym:Pendulum-v1", "envpool:CartPole-v1"]


def make(name):
    if name.startswith("envpool:"):
        pytest.importorskip("envpool")
    return resolve(name, envs=2)


@pytest.mark.reliability("T5")
@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("moment", ["made", "reset", "sent"])
def test_env_is_closed_twice_at_any_moment(name, moment):
    config = make(name)
    env = config.make(0)
    if moment != "made":
        env.reset(0)
    if moment == "sent":
        continuous = isinstance(config.spec.action, Continuous)
        env.send(torch.zeros(2, config.spec.action.size) if continuous else torch.zeros(2, dtype=torch.long))
    env.close()
    env.close()
