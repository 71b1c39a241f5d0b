"""A reference replay: a list of all rows ever added, with n-step returns computed by a loop over it."""

from dataclasses import dataclass

import torch

from troop.core.batch import NStep, Rollout
from troop.core.env import Continuous, EnvSpec, Field
from troop.replay.uniform import ReplaySize, UniformReplay

STEP, TERMINATE, TRUNCATE, CLOSE = range(4)


@dataclass
class Row:
    """One row; its observation contains `number`, so that a sampled row can be identified."""

    number: int
    reward: float
    kind: int


class History:
    """All rows of some streams, in order; a ring holds the newest `length` of each."""

    def __init__(self, streams, length):
        self.rows = [[] for _ in range(streams)]
        self.length = length

    def spec(self):
        obs = {"obs": Field((3,)), "privileged": Field((1,))}
        return EnvSpec("history", obs, Continuous(2), len(self.rows))

    def replay(self, experience=None, warmup=1, seed=0, length=None):
        size = ReplaySize(length or self.length, warmup)
        return UniformReplay(self.spec(), experience or NStep(), size, seed)

    def rollout(self, streams, kinds):
        """Append a row of the given kind to each of the streams; return the rows as a Rollout."""
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
    def obs(rows):
        x = torch.tensor([[[s, number, number % 5] for s, number in rows]], dtype=torch.float32)
        return {"obs": x, "privileged": x[..., 1:2] * 10 + 1}

    def end_streams(self):
        """Turn the newest row of each stream into a closing row, as a forced reset does."""
        for rows in self.rows:
            if rows:
                rows[-1] = Row(rows[-1].number, 0.0, CLOSE)

    def starts(self, stream, n):
        """Return the rows at which an n-step window may start: stored, not closing, n rows follow."""
        rows = self.rows[stream]
        stored = range(max(0, len(rows) - self.length), len(rows) - n)
        return {i for i in stored if rows[i].kind != CLOSE}

    def n_step_return(self, stream, start, experience):
        """Return (reward, discount, number of the successor) of the window that starts at row `start`."""
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
        """Compare every transition of the batch with the reference."""
        obs, next_obs = (
            torch.cat((x["obs"], x["privileged"]), -1).tolist() for x in (batch.obs, batch.next_obs)
        )
        transitions = zip(
            obs, batch.action.tolist(), batch.reward.tolist(), batch.discount.tolist(), next_obs, strict=True
        )
        for before, action, reward, discount, after in transitions:
            stream, start = int(before[0]), int(before[1])
            assert start in self.starts(stream, experience.n), (
                f"row {start} of stream {stream} starts no window"
            )
            total, power, successor = self.n_step_return(stream, start, experience)
            assert abs(reward - total / scale) < 1e-4
            assert abs(discount - power) < 1e-6
            assert action == [start + 0.5, -stream]
            assert before == [stream, start, start % 5, start * 10 + 1]
            if power:  # the successor of a termination is not used
                assert after == [stream, successor, successor % 5, successor * 10 + 1]
