"""Whoever looks on while things go wrong, and the program that they go wrong in."""

import os
import signal
from pathlib import Path

from fault_roles import CheckpointSource, Learner, OutlierFilter, Teller

from troop.core.program import Program, Schedule


class Log:
    """A Watch that keeps everything, may kill a host once, and stops after that many further steps."""

    def __init__(self, pids, kill=None, after=30, extend_until=200):
        self.pids, self.kill, self.after, self.extend_until = pids, kill, after, extend_until
        self.last, self.saves, self.notes, self.killed, self.stop_at, self.counters = (
            {},
            [],
            [],
            None,
            None,
            None,
        )

    def log(self, counters, metrics):
        """Keep; kill; see that it came back."""
        self.last |= metrics
        self.counters = counters
        self.pids.extend(int(pid) for name, pid in metrics.items() if name.startswith("pid/"))
        pid = self.last.get(f"pid/{self.kill}")
        if pid and self.killed is None and counters.env_steps >= self.after:
            self.killed = int(pid)
            os.kill(self.killed, signal.SIGKILL)
        if pid and self.killed not in (None, pid) and self.stop_at is None:
            self.stop_at = counters.env_steps + self.extend_until

    def stop_requested(self):
        """Some steps after the return of the killed."""
        return self.stop_at is not None and self.counters.env_steps >= self.stop_at

    def evaluated(self, counters, metrics):
        """Keep."""
        self.last |= metrics

    def save(self, counters, state, last):
        """Keep."""
        self.saves.append(state)

    def restore(self, nodes):
        """Give back the newest."""
        names = tuple(f"{node}." for node in nodes)
        return {key: part for key, part in self.saves[-1].items() if key.startswith(names)}

    def note(self, text):
        """Keep."""
        self.notes.append(text)


class Told(Log):
    """Stops as soon as everything that is to be told was."""

    def __init__(self, pids, names):
        super().__init__(pids)
        self.names = names

    def stop_requested(self):
        """Once all have spoken."""
        return self.names <= set(self.last)


SHARES = ("busy", "waiting", "blocked", "idle", "steps_per_s", "queue", "queue_bytes")
TOLD = {f"role/{name}/{what}" for name in ("keeper", "learner", "teller", "judge") for what in SHARES}


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def troop(**teller):
    program = Program("troop")
    keeper = program.add("keeper", CheckpointSource)
    program.add("learner", Learner, keeper)
    program.add("teller", Teller, keeper, **teller)
    program.add("judge", OutlierFilter, keeper)
    program.schedule("judge", Schedule(env_steps=20))
    return program
