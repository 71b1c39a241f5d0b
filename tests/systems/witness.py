"""An env whose rows say whose they are and when they were made; it breaks and dawdles as it is told."""

import dataclasses
import itertools
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from troop.core.env import OBS, Discrete, EnvSpec, Field, Step

EPISODE = 37  # steps
BREAKS_AT = 30  # step of a life


@dataclass(frozen=True)
class Witness:
    """Each env that was ever made is a life with a number, and leaves the count of its steps in `folder`."""

    folder: str
    envs: int = 2
    seconds: float = 0.0  # of a vector step
    slow: tuple[int, ...] = ()  # lives that take twenty times as long
    faults: tuple[str, ...] = ()  # what befalls the first, second, ... life to get that far
    id: str = "test:Witness"

    @property
    def spec(self):
        return EnvSpec(self.id, {OBS: Field((3,))}, Discrete(2), self.envs)

    def make(self, seed, device="cpu"):
        return Life(self)

    def with_envs(self, envs):
        return dataclasses.replace(self, envs=envs)

    def for_evaluation(self):
        """The evaluator's envs are counted apart."""
        (Path(self.folder) / "judged").mkdir(exist_ok=True)
        return dataclasses.replace(self, folder=f"{self.folder}/judged", faults=(), slow=())


class Life:
    """The live env: an observation is life, env and step; the reward is twice the step plus the action."""

    def __init__(self, cfg):
        self.cfg, self.spec, self.sent = cfg, cfg.spec, None

    def reset(self, seed):
        self.number, self.file = self._next("life")
        self.step_number = 0
        never = torch.zeros(self.cfg.envs, dtype=torch.bool)
        return Step(self._obs(), self._obs(), torch.zeros(self.cfg.envs), never, never, never)

    def _next(self, what):
        """A number that no other process has, and its file."""
        for number in itertools.count():
            try:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
                return number, os.open(f"{self.cfg.folder}/{number}.{what}", flags)
            except FileExistsError:
                continue

    def _obs(self):
        rows = [[self.number, row, self.step_number] for row in range(self.cfg.envs)]
        return {OBS: torch.tensor(rows, dtype=torch.float32)}

    def send(self, action):
        self.sent = action

    def recv(self):
        time.sleep(self.cfg.seconds * (20 if self.number in self.cfg.slow else 1))
        if self.step_number == BREAKS_AT and self.cfg.faults:
            number, _ = self._next("fault")
            if number < len(self.cfg.faults):
                os.pwrite(self.file, struct.pack("<qq", self.step_number, number + 1), 0)
                self._break(self.cfg.faults[number])
        reward = 2.0 * self.step_number + self.sent.float()
        ended = torch.full((self.cfg.envs,), self.step_number % EPISODE == EPISODE - 1)
        self.step_number += 1
        os.pwrite(self.file, struct.pack("<q", self.step_number), 0)
        obs = self._obs()
        return Step(obs, obs, reward, ended, torch.zeros_like(ended), torch.ones_like(ended))

    def _break(self, how):
        if how == "raise":
            raise OSError("the simulator is gone")
        if how == "abort":
            os.abort()
        while how == "hang":
            time.sleep(1)

    def step(self, action):
        self.send(action)
        return self.recv()

    def restart(self, rows):
        return {OBS: self._obs()[OBS][rows]}

    def close(self):
        """Its file stays as it is."""


def performed(folder):
    """Steps that each life has made, whether its rows ever left or not."""
    found = {}
    for path in Path(folder).glob("*.life"):
        data = path.read_bytes()
        found[int(path.stem)] = struct.unpack("<q", data[:8])[0] if data else 0
    return found


def broken(folder):
    """The lives that were broken, in the order of what befell them."""
    found = {}
    for path in Path(folder).glob("*.life"):
        if len(data := path.read_bytes()) == 16:
            found[struct.unpack("<qq", data)[1]] = int(path.stem)
    return [found[number] for number in sorted(found)]


def examined(state, envs):
    """Look at every row of a replay's state; the steps of each life that it holds, of its first env.

    No row is torn: what it says in observation, action, reward and flags belongs together. None is there
    twice. Rows of a stream are in order, one step after the other; only behind a closing row may steps be
    missing, or another life begin.
    """
    streams, held, seen = state["streams"], {}, set()
    assert max(streams["heads"].tolist()) < streams["length"], "the ring has wrapped"
    for stream, head in enumerate(streams["heads"].tolist()):
        before = None
        obs, action, reward, flags = (
            streams[name][stream, :head].tolist() for name in ("rows", "loose_action", "reward", "flags")
        )
        for i in range(head):
            life, row, step = (int(x) for x in obs[i])
            closing = bool(flags[i] & 4)
            assert row == stream % envs and (closing or (life, row, step) not in seen)
            if before is not None:
                was, at, closed = before
                peer_module = life == was and step == at + 1
                assert peer_module or (closed and (life != was or step > at)), (before, life, step)
            if not closing:
                assert reward[i] == 2 * step + action[i] and bool(flags[i] & 1) == (step % EPISODE == 36)
                seen.add((life, row, step))
                if row == 0:
                    held.setdefault(life, []).append(step)
            before = (life, step, closing)
    return held
