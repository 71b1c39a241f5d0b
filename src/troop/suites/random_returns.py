"""Measure the return of uniformly random actions: `python -m troop.suites.random_returns ENV ...`.

The column of random returns in the tables of suites is the output of this command.
"""

from __future__ import annotations

import sys

import torch

from troop.core.algorithm import Policy, PolicyOutput
from troop.core.batch import State
from troop.core.env import Continuous, EnvSpec, Obs
from troop.core.system import Evaluation
from troop.envs import resolve
from troop.roles.evaluator import first_episodes

EPISODES = 200
ENVS = 50  # that step together; the episodes are played in groups of this size


class UniformPolicy(Policy):
    """Chooses every action with equal probability, whatever the observation."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.space = spec.action

    def act(self, obs: Obs, state: State, explore: torch.Tensor) -> PolicyOutput:
        """Return actions uniform in [-1, 1], or uniform action indices."""
        rows = len(explore)
        if isinstance(self.space, Continuous):
            return PolicyOutput(2 * torch.rand(rows, self.space.size) - 1)
        return PolicyOutput(torch.randint(self.space.choices, (rows,)))


def random_return(env_id: str, episodes: int = EPISODES, seed: int = 1) -> tuple[float, float]:
    """Return mean and standard error of the return of `episodes` whole episodes of random actions."""
    config = resolve(env_id, min(ENVS, episodes)).for_evaluation()
    policy, limit = UniformPolicy(config.spec), Evaluation().step_limit(config.spec)
    groups = []
    for first in range(0, episodes, config.envs):
        env = config.make(seed + first)
        try:
            groups.append(first_episodes(env, policy, seed + first, limit, explore=1.0)[0])
        finally:
            env.close()
    returns = torch.cat(groups)[:episodes]
    return float(returns.mean()), float(returns.std() / len(returns) ** 0.5)


def main() -> None:
    """Print one line per env: id, mean return, standard error."""
    for env_id in sys.argv[1:]:
        mean, error = random_return(env_id)
        print(f"{env_id:28} {mean:10.2f} +- {error:.2f}", flush=True)


if __name__ == "__main__":
    main()
