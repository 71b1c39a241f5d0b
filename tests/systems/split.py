"""An algorithm in two halves that learns nothing and tells everything: each net counts its own updates."""

import time
from dataclasses import dataclass

import torch
from torch import nn

from troop.core.algorithm import PolicyOutput, UpdateResult
from troop.core.batch import NStep
from troop.core.exploration import PerEpisodeUniform


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
        return PolicyOutput(noise.clamp(-1, 1))


class PartialLearner:
    """Takes some time over an update, and remembers what it was given."""

    consecutive_skips = torch.zeros(())

    def __init__(self, module, peer_module, seconds, loss):
        self.module, self.peer_module, self.seconds, self.loss = module, peer_module, seconds, loss
        self.batches, self.followed = [], []

    def update(self, batch):
        if self.seconds:
            time.sleep(self.seconds)
        self.module.updates += 1
        self.batches = [*self.batches[-20:], batch]
        self.followed.append(int(self.peer_module.updates))
        return UpdateResult({f"loss/{self.loss}": batch.obs["obs"].mean() + self.peer_module.updates})

    def state_dict(self):
        return {"module": self.module.state_dict(), "peer_module": self.peer_module.state_dict()}

    def load_state_dict(self, state):
        self.module.load_state_dict(state["module"])
        self.peer_module.load_state_dict(state["peer_module"])


@dataclass(frozen=True)
class Split:
    """Seconds that an update of critics and of the policy takes."""

    critic_s: float = 0.0
    policy_s: float = 0.0
    n: int = 3
    gamma: float = 0.9
    bootstrap_on_truncation: bool = True
    refused: str = ""

    @property
    def experience(self):
        return NStep(self.n, self.gamma, self.bootstrap_on_truncation)

    @property
    def exploration(self):
        return PerEpisodeUniform(0.05, 0.8)

    def unsupported_reason(self, spec):
        return None

    def unsplittable_reason(self):
        return self.refused or None

    def policy(self, spec):
        return Policy(spec.action.size)

    def critic_learner(self, spec, peers=None, device="cpu"):
        policy, critic = self.policy(spec), Net()
        return PartialLearner(critic, policy, self.critic_s, "critic")

    def actor_learner(self, spec, peers=None, device="cpu"):
        policy, critic = self.policy(spec), Net()
        return PartialLearner(policy, critic, self.policy_s, "policy")
