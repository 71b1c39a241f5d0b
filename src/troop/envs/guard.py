"""EnvGuard: resets envs whose observations or rewards are not finite, and checks shapes against the spec."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np

from troop.core.env import ACTION_MASK, Discrete, EnvSpec
from troop.core.env_calls import env_call
from troop.core.errors import EnvFault
from troop.core.numpy_env import NumPyEnv, NumPyObs, NumPyStep, replace_rows

MAX_RESTARTS = 5  # consecutive resets of a row that is not finite before the env counts as broken
MAX_FAULTS = 20  # consecutive faulty steps of one row before the env counts as broken
FAULT_FILE = "first_fault.json"


class EnvGuard:
    """Wraps a NumPyEnv and resets every row that contains NaN or infinity (a fault).

    Such a row gets `valid` False, so it is never stored. Physics simulators diverge in about one of many
    million rows; without the guard that row would reach the replay buffer and the learner.
    """

    def __init__(self, env: NumPyEnv) -> None:
        self.env = env
        self.spec: EnvSpec = env.spec
        self.notes: list[str] = getattr(env, "notes", [])
        self.files: dict[str, str] = {}  # the first faulty transition, for the run directory
        self._last_obs: NumPyObs = {}
        self._action: np.ndarray | None = None
        self._steps = 0
        self._streaks: dict[int, tuple[int, int]] = {}  # row: last faulty step, consecutive faulty steps

    def reset(self, seed: int) -> NumPyStep:
        """Start a new episode in every env; all rows have `valid` False and are finite."""
        with env_call(self.spec.id, "reset"):
            step = self._guard(self.env.reset(seed))
        self._last_obs = step.obs
        return step

    def send(self, action: np.ndarray) -> None:
        """Start a step."""
        self._action = action
        with env_call(self.spec.id, "step"):
            self.env.send(action)

    def recv(self) -> NumPyStep:
        """Return the result of the last `send`; all rows are finite."""
        with env_call(self.spec.id, "step"):
            self._steps += 1
            step = self._guard(self.env.recv())
        self._last_obs = step.obs
        return step

    def step(self, action: np.ndarray) -> NumPyStep:
        """`send` followed by `recv`."""
        self.send(action)
        return self.recv()

    def restart(self, rows: np.ndarray) -> NumPyObs:
        """Restart the envs `rows` and return their first observations, all finite.

        Raises EnvFault if a row is still not finite after `MAX_RESTARTS` further resets.
        """
        obs = self.env.restart(rows)
        for _ in range(MAX_RESTARTS):
            faulty = ~_finite_rows(obs)
            if not bool(faulty.any()):
                return obs
            first_obs = self.env.restart(rows[faulty])
            obs = {name: replace_rows(value, faulty, first_obs[name]) for name, value in obs.items()}
        faulty = ~_finite_rows(obs)
        if not bool(faulty.any()):
            return obs
        first = int(np.flatnonzero(faulty)[0])
        raise EnvFault(
            f"Env '{self.spec.id}' returned NaN or infinite observations after each of {MAX_RESTARTS + 1} "
            f"resets in a row: {_first_fault(obs, first)} in row {int(rows[first])}; check the simulator."
        )

    def close(self) -> None:
        """Close the wrapped env; further calls have no effect."""
        with env_call(self.spec.id, "close"):
            self.env.close()

    def _guard(self, step: NumPyStep) -> NumPyStep:
        self._check_spec(step.obs, "obs")
        # One sum instead of a test of every element: a sum with a NaN or infinite addend is not finite.
        # A sum of finite numbers that overflows is sorted out in `_restart_faulty`.
        arrays = [step.reward, *step.obs.values()]
        if step.next_obs is not step.obs:
            self._check_spec(step.next_obs, "next_obs")
            arrays += step.next_obs.values()
        with np.errstate(over="ignore", invalid="ignore"):
            total = sum(float(x.sum()) for x in arrays if x.dtype.kind == "f")
        step = step if math.isfinite(total) else self._restart_faulty(step)
        if ACTION_MASK in step.obs:
            self._check_action_mask(step)
        return step

    def _check_action_mask(self, step: NumPyStep) -> None:
        """Raise EnvFault if the mask of a row that is acted on forbids every choice of an action."""
        action, allowed = self.spec.action, step.obs[ACTION_MASK] > 0.5
        factors = list(action.factors) if isinstance(action, Discrete) else []
        per_factor = sum(factors) == allowed.shape[1]
        parts = np.split(allowed, np.cumsum(factors)[:-1], 1) if per_factor else [allowed]
        stuck = ~np.stack([part.any(1) for part in parts]).all(0)
        if step.next_obs is step.obs:  # final observations are not acted on: the next step resets them
            stuck &= ~(step.terminated | step.truncated)
        if bool(stuck.any()):
            raise EnvFault(
                f"Env '{self.spec.id}' forbids every action in row {int(np.flatnonzero(stuck)[0])} at vector "
                f"step {self._steps}: its action_mask is 0 everywhere; allow at least one action."
            )

    def _restart_faulty(self, step: NumPyStep) -> NumPyStep:
        faulty = ~(_finite_rows(step.obs) & _finite_rows(step.next_obs) & np.isfinite(step.reward))
        if not bool(faulty.any()):
            return step
        self._record_faults(step, faulty)
        first_obs = self.restart(np.flatnonzero(faulty))
        obs = {name: replace_rows(value, faulty, first_obs[name]) for name, value in step.obs.items()}
        next_obs = obs
        if step.next_obs is not step.obs:
            next_obs = {k: replace_rows(v, faulty, first_obs[k]) for k, v in step.next_obs.items()}
        return dataclasses.replace(
            step,
            obs=obs,
            next_obs=next_obs,
            reward=np.where(faulty, np.float32(0), step.reward),
            terminated=step.terminated & ~faulty,
            truncated=step.truncated & ~faulty,
            valid=step.valid & ~faulty,
            faults=step.faults + int(faulty.sum()),
        )

    def _record_faults(self, step: NumPyStep, faulty: np.ndarray) -> None:
        """Keep the first faulty transition; raise EnvFault if a row is faulty in every step."""
        for row in np.flatnonzero(faulty).tolist():
            value = _first_fault(step.next_obs | {"reward": step.reward[:, None]}, row)
            if not self.files and not self._streaks:
                self.files[FAULT_FILE] = self._describe_transition(step, row, value)
            last, count = self._streaks.get(row, (0, 0))
            count = count + 1 if last == self._steps - 1 else 1
            self._streaks[row] = self._steps, count
            if count >= MAX_FAULTS:
                raise EnvFault(
                    f"Env '{self.spec.id}' returned {value} in row {row} in each of {count} steps in a row; "
                    f"the first faulty transition is in {FAULT_FILE} of the run directory."
                )

    def _describe_transition(self, step: NumPyStep, row: int, value: str) -> str:
        """Return one row of a step, with the observation and the action that led to it, as JSON."""
        action = None if self._action is None else self._action[row].tolist()
        transition = {
            "env": self.spec.id,
            "row": row,
            "fault": value,
            "step": self._steps,
            "obs": {name: x[row].tolist() for name, x in self._last_obs.items()},
            "action": action,
            "reward": float(step.reward[row]),
            "next_obs": {name: x[row].tolist() for name, x in step.next_obs.items()},
            "terminated": bool(step.terminated[row]),
            "truncated": bool(step.truncated[row]),
        }
        return json.dumps(transition)  # NaN and Infinity as Python writes and reads them

    def _check_spec(self, obs: NumPyObs, label: str) -> None:
        """Raise EnvFault if `obs` lacks an observation of the spec or has another shape or dtype."""
        for name, field in self.spec.obs.items():
            value = obs.get(name)
            if value is None:
                raise EnvFault(f"Env '{self.spec.id}' returned {label} without '{name}'.")
            expected = (self.spec.envs, *field.shape)
            if tuple(value.shape) != expected or value.dtype != field.dtype_name:
                raise EnvFault(
                    f"Env '{self.spec.id}' returned {label}['{name}'] as {value.dtype} {tuple(value.shape)}; "
                    f"its spec declares {field.dtype_name} {expected}."
                )


def _first_fault(arrays: NumPyObs, row: int) -> str:
    """Return `nan in column 3 of obs['obs']` for the first value of a row that is not finite."""
    for name, value in arrays.items():
        columns = value[row].reshape(-1)
        faults = np.flatnonzero(~np.isfinite(columns))
        if len(faults):
            place = "the reward" if name == "reward" else f"column {int(faults[0])} of obs['{name}']"
            return f"{float(columns[faults[0]])} in {place}"
    return "a value that is not finite"


def _finite_rows(obs: NumPyObs) -> np.ndarray:
    """Return bool [N]: True for rows in which all observations are finite."""
    finite = [np.isfinite(x.reshape(len(x), -1)).all(1) for x in obs.values()]
    return np.asarray(np.stack(finite).all(0))
