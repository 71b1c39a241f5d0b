"""VectorEnvs around a VectorEnv."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from troop.core.env import EnvSpec, Obs, Step, VectorEnv
from troop.core.errors import SetupProblem, TrainingFault

RESTARTS = 5  # a simulator that is still not finite after so many resets is broken, not unlucky


class EnvGuard:
    """The env inside, but a row that comes back NaN or infinite is reset and marked `valid=False`.

    About one row in many millions of a physics simulator explodes; unguarded, it poisons the replay.
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env = env
        self.spec: EnvSpec = env.spec

    def reset(self, seed: int) -> Step:
        """Start every env anew; all rows `valid=False`."""
        return self._guard(self.env.reset(seed))

    def send(self, action: Tensor) -> None:
        """Begin a step."""
        self.env.send(action)

    def recv(self) -> Step:
        """The answer to the last `send`, finite throughout."""
        return self._guard(self.env.recv())

    def step(self, action: Tensor) -> Step:
        """`send` and `recv` in one."""
        self.env.send(action)
        return self._guard(self.env.recv())

    def restart(self, rows: Tensor) -> Obs:
        """Reset only these rows; their first observations, finite throughout."""
        obs = self.env.restart(rows)
        for _ in range(RESTARTS):
            bad = ~_finite_rows(obs)
            if not bool(bad.any()):
                return obs
            fresh = self.env.restart(rows[bad.to(rows.device)])
            obs = {name: _replaced(value, bad, fresh[name]) for name, value in obs.items()}
        if bool(_finite_rows(obs).all()):
            return obs
        raise SetupProblem(
            f"Env '{self.spec.id}' gives NaN or infinite observations right after a reset, "
            f"{RESTARTS} times in a row; check the simulator and its settings."
        )

    def close(self) -> None:
        """Give back threads and memory; may be called twice."""
        self.env.close()

    def _guard(self, step: Step) -> Step:
        self._check(step.obs, "obs")
        # A sum is not finite if any addend is not; a sum that merely overflows is cleared by the slow path.
        total = step.reward.sum()
        for value in step.obs.values():
            total = total + value.sum() if value.is_floating_point() else total
        if step.next_obs is not step.obs:
            self._check(step.next_obs, "next_obs")
            for value in step.next_obs.values():
                total = total + value.sum() if value.is_floating_point() else total
        return step if math.isfinite(float(total)) else self._heal(step)

    def _heal(self, step: Step) -> Step:
        bad = ~(_finite_rows(step.obs) & _finite_rows(step.next_obs) & torch.isfinite(step.reward))
        if not bool(bad.any()):
            return step
        fresh = self.restart(bad.nonzero().squeeze(1).cpu())
        obs = {name: _replaced(value, bad, fresh[name]) for name, value in step.obs.items()}
        same = step.next_obs is step.obs
        next_obs = obs if same else {k: _replaced(v, bad, fresh[k]) for k, v in step.next_obs.items()}
        return dataclasses.replace(
            step,
            obs=obs,
            next_obs=next_obs,
            reward=step.reward.masked_fill(bad, 0.0),
            terminated=step.terminated & ~bad,
            truncated=step.truncated & ~bad,
            valid=step.valid & ~bad,
            faults=step.faults + int(bad.sum()),
        )

    def _check(self, obs: Obs, what: str) -> None:
        for name, field in self.spec.obs.items():
            value = obs.get(name)
            if value is None:
                raise TrainingFault(f"Env '{self.spec.id}' stopped giving '{name}' in its {what}.")
            expected = (self.spec.envs, *field.shape)
            if tuple(value.shape) != expected or value.dtype != field.dtype:
                raise TrainingFault(
                    f"Env '{self.spec.id}' gave {what}['{name}'] as {value.dtype} {tuple(value.shape)}; "
                    f"its spec says {field.dtype} {expected}."
                )


def _finite_rows(obs: Obs) -> Tensor:
    """[N] bool: rows in which every number of every observation is finite."""
    rows = [torch.isfinite(v.flatten(1)).all(dim=1) for v in obs.values()]
    return torch.stack(rows).all(dim=0)


def _replaced(value: Tensor, rows: Tensor, fresh: Tensor) -> Tensor:
    """A copy in which the rows marked True are `fresh`."""
    copy = value.clone()
    copy[rows] = fresh.to(copy.dtype)
    return copy
