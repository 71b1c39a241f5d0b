"""C51: Bellemare, Dabney, Munos 2017, "A Distributional Perspective on Reinforcement Learning".

DQN whose net says how likely each of a row of returns is; what differs stands here. docs/algorithms/c51.md.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from troop.algorithms.dqn import DQN, DQNConfig, DQNPolicy
from troop.core.algorithm import PolicyOutput, State
from troop.core.batch import NStep, Transition
from troop.core.config import bounded
from troop.core.env import EnvSpec, Obs
from troop.core.peers import NO_PEERS, Peers
from troop.functional import categorical, td
from troop.nets.noisy import Noise


@dataclass(frozen=True)
class C51Config(DQNConfig):
    """DQN's settings where the paper names no others."""

    atoms: int = bounded(51, low=2, high=4096)
    v_min: float = -10.0
    v_max: float = 10.0
    """Range of the atoms: cover all returns; what lies outside counts as the nearest end."""
    normalize_rewards: bool = False
    """Divide rewards so that returns fit the atoms: for tasks whose scale is not known."""
    loss: Literal["cross_entropy"] = "cross_entropy"  # type: ignore[assignment] # there is no other here
    optimizer: Literal["adam", "rmsprop", "rmsprop_tf"] = "adam"
    eps: float = bounded(0.01 / 32, above=0)
    epsilon_end: float = bounded(0.01, low=0, high=1)

    @property
    def experience(self) -> NStep:
        """n-step transitions, their rewards scaled to the atoms if asked for."""
        reach = min(abs(self.v_min), abs(self.v_max)) if self.normalize_rewards else None
        return dataclasses.replace(super().experience, scale_rewards_to=reach)

    def unsupported_reason(self, spec: EnvSpec) -> str | None:
        """As DQN; and a support that is one."""
        if (
            self.atoms < 2
            or self.v_min >= self.v_max
            or (self.normalize_rewards and self.v_min * self.v_max >= 0)
        ):
            return (
                f"v_min {self.v_min:g} to v_max {self.v_max:g} with {self.atoms} atoms is no range of values"
            )
        return super().unsupported_reason(spec)

    def policy(self, spec: EnvSpec) -> C51Policy:
        """The acting part alone."""
        return C51Policy(spec, self)

    def algorithm(self, spec: EnvSpec, peers: Peers = NO_PEERS, device: str = "cpu") -> C51:
        """The learner."""
        return C51(spec, self, peers, device)


class C51Policy(DQNPolicy):
    """Acts on the means of the distributions; does not tell them.

    From means an actor could compute |TD error|, while the learner's priorities are divergences: new rows
    would lie on another scale than those drawn before, be it above or below. Untold, they enter with the
    largest priority yet and have their divergence once they are drawn.
    """

    support: Tensor

    def __init__(self, spec: EnvSpec, cfg: C51Config) -> None:
        super().__init__(spec, cfg)
        support = torch.linspace(cfg.v_min, cfg.v_max, cfg.atoms)
        self.register_buffer("support", support, persistent=False)

    def values(self, outputs: Tensor) -> Tensor:
        """Q [B, A] of logits [B, A, K]."""
        return categorical.mean(outputs.softmax(-1), self.support)

    def act(self, obs: Obs, state: State, explore: Tensor) -> PolicyOutput:
        """As DQN, but for what travels with the action: nothing."""
        acted = super().act(obs, state, explore)
        return PolicyOutput(acted.action, acted.state)


class C51(DQN):
    """The learner: cross entropy of the chosen action's distribution against the projected target."""

    policy: C51Policy

    @torch.no_grad()
    def target(self, batch: Transition, next_obs: Tensor, noise: Noise | None) -> Tensor:
        """The distribution the chosen action's is regressed on, [B, K]."""
        support = self.policy.support
        judged = self.target_q(next_obs, self.target_q.draw())  # [B, A, K]
        values = self.policy(next_obs, noise) if self.cfg.double else self.policy.values(judged)
        best = td.chosen(judged, values.argmax(1)).softmax(-1)
        moved = categorical.shift(batch.reward, batch.discount, support)
        return categorical.project(best, moved, support)

    def errors(self, said: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each row's cross entropy, its divergence as priority, and the mean of its target; all [B].

        The cross entropy is never below the target's own entropy, which is large where much is possible and
        almost nothing where the world ended: by itself it would hide the ends from a prioritized replay.
        """
        rows = categorical.cross_entropy(target, said)
        divergence = (rows.detach() - categorical.entropy(target)).clamp_min_(0)  # KL(target || said)
        return rows, divergence, categorical.mean(target, self.policy.support)
