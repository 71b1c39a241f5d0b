"""A split algorithm that does not learn: modules count their updates, learners keep their batches."""

import time
from dataclasses import dataclass

import torch
from torch import nn

from troop.core.algorithm import Policy, PolicyOutput, UpdateResult
from troop.core.batch import NStep
from troop.core.exploration import PerEpisodeUniform


class CountingCritic(nn.Module):
    """A counter of updates, and random weights that identify the module."""

    def __init__(self):
        super().__init__()
        self.register_buffer("updates", torch.zeros(()))
        self.identity = nn.Parameter(torch.randn(3))


class CountingPolicy(Policy):
    """The same, with actions that are noise of the given scale around zero."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("updates", torch.zeros(()))
        self.identity = nn.Parameter(torch.randn(3))
        self.size = size

    def act(self, obs, state, explore):
        noise = torch.randn(len(explore), self.size) * explore.unsqueeze(-1)
        return PolicyOutput(noise.clamp(-1, 1))


class CountingLearner:
    """Sleeps for `seconds` per update; keeps the last batches and the peer's update count at each update."""

    consecutive_skips = torch.zeros(())

    def __init__(self, module, peer_module, seconds, loss):
        self.module, self.peer_module, self.seconds, self.loss = module, peer_module, seconds, loss
        self.batches, self.peer_versions = [], []

    def update(self, batch):
        if self.seconds:
            time.sleep(self.seconds)
        self.module.updates += 1
        self.batches = [*self.batches[-20:], batch]
        self.peer_versions.append(int(self.peer_module.updates))
        return UpdateResult({f"loss/{self.loss}": batch.obs["obs"].mean() + self.peer_module.updates})

    def state_dict(self):
        return {"module": self.module.state_dict(), "peer_module": self.peer_module.state_dict()}

    def load_state_dict(self, state):
        self.module.load_state_dict(state["module"])
        self.peer_module.load_state_dict(state["peer_module"])


@dataclass(frozen=True)
class CountingConfig:
    """Builds CountingLearners; `critic_s` and `policy_s` are the seconds that an update takes."""

    critic_s: float = 0.0
    policy_s: float = 0.0
    n: int = 3
    gamma: float = 0.9
    bootstrap_on_truncation: bool = True
    unsplittable: str = ""

    @property
    def experience(self):
        return NStep(self.n, self.gamma, self.bootstrap_on_truncation)

    @property
    def exploration(self):
        return PerEpisodeUniform(0.05, 0.8)

    def unsupported_reason(self, spec):
        return None

    def unsplittable_reason(self, spec):
        return self.unsplittable or None

    def policy(self, spec):
        return CountingPolicy(spec.action.size)

    def critic_learner(self, spec, peers=None, device="cpu"):
        policy, critic = self.policy(spec), CountingCritic()
        return CountingLearner(critic, policy, self.critic_s, "critic")

    def actor_learner(self, spec, peers=None, device="cpu"):
        policy, critic = self.policy(spec), CountingCritic()
        return CountingLearner(policy, critic, self.policy_s, "policy")
