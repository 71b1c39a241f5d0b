"""Whether a machine can hold the processes of a program: memory, open files, processes and time to start."""

from __future__ import annotations

import re
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from troop.core.errors import SetupProblem
from troop.core.memory import free_memory
from troop.core.process_limits import free_processes
from troop.core.program import Program, references
from troop.engines.rpc.transport import HostSpec
from troop.engines.runtime import cores

StartMethod = Literal["spawn", "forkserver"]

# Of a process without data: memory of its own, and CPU seconds until it is ready. Forks share torch's pages.
HOST_BYTES: dict[StartMethod, int] = {"forkserver": 25 << 20, "spawn": 180 << 20}
HOST_START_S: dict[StartMethod, float] = {"forkserver": 0.1, "spawn": 2.0}
PEER_START_S = 0.007  # CPU seconds in which a member of a group connects to one other member
HOST_THREADS = 2
ACTIVE_THREADS = 5  # more in a process that steps: of torch, the env and collectives
HOST_FILES = 5  # open files of the driver per host: connection, sentinel, stack trace, store, one being sent
PEER_FILES = 8  # open files of a host per host that it is connected with
OTHER_FILES, OTHER_THREADS = 100, 10
PASSIVE = ("serving", "storing")


@dataclass(frozen=True)
class Demand:
    """What the processes of a program need."""

    hosts: int
    active: int  # hosts with a role that steps
    members: int  # of the largest group
    peers: int  # of the host that is connected with most others
    start: StartMethod

    @classmethod
    def of(cls, program: Program, start: StartMethod) -> Demand:
        """Return the demand of a program."""
        hosts, edges = program.hosts(), Counter[str]()
        host_of = {node.name: host for host, nodes in hosts.items() for node in nodes}
        for client, nodes in hosts.items():
            servers = {host_of[ref.name] for node in nodes for ref in references(node.build)} - {client}
            edges.update([*servers, *[client] * len(servers)])
        active = sum(any(node.kind not in PASSIVE for node in nodes) for nodes in hosts.values())
        groups = [node.group_ref for node in program.nodes.values() if node.group_ref is not None]
        members = max((group.size for group in groups), default=0)
        return cls(len(hosts), active, members, max([members, *edges.values()]), start)

    def without(self, hosts: int) -> Demand:
        """Return the demand with fewer hosts of the most frequent kind."""
        active, members, peers = (max(0, n - hosts) for n in (self.active, self.members, self.peers))
        return Demand(self.hosts - hosts, active, members, peers, self.start)

    @property
    def memory(self) -> int:
        """Bytes."""
        return self.hosts * HOST_BYTES[self.start]

    @property
    def files(self) -> int:
        """Open files of the process that has most of them."""
        return OTHER_FILES + max(self.hosts * HOST_FILES, self.peers * PEER_FILES)

    @property
    def threads(self) -> int:
        """Threads of all processes."""
        return OTHER_THREADS + self.hosts * HOST_THREADS + self.active * ACTIVE_THREADS

    @property
    def start_s(self) -> float:
        """CPU seconds until all hosts are ready."""
        return self.hosts * HOST_START_S[self.start] + self.members**2 * PEER_START_S


@dataclass(frozen=True)
class Machine:
    """What this machine has left."""

    memory: int
    files: float
    threads: int
    cores: int
    start_limit_s: float

    @classmethod
    def measure(cls, start_limit_s: float) -> Machine:
        """Return the memory, open files, threads and cores that this process may use."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = float("inf") if hard == resource.RLIM_INFINITY else hard
        return cls(free_memory(), files, free_processes(), cores(), start_limit_s)

    def shortage(self, demand: Demand) -> str | None:
        """Return what is missing for the demand; None if nothing is."""
        if demand.memory > self.memory:
            return f"at least {demand.memory / 1e9:.1f} GB of memory and {self.memory / 1e9:.1f} GB are free"
        if demand.files > self.files:
            return f"{demand.files:,} open files and {self.files:,} are allowed"
        if demand.threads > self.threads:
            return f"{demand.threads:,} processes and threads and {self.threads:,} are allowed"
        if demand.start_s > self.cores * self.start_limit_s:
            return (
                f"{demand.start_s / self.cores:,.0f} s to start on {self.cores} cores and "
                f"--engine.start-limit-s is {self.start_limit_s:,.0f}"
            )
        return None


def check_capacity(program: Program, start: StartMethod, start_limit_s: float) -> None:
    """Raise the limit of open files as needed; SetupProblem if the machine cannot hold the program."""
    demand, machine = Demand.of(program, start), Machine.measure(start_limit_s)
    shortage = machine.shortage(demand)
    if shortage is None:
        raise_file_limit(demand.files)
        return
    kind, count = most_frequent_kind(program)
    fitting = next((n for n in range(count - 1, 0, -1) if not machine.shortage(demand.without(count - n))), 0)
    cure = f"{fitting:,} {kind}s fit" if fitting else "not even one of each kind fits"
    raise SetupProblem(
        f"{demand.hosts:,} processes, {count:,} of them {kind}s, need {shortage}; {cure}. Lower the number "
        f"of {kind}s, or distribute them over machines with --engine ray."
    )


def most_frequent_kind(program: Program) -> tuple[str, int]:
    """Return the name without its number that most hosts have, and how many have it."""
    names = Counter(re.sub(r"\d+$", "", host) for host in program.hosts())
    return names.most_common(1)[0]


def files_of_host(spec: HostSpec) -> int:
    """Return the open files that the process of a host may need."""
    groups = [node.group_ref for node in spec.program.nodes.values() if node.group_ref is not None]
    peers = len(spec.clients) + len(spec.servers) + sum(group.size for group in groups)
    return OTHER_FILES + PEER_FILES * peers


def raise_file_limit(files: int) -> None:
    """Raise the soft limit of open files to this number, as far as the hard one allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= files:
        return
    limit = files if hard == resource.RLIM_INFINITY else min(files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
