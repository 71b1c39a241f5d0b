"""A replay as a list: every row that ever was, and n-step returns by walking along it."""

from dataclasses import dataclass

import torch

from troop.core.batch import NStep, Rollout
from troop.core.env import Continuous, EnvSpec, Field
from troop.replay.uniform import ReplaySize, UniformReplay

STEP, TERMINATE, TRUNCATE, CLOSE = range(4)


@dataclass
class Row:
    """One row; `number` is told by its observation, so that a sampled one can be found again."""

    number: int
    reward: float
    kind: int


class History:
    """All rows of some streams, in order, and how many of them a ring of `length` still holds."""

    def __init__(self, streams, length):
        self.rows = [[] for _ in range(streams)]
        self.length = length

    def spec(self):
        obs = {"obs": Field((3,)), "privileged": Field((1,))}
        return EnvSpec("history", obs, Continuous(2), len(self.rows))

    def replay(self, experience=None, warmup=1, seed=0, length=None):
        size = ReplaySize(length or self.length, warmup)
        return UniformReplay(self.spec(), experience or NStep(), size, seed)

    def piece(self, streams, kinds):
        """Append a row of the given kind to each of the streams; the same as Rows for a replay."""
        for stream, kind in zip(streams, kinds, strict=True):
            number = len(self.rows[stream])
            reward = 0.0 if kind == CLOSE else ((number * 7 + stream * 3) % 11) - 4.0
            self.rows[stream].append(Row(number, reward, kind))
        new = [self.rows[s][-1] for s in streams]
        kind = torch.tensor(kinds)[None]
        return Rollout(
            torch.tensor(streams),
            self.obs([(s, row.number) for s, row in zip(streams, new, strict=True)]),
            torch.tensor(
                [[[row.number + 0.5, -s] for s, row in zip(streams, new, strict=True)]], dtype=torch.float32
            ),
            torch.tensor([[row.reward for row in new]]),
            kind == TERMINATE,
            kind == TRUNCATE,
            kind == CLOSE,
        )

    @staticmethod
    def obs(places):
        x = torch.tensor([[[s, number, number % 5] for s, number in places]], dtype=torch.float32)
        return {"obs": x, "privileged": x[..., 1:2] * 10 + 1}

    def end_streams(self):
        """A forced reset: the newest row is only an observation from now on."""
        for rows in self.rows:
            if rows:
                rows[-1] = Row(rows[-1].number, 0.0, CLOSE)

    def starts(self, stream, n):
        """The rows from which an n-step window may be drawn: held, no closing row, successor written."""
        rows = self.rows[stream]
        held = range(max(0, len(rows) - self.length), len(rows) - n)
        return {i for i in held if rows[i].kind != CLOSE}

    def walk(self, stream, start, experience):
        """(reward, discount, number of the successor) by walking from `start`."""
        rows, total, steps = self.rows[stream], 0.0, 0
        final = {TERMINATE} if experience.bootstrap_on_truncation else {TERMINATE, TRUNCATE}
        while steps < experience.n and rows[start + steps].kind != CLOSE:
            row = rows[start + steps]
            total += experience.gamma**steps * row.reward
            steps += 1
            if row.kind in final:
                return total, 0.0, start + steps
            if row.kind == TRUNCATE:
                break
        return total, experience.gamma**steps, start + steps

    def check(self, batch, experience, scale=1.0):
        """Every transition of the batch against the walk."""
        obs, next_obs = (
            torch.cat((x["obs"], x["privileged"]), -1).tolist() for x in (batch.obs, batch.next_obs)
        )
        answers = zip(
            obs, batch.action.tolist(), batch.reward.tolist(), batch.discount.tolist(), next_obs, strict=True
        )
        for before, action, reward, discount, after in answers:
            stream, start = int(before[0]), int(before[1])
            assert start in self.starts(stream, experience.n), f"row {start} of stream {stream} is no start"
            total, power, successor = self.walk(stream, start, experience)
            assert abs(reward - total / scale) < 1e-4
            assert abs(discount - power) < 1e-6
            assert action == [start + 0.5, -stream]
            assert before == [stream, start, start % 5, start * 10 + 1]
            if power:  # after the world's end nobody looks at the successor
                assert after == [stream, successor, successor % 5, successor * 10 + 1]
