"""A Watch that kills hosts of a running program one after the other, by a plan."""

import os
import signal
from pathlib import Path

from watching import RunObserver


def hosts(launcher):
    """The processes of a launcher's hosts, by name."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            head, _, tail = (path / "stat").read_text().rpartition(") ")
        except OSError:
            continue  # it has ended meanwhile
        state, parent = tail.split()[:2]
        if state != "Z":
            parents[int(path.name)], names[int(path.name)] = int(parent), head.partition("(")[2]
    found = {}
    for pid, name in names.items():
        above = parents[pid]
        while above in parents and above != launcher:
            above = parents[above]
        if above == launcher and not name.startswith("python"):
            found[name] = pid
    return found


class Siege(RunObserver):
    """Strikes when all hosts are back and have moved on since, and ends the run after the last strike."""

    def __init__(self, plan, steps=150, updates=10):
        super().__init__()
        self.plan, self.steps, self.updates = list(plan), steps, updates
        self.struck, self.expected, self.last, self.saves, self.seen = [], 0, {}, 0, set()
        self.mark = None  # where the run stood when it was last struck: steps, updates, saves
        self.done = False

    def log(self, counters, metrics):
        super().log(counters, metrics)
        self.last |= metrics
        living = hosts(os.getpid())
        self.seen |= set(living.values())
        steps, updates, saves = self.mark or (0, 0, 0)
        moved = counters.env_steps >= steps + self.steps and counters.updates >= updates + self.updates
        back = all(
            f"role/{name}/busy" in metrics for name in (self.struck[-1]["victims"] if self.struck else ())
        )
        if not (moved and back) or self.saves <= saves or counters.restarts < self.expected:
            return
        if not self.plan:
            self.done = len(self.evaluations) > self.struck[-1]["evaluations"]
        elif all(name in living for name in self.plan[0]):
            self._strike(self.plan.pop(0), living, counters)

    def _strike(self, victims, living, counters):
        for name in victims:
            os.kill(living[name], signal.SIGKILL)
        self.struck.append(
            {"victims": victims, "counters": counters, "state": self.state, "last": dict(self.last)}
            | {"evaluations": len(self.evaluations)}
        )
        self.expected += len(victims)
        self.mark = (counters.env_steps, counters.updates, self.saves)

    def save(self, counters, state, last):
        super().save(counters, state, last)
        self.saves += 1

    def stop_asked(self):
        return self.done
