"""EnvGuard: resets envs whose observations or rewards are not finite, and checks shapes against the spec."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from troop.core.env import EnvSpec, Obs, Step, VectorEnv
from troop.core.errors import SetupProblem, TrainingFault

MAX_RESTARTS = 5  # consecutive resets of a row that is not finite before the env counts as broken


class EnvGuard:
    """Wraps a VectorEnv and resets every row that contains NaN or infinity (a fault).

    Such a row gets `valid` False, so it is never stored. Physics simulators diverge in about one of many
    million rows; without the guard that row would reach the replay buffer and the learner.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.spec: EnvSpec = env.spec

    def reset(self, seed: int) -> Step:
        """Start a new episode in every env; all rows have `valid` False and are finite."""
        return self._guard(self.env.reset(seed))

    def send(self, action: Tensor) -> None:
        """Start a step."""
        self.env.send(action)

    def recv(self) -> Step:
        """Return the result of the last `send`; all rows are finite."""
        return self._guard(self.env.recv())

    def step(self, action: Tensor) -> Step:
        """`send` followed by `recv`."""
        self.env.send(action)
        return self._guard(self.env.recv())

    def restart(self, rows: Tensor) -> Obs:
        """Restart the envs `rows` and return their first observations, all finite.

        Raises SetupProblem if a row is still not finite after `MAX_RESTARTS` further resets.
        """
        obs = self.env.restart(rows)
        for _ in range(MAX_RESTARTS):
            faulty = ~_finite_rows(obs)
            if not bool(faulty.any()):
                return obs
            first_obs = self.env.restart(rows[faulty.to(rows.device)])
            obs = {name: _replace_rows(value, faulty, first_obs[name]) for name, value in obs.items()}
        if bool(_finite_rows(obs).all()):
            return obs
        raise SetupProblem(
            f"Env '{self.spec.id}' returned NaN or infinite observations after each of "
            f"{MAX_RESTARTS + 1} resets in a row; check the simulator and its settings."
        )

    def close(self) -> None:
        """Close the wrapped env; further calls have no effect."""
        self.env.close()

    def _guard(self, step: Step) -> Step:
        self._check_spec(step.obs, "obs")
        # One sum instead of a test of every element: a sum with a NaN or infinite addend is not finite.
        # A sum of finite numbers that overflows is sorted out in `_restart_faulty`.
        total = step.reward.sum()
        for value in step.obs.values():
            total = total + value.sum() if value.is_floating_point() else total
        if step.next_obs is not step.obs:
            self._check_spec(step.next_obs, "next_obs")
            for value in step.next_obs.values():
                total = total + value.sum() if value.is_floating_point() else total
        return step if math.isfinite(float(total)) else self._restart_faulty(step)

    def _restart_faulty(self, step: Step) -> Step:
        faulty = ~(_finite_rows(step.obs) & _finite_rows(step.next_obs) & torch.isfinite(step.reward))
        if not bool(faulty.any()):
            return step
        first_obs = self.restart(faulty.nonzero().squeeze(1).cpu())
        obs = {name: _replace_rows(value, faulty, first_obs[name]) for name, value in step.obs.items()}
        next_obs = obs
        if step.next_obs is not step.obs:
            next_obs = {k: _replace_rows(v, faulty, first_obs[k]) for k, v in step.next_obs.items()}
        return dataclasses.replace(
            step,
            obs=obs,
            next_obs=next_obs,
            reward=step.reward.masked_fill(faulty, 0.0),
            terminated=step.terminated & ~faulty,
            truncated=step.truncated & ~faulty,
            valid=step.valid & ~faulty,
            faults=step.faults + int(faulty.sum()),
        )

    def _check_spec(self, obs: Obs, label: str) -> None:
        """Raise TrainingFault if `obs` lacks an observation of the spec or has another shape or dtype."""
        for name, field in self.spec.obs.items():
            value = obs.get(name)
            if value is None:
                raise TrainingFault(f"Env '{self.spec.id}' returned {label} without '{name}'.")
            expected = (self.spec.envs, *field.shape)
            if tuple(value.shape) != expected or value.dtype != field.dtype:
                raise TrainingFault(
                    f"Env '{self.spec.id}' returned {label}['{name}'] as {value.dtype} {tuple(value.shape)}; "
                    f"its spec declares {field.dtype} {expected}."
                )


def _finite_rows(obs: Obs) -> Tensor:
    """Return bool [N]: True for rows in which all observations are finite."""
    rows = [torch.isfinite(v.flatten(1)).all(dim=1) for v in obs.values()]
    return torch.stack(rows).all(dim=0)


def _replace_rows(value: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    """Return a copy of `value` in which the rows marked by `mask` are `rows`."""
    copy = value.clone()
    copy[mask] = rows.to(copy.dtype)
    return copy
