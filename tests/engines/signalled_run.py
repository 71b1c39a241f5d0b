"""A run whose driver gets signals from a test: `python signalled_run.py PID_FILE spawn|forkserver|ray`."""

import os
import signal
import sys
from pathlib import Path

from fault_roles import NumberSender, NumberStore, SlowEvaluator

from troop.core.engine import Until
from troop.core.program import Program, Schedule


class PidFileObserver:
    """Writes the pids of all hosts to a file once all are known; a signal requests a stop."""

    def __init__(self, path, hosts):
        self.path, self.hosts = path, hosts
        self.pids, self.saves, self.signalled = {}, 0, False

    def log(self, counters, metrics):
        self.pids |= {name: int(pid) for name, pid in metrics.items() if name.startswith("pid/")}
        if len(self.pids) == self.hosts:
            temporary = Path(f"{self.path}.new")
            temporary.write_text(" ".join(str(pid) for pid in self.pids.values()))
            temporary.rename(self.path)  # atomic: a reader never sees a part of it

    def log_evaluation(self, counters, metrics):
        pass

    def save(self, counters, state, last):
        self.saves += 1

    def note(self, text):
        pass

    def stop_requested(self):
        return self.signalled

    def on_signal(self, *_):
        self.signalled = True


def make_program(senders):
    """Return a program of some senders, a store and an evaluator."""
    program = Program("signalled")
    store = program.add("store", NumberStore)
    for i in range(senders):
        program.add(f"sender{i}", NumberSender, store, name=f"sender{i}")
    program.add("evaluator", SlowEvaluator, store)
    program.schedule("evaluator", Schedule(env_steps=50))
    return program


def main():
    """Run until signalled; print the status, the number of checkpoints and the pid."""
    # Imported here because spawned hosts import this module and do not need torch.
    from troop.engines import Processes, Ray

    program = make_program(1 if sys.argv[2] == "ray" else 2)  # a Ray actor takes seconds to start
    observer = PidFileObserver(sys.argv[1], len(program.nodes))
    signal.signal(signal.SIGINT, observer.on_signal)
    settings = {"threads": 1, "log_s": 0.05}
    engine = Ray(**settings) if sys.argv[2] == "ray" else Processes(**settings, start=sys.argv[2])
    result = engine.run(program, Until(env_steps=10**9), 0, observer)
    print(result.status, observer.saves, os.getpid())


if __name__ == "__main__":
    main()
