"""A run in a process of its own, to be signalled: `python launched.py PIDS spawn|forkserver|ray`."""

import os
import signal
import sys
from pathlib import Path

from fault_roles import CheckpointSource, OutlierFilter, Teller

from troop.core.engine import Until
from troop.core.program import Program, Schedule


class RunObserver:
    """Writes down the pids of all hosts; a signal asks for an end."""

    def __init__(self, path, hosts):
        self.path, self.hosts, self.pids, self.asked, self.saved = path, hosts, {}, False, 0

    def log(self, counters, metrics):
        """Once all are known, say so."""
        self.pids |= {name: int(pid) for name, pid in metrics.items() if name.startswith("pid/")}
        if len(self.pids) == self.hosts:
            whole = Path(f"{self.path}.new")
            whole.write_text(" ".join(str(pid) for pid in self.pids.values()))
            whole.rename(self.path)  # whoever waits for it finds all of it

    def evaluated(self, counters, metrics):
        """Nothing."""

    def save(self, counters, state, last):
        """Count."""
        self.saved += 1

    def note(self, text):
        """Nothing."""

    def stop_requested(self):
        """After a signal."""
        return self.asked

    def on_signal(self, *_):
        """Ask for an end."""
        self.asked = True


def program(tellers):
    """Some tellers, a keeper and a judge."""
    made = Program("launched")
    keeper = made.add("keeper", CheckpointSource)
    for i in range(tellers):
        made.add(f"teller{i}", Teller, keeper, name=f"teller{i}")
    made.add("judge", OutlierFilter, keeper)
    made.schedule("judge", Schedule(env_steps=50))
    return made


def main():
    """Run until signalled."""
    from troop.engines import (
        Processes,
        Ray,
    )  # not above: spawned hosts read this file again, and need no torch

    made = program(1 if sys.argv[2] == "ray" else 2)  # each host of Ray takes seconds to start
    watch = RunObserver(sys.argv[1], len(made.nodes))
    signal.signal(signal.SIGINT, watch.on_signal)
    how = {"threads": 1, "log_s": 0.05}
    engine = Ray(**how) if sys.argv[2] == "ray" else Processes(**how, start=sys.argv[2])
    result = engine.run(made, Until(env_steps=10**9), 0, watch)
    print(result.status, watch.saved, os.getpid())


if __name__ == "__main__":
    main()
