"""A run on a cluster that loses a machine: `python node_loss_run.py DIRECTORY ADDRESS LOST_LIMIT_S`."""

import json
import sys
from pathlib import Path

from fault_roles import CountingLearner, NumberSender, NumberStore

from troop.core.engine import Until
from troop.core.program import Program
from troop.engines import Ray

FIRST_NUMBERS = (1, 1_000_001)  # of sender0 and of sender1


def write_atomically(path, text):
    """Write a file so that a concurrent reader sees the old or the new text, never a part of it."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


class NodeLossObserver:
    """Writes the machines of the senders to `machines`; stops 200 steps after both run on machine 1."""

    def __init__(self, directory):
        self.directory, self.last, self.saves, self.notes, self.stop_at = directory, {}, [], [], None

    def log(self, counters, metrics):
        self.last |= metrics
        machines = [self.last.get(f"on/sender{i}") for i in range(2)]
        self.counters = counters
        write_atomically(self.directory / "steps", str(counters.env_steps))
        if None in machines or counters.env_steps < 200:
            return
        write_atomically(self.directory / "machines", " ".join(str(int(machine)) for machine in machines))
        if counters.restarts and machines == [1, 1] and self.stop_at is None:
            self.stop_at = counters.env_steps + 200

    def stop_requested(self):
        reached = self.stop_at is not None and self.counters.env_steps >= self.stop_at
        return reached or (self.directory / "stop").exists()

    def log_evaluation(self, counters, metrics):
        pass

    def save(self, counters, state, last):
        self.saves.append(state)

    def restore(self, nodes):
        prefixes = tuple(f"{node}." for node in nodes)
        return {key: part for key, part in self.saves[-1].items() if key.startswith(prefixes)}

    def note(self, text):
        self.notes.append(text)


def make_program():
    """Return a program of a store, a learner and two senders of numbers."""
    program = Program("node-loss")
    store = program.add("store", NumberStore)
    program.add("learner", CountingLearner, store)
    for i in range(2):
        program.add(f"sender{i}", NumberSender, store, name=f"sender{i}", first=FIRST_NUMBERS[i])
    return program


def run(address, lost_limit_s, observer):
    """Run until the observer stops; write the outcome to the file `result`."""
    settings = {"threads": 1, "log_s": 0.05, "checkpoint_s": 2, "lost_limit_s": lost_limit_s}
    # A machine has five CPUs, enough for one sender.
    engine = Ray(address, cpus=("sender0=3", "sender1=3"), strategy="spread", **settings)
    try:
        result = engine.run(make_program(), Until(minutes=1.5), 0, observer)
        outcome = {
            "status": result.status,
            "restarts": result.counters.restarts,
            "steps": result.counters.env_steps,
        }
    except BaseException as error:
        outcome = {"status": f"{type(error).__name__}: {error}"}
        raise
    finally:
        numbers = observer.saves[-1]["store.numbers"] if observer.saves else []
        outcome |= {"notes": observer.notes, "numbers": numbers}
        write_atomically(observer.directory / "result", json.dumps(outcome))


if __name__ == "__main__":
    run(sys.argv[2], float(sys.argv[3]), NodeLossObserver(Path(sys.argv[1])))
