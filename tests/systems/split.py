"""An algorithm in two halves that learns nothing and tells everything: each net counts its own updates."""

import time
from dataclasses import dataclass

import torch
from torch import nn

from troop.core.algorithm import Acted, Outcome
from troop.core.batch import NStep
from troop.core.exploration import Drawn


class Net(nn.Module):
    """One number that counts, one that was drawn."""

    def __init__(self):
        super().__init__()
        self.register_buffer("updates", torch.zeros(()))
        self.drawn = nn.Parameter(torch.randn(3))


class Policy(Net):
    """Noise as told, around zero."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def initial_state(self, rows):
        return None

    def act(self, obs, state, explore):
        noise = torch.randn(len(explore), self.size) * explore.unsqueeze(-1)
        return Acted(noise.clamp(-1, 1))


class Half:
    """Takes some time over an update, and remembers what it was given."""

    skipped_in_row = torch.zeros(())

    def __init__(self, publishes, follows, seconds, loss):
        self.publishes, self.follows, self.seconds, self.loss = publishes, follows, seconds, loss
        self.batches, self.followed = [], []

    def update(self, batch):
        if self.seconds:
            time.sleep(self.seconds)
        self.publishes.updates += 1
        self.batches = [*self.batches[-20:], batch]
        self.followed.append(int(self.follows.updates))
        return Outcome({f"loss/{self.loss}": batch.obs["obs"].mean() + self.follows.updates})

    def state_dict(self):
        return {"publishes": self.publishes.state_dict(), "follows": self.follows.state_dict()}

    def load_state_dict(self, state):
        self.publishes.load_state_dict(state["publishes"])
        self.follows.load_state_dict(state["follows"])


@dataclass(frozen=True)
class Split:
    """Seconds that an update of critics and of the policy takes."""

    critic_s: float = 0.0
    policy_s: float = 0.0
    n: int = 3
    gamma: float = 0.9
    bootstrap_at_limits: bool = True
    refused: str = ""

    @property
    def experience(self):
        return NStep(self.n, self.gamma, self.bootstrap_at_limits)

    @property
    def exploration(self):
        return Drawn(0.05, 0.8)

    def refuse(self, spec):
        return None

    def refuse_split(self):
        return self.refused or None

    def policy(self, spec):
        return Policy(spec.action.size)

    def critic_half(self, spec, peers=None, device="cpu"):
        policy, critic = self.policy(spec), Net()
        return Half(critic, policy, self.critic_s, "critic")

    def policy_half(self, spec, peers=None, device="cpu"):
        policy, critic = self.policy(spec), Net()
        return Half(policy, critic, self.policy_s, "policy")
