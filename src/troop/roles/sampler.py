"""Duet: two collectors in turn, one choosing actions while the other's env steps."""

from __future__ import annotations

from troop.core.batch import Rollout
from troop.core.role import Metrics
from troop.roles.collector import Collector


class DoubleBufferedSampler:
    """Half of the envs each: the simulator never waits for the policy, nor the policy for the simulator.

    Each half sees the world exactly as a Collector alone would: an action is chosen on the newest
    observation of its own half. What is gained is that the two kinds of work happen at the same time
    (SEED RL and APPO call it double buffering).
    """

    def __init__(self, first: Collector, second: Collector) -> None:
        self.stepping, self.waiting = first, second
        self.stepping.send()

    def step(self) -> tuple[list[Rollout], Metrics]:
        """One vector step of one half: its pieces and metrics."""
        action = self.waiting.act()  # while the other half steps
        pieces, metrics = self.stepping.recv()
        self.waiting.env.send(action)
        self.stepping, self.waiting = self.waiting, self.stepping
        return pieces, metrics

    def close(self) -> None:
        """Let the envs go."""
        self.stepping.close()
        self.waiting.close()
