"""An env whose observations identify the env instance and the step; it can fail and slow down on purpose."""

import dataclasses
import itertools
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from troop.core.env import OBS, Discrete, EnvSpec, Field, Step
from troop.core.numpy_view import NumPyView
from troop.envs import EnvGuard
from troop.envs.tensor_env import to_tensors

EPISODE_STEPS = 37
FAULT_STEP = 30  # step of an instance at which a fault happens


@dataclass(frozen=True)
class TracedEnvConfig:
    """Each env that is ever made is an instance with a number; `directory` has a file with its step count."""

    directory: str
    envs: int = 2
    seconds: float = 0.0  # duration of a vector step
    slow: tuple[int, ...] = ()  # instances whose steps take twenty times as long
    faults: tuple[str, ...] = ()  # faults of the first, second, ... instance that reaches FAULT_STEP
    id: str = "test:TracedEnv"

    @property
    def spec(self):
        return EnvSpec(self.id, {OBS: Field((3,))}, Discrete(2), self.envs)

    def make(self, seed, device="cpu"):
        return to_tensors(EnvGuard(NumPyView(TracedEnv(self))), device)

    def with_envs(self, envs):
        return dataclasses.replace(self, envs=envs)

    def for_evaluation(self):
        """Return a config whose instances are counted in a subdirectory."""
        (Path(self.directory) / "evaluation").mkdir(exist_ok=True)
        return dataclasses.replace(self, directory=f"{self.directory}/evaluation", faults=(), slow=())


class TracedEnv:
    """Observations are (instance, env, step); the reward is twice the step plus the action."""

    def __init__(self, config):
        self.config, self.spec, self.action = config, config.spec, None

    def reset(self, seed):
        self.instance, self.file = self._next_number("instance")
        self.step_number = 0
        false = torch.zeros(self.config.envs, dtype=torch.bool)
        return Step(self._obs(), self._obs(), torch.zeros(self.config.envs), false, false, false)

    def _next_number(self, suffix):
        """Return the lowest number that no other process has taken, and its open file."""
        for number in itertools.count():
            try:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
                return number, os.open(f"{self.config.directory}/{number}.{suffix}", flags)
            except FileExistsError:
                continue

    def _obs(self):
        rows = [[self.instance, row, self.step_number] for row in range(self.config.envs)]
        return {OBS: torch.tensor(rows, dtype=torch.float32)}

    def send(self, action):
        self.action = action

    def recv(self):
        time.sleep(self.config.seconds * (20 if self.instance in self.config.slow else 1))
        fault = self._next_fault() if self.step_number == FAULT_STEP and self.config.faults else None
        self._fail(fault)
        reward = 2.0 * self.step_number + self.action.float()
        last = self.step_number % EPISODE_STEPS == EPISODE_STEPS - 1
        terminated = torch.full((self.config.envs,), last)
        self.step_number += 1
        os.pwrite(self.file, struct.pack("<q", self.step_number), 0)
        obs = self._obs()
        if fault == "nan":
            obs[OBS][0, 1] = float("nan")
        if fault == "shape":
            obs[OBS] = obs[OBS][:, :2]
        return Step(obs, obs, reward, terminated, torch.zeros_like(terminated), torch.ones_like(terminated))

    def _next_fault(self):
        number, _ = self._next_number("fault")
        if number >= len(self.config.faults):
            return None
        os.pwrite(self.file, struct.pack("<qq", self.step_number, number + 1), 0)
        return self.config.faults[number]

    def _fail(self, fault):
        if fault == "raise":
            raise OSError("the simulator crashed")
        if fault == "abort":
            os.abort()
        while fault == "hang":
            time.sleep(1)

    def step(self, action):
        self.send(action)
        return self.recv()

    def restart(self, rows):
        return {OBS: self._obs()[OBS][rows]}

    def close(self):
        """Leave the files as they are."""


def steps_taken(directory):
    """Return the number of steps of each instance, whether their rows were sent or not."""
    steps = {}
    for path in Path(directory).glob("*.instance"):
        data = path.read_bytes()
        steps[int(path.stem)] = struct.unpack("<q", data[:8])[0] if data else 0
    return steps


def failed_instances(directory):
    """Return the instances that failed, in the order of `faults`."""
    failed = {}
    for path in Path(directory).glob("*.instance"):
        if len(data := path.read_bytes()) == 16:
            failed[struct.unpack("<qq", data)[1]] = int(path.stem)
    return [failed[number] for number in sorted(failed)]


def check_replay_rows(state, envs):
    """Check every row of a replay's state; return the steps of each instance that it holds, of env 0.

    Asserts that the fields of a row belong together, that no row is stored twice, and that the rows of a
    stream are consecutive steps: only after a closing row may steps be missing or another instance start.
    """
    storage, steps, found = state["storage"], {}, set()
    assert max(storage["rows_written"].tolist()) < storage["length"], "the ring has wrapped around"
    for stream, written in enumerate(storage["rows_written"].tolist()):
        previous = None
        obs, action, reward, flags = (
            storage[name][stream, :written].tolist()
            for name in ("rows", "separate_action", "reward", "flags")
        )
        for i in range(written):
            instance, env, step = (int(x) for x in obs[i])
            closing = bool(flags[i] & 4)
            assert env == stream % envs and (closing or (instance, env, step) not in found)
            if previous is not None:
                last_instance, last_step, closed = previous
                continues = instance == last_instance and step == last_step + 1
                new_start = closed and (instance != last_instance or step > last_step)
                assert continues or new_start, (previous, instance, step)
            if not closing:
                terminated = step % EPISODE_STEPS == EPISODE_STEPS - 1
                assert reward[i] == 2 * step + action[i] and bool(flags[i] & 1) == terminated
                found.add((instance, env, step))
                if env == 0:
                    steps.setdefault(instance, []).append(step)
            previous = (instance, step, closing)
    return steps
