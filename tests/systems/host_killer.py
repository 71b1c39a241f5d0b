"""A RunObserver that kills hosts of a running program one after the other."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from recording_observer import RecordingObserver

from troop.core.engine import Counters


def host_processes(launcher):
    """Return the process ids of a launcher's hosts, by name."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            head, _, tail = (path / "stat").read_text().rpartition(") ")
        except OSError:
            continue  # the process has ended meanwhile
        state, parent = tail.split()[:2]
        if state != "Z":
            parents[int(path.name)], names[int(path.name)] = int(parent), head.partition("(")[2]
    hosts = {}
    for pid, name in names.items():
        ancestor = parents[pid]
        while ancestor in parents and ancestor != launcher:
            ancestor = parents[ancestor]
        if ancestor == launcher and not name.startswith("python"):
            hosts[name] = pid
    return hosts


@dataclass
class Kill:
    """One kill of one or several hosts, and the state of the run just before it."""

    hosts: tuple[str, ...]
    counters: Counters
    state: dict  # the newest checkpoint
    metrics: dict  # the newest value of each metric
    evaluations: int  # number of evaluations so far


class HostKiller(RecordingObserver):
    """Kills the hosts of `plan` in turn, each time after all hosts are back and have made progress.

    Progress is `steps` env steps, `updates` updates and a checkpoint. The run stops after the last kill, when
    the program has made progress and evaluated again.
    """

    def __init__(self, plan, steps=150, updates=10):
        super().__init__()
        self.plan, self.steps, self.updates = list(plan), steps, updates
        self.kills, self.expected_restarts, self.metrics, self.saves, self.pids = [], 0, {}, 0, set()
        self.progress_at_kill = (0, 0, 0)  # env steps, updates, saves
        self.done = False

    def log(self, counters, metrics):
        super().log(counters, metrics)
        self.metrics |= metrics
        hosts = self.hosts()
        self.pids |= set(hosts.values())
        if not self._recovered(counters, metrics):
            return
        if not self.plan:
            self.done = len(self.evaluations) > self.kills[-1].evaluations
        elif all(name in hosts for name in self.plan[0]):
            self._kill(self.plan.pop(0), hosts, counters)

    def hosts(self):
        """Return the process ids of all hosts, by name."""
        return host_processes(os.getpid())

    def _recovered(self, counters, metrics):
        steps, updates, saves = self.progress_at_kill
        killed = self.kills[-1].hosts if self.kills else ()
        return (
            counters.env_steps >= steps + self.steps
            and counters.updates >= updates + self.updates
            and self.saves > saves
            and counters.restarts >= self.expected_restarts
            and all(f"role/{name}/busy" in metrics for name in killed)
        )

    def _kill(self, names, hosts, counters):
        for name in names:
            os.kill(hosts[name], signal.SIGKILL)
        self.kills.append(Kill(names, counters, self.state, dict(self.metrics), len(self.evaluations)))
        self.expected_restarts += len(names)
        self.progress_at_kill = (counters.env_steps, counters.updates, self.saves)

    def save(self, counters, state, last):
        super().save(counters, state, last)
        self.saves += 1

    def stop_requested(self):
        return self.done


class PidReporter:
    """Reports the process id of its host."""

    def __init__(self, host):
        self.host = host

    def gauges(self):
        return {f"pid/{self.host}": os.getpid()}


def with_pids(program):
    """Add a PidReporter to the host of each node of the program; nodes of a group have no room for one."""
    for name, node in list(program.nodes.items()):
        node.host = name
        program.add(f"pid_{name}", PidReporter, name)
        program.nodes[f"pid_{name}"].host = name
    return program


class ReportedHostKiller(HostKiller):
    """Kills hosts that are not children of this process, by the process ids that they report."""

    def hosts(self):
        prefix = "pid/"
        return {k.removeprefix(prefix): int(v) for k, v in self.metrics.items() if k.startswith(prefix)}
