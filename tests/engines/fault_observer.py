"""Observers and the program of the fault tests."""

import os
import signal
from pathlib import Path

from fault_roles import CountingLearner, NumberSender, NumberStore, SlowEvaluator

from troop.core.program import Program, Schedule


class RecordingObserver:
    """Records everything and collects the pids of all hosts.

    If `kill` names a node, kills its host at env step `after`, once, and requests a stop
    `steps_after_restart` env steps after the host has been restarted.
    """

    def __init__(self, pids, kill=None, after=30, steps_after_restart=200):
        self.pids, self.kill, self.after = pids, kill, after
        self.steps_after_restart = steps_after_restart
        self.last, self.saves, self.notes = {}, [], []
        self.killed = self.stop_at = self.counters = None

    def log(self, counters, metrics):
        self.last |= metrics
        self.counters = counters
        self.pids.extend(int(pid) for name, pid in metrics.items() if name.startswith("pid/"))
        pid = self.last.get(f"pid/{self.kill}")
        if pid and self.killed is None and counters.env_steps >= self.after:
            self.killed = int(pid)
            os.kill(self.killed, signal.SIGKILL)
        if pid and self.killed not in (None, pid) and self.stop_at is None:
            self.stop_at = counters.env_steps + self.steps_after_restart

    def stop_requested(self):
        return self.stop_at is not None and self.counters.env_steps >= self.stop_at

    def log_evaluation(self, counters, metrics):
        self.last |= metrics

    def save(self, counters, state, last):
        self.saves.append(state)

    def restore(self, nodes):
        prefixes = tuple(f"{node}." for node in nodes)
        return {key: part for key, part in self.saves[-1].items() if key.startswith(prefixes)}

    def note(self, text):
        self.notes.append(text)


class StopWhenLogged(RecordingObserver):
    """Requests a stop as soon as all metrics of `names` have been logged."""

    def __init__(self, pids, names):
        super().__init__(pids)
        self.names = names

    def stop_requested(self):
        return self.names <= set(self.last)


ROLE_METRICS = {
    f"role/{node}/{metric}"
    for node in ("store", "learner", "sender", "evaluator")
    for metric in ("busy", "waiting", "blocked", "idle", "steps_per_s", "queue", "queue_bytes")
}


def process_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def fault_program(**sender):
    """Return a program of a store, a learner, a sender with these arguments and an evaluator."""
    program = Program("faults")
    store = program.add("store", NumberStore)
    program.add("learner", CountingLearner, store)
    program.add("sender", NumberSender, store, **sender)
    program.add("evaluator", SlowEvaluator, store)
    program.schedule("evaluator", Schedule(env_steps=20))
    return program
