"""The faults that Troop is tested against: one entry for each id, in the order of the reference page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A fault, the behaviour that is expected, and why it is not tested or only in part."""

    fault: str
    expected: str
    not_applicable: str = ""  # the part of Troop that does not exist yet
    missing: str = ""  # what the tests do not cover


_NO_DASHBOARD = "Troop has no dashboard and opens no HTTP port"

GROUPS: dict[str, dict[str, Fault]] = {
    "Death of processes": {
        "K1": Fault("an actor is killed", "it is restarted and counted, no torn trajectory is stored"),
        "K2": Fault("all actors are killed at once", "all are restarted and training continues"),
        "K3": Fault("the inference server is killed", "runners reconnect and step no env twice"),
        "K4": Fault("a replay is killed", "it continues from its checkpoint with consistent contents"),
        "K5": Fault("a parameter server or the evaluator is killed", "it continues, training is unaffected"),
        "K6": Fault("the learner is killed", "it continues from the newest checkpoint"),
        "K7": Fault(
            "one rank of a data-parallel learner is killed",
            "all ranks restart as one from the newest checkpoint",
        ),
        "K8": Fault("the launcher is killed", "no process, shared memory or lock is left"),
        "K9": Fault(
            "an env fails at every start", "delays, a budget of restarts, exit code 4, the env is named"
        ),
        "K10": Fault("an env aborts or exits its process", "its actor is restarted"),
        "K11": Fault("many random kills", "the run learns as without kills, no process is left"),
    },
    "Resume": {
        "R1": Fault("stop at a step and resume (one thread, CPU)", "bit-equal to an uninterrupted run"),
        "R2": Fault(
            "the same for every system", "bit-equal inline; in processes a consistent state is saved"
        ),
        "R3": Fault("load the policy of any checkpoint", "the same actions as the live policy"),
        "R4": Fault("resume with fewer envs or another engine", "works and says what changed"),
        "R5": Fault("resume without the replay", "says so and fills the replay before updates"),
        "R6": Fault("load run directories of every released format", "they load"),
        "R7": Fault("schedules, counters, clock and evaluations after a resume", "they continue"),
        "R8": Fault(
            "versions of the policy after a resume", "actors take the learner's, even if it is older"
        ),
        "R9": Fault("limits of the data flow after a resume", "those of the present settings, no deadlock"),
    },
    "Files and disk": {
        "F1": Fault(
            "truncated checkpoint files", "detected, the previous checkpoint is used and the file named"
        ),
        "F2": Fault("one changed byte", "detected by its hash"),
        "F3": Fault("killed while saving", "the newest complete checkpoint loads"),
        "F4": Fault("full disk", "training continues or stops resumably, old checkpoints stay"),
        "F5": Fault("run directory read-only or removed", "one sentence, exit code 5"),
        "F6": Fault("two processes use one run directory", "the second is refused; a stale lock is not"),
        "F7": Fault("the system clock jumps", "no negative rate, order by step"),
    },
    "Bad numbers": {
        "N1": Fault("NaN or infinity from an env", "that env restarts, the row is dropped and counted"),
        "N2": Fault("NaN loss or gradient", "update skipped, exit code 4 after ten, no NaN in a checkpoint"),
        "N3": Fault("huge or constant observations and rewards", "statistics stay finite"),
        "N4": Fault("wrong shape or dtype from an env", "an error with env, expected and received"),
        "N5": Fault("truncation against termination", "learned values equal the analytic ones"),
        "N6": Fault(
            "policy lag of off-policy corrections",
            "V-trace without lag equals the on-policy target",
        ),
    },
    "Slow, stuck, overloaded": {
        "S1": Fault("an env hangs", "detected, replaced, reported with its stack"),
        "S2": Fault("one actor is 20 times slower", "the others keep nine tenths of their speed"),
        "S3": Fault("the learner pauses", "queues and memory stay bounded, all roles continue after"),
        "S4": Fault("a metrics writer fails or is slow", "training continues and does not wait for it"),
        "S5": Fault("replay larger than memory", "refused before allocation, with numbers"),
        "S6": Fault("an env leaks memory", "a warning names the role"),
        "S7": Fault("long runs", "memory, open files and threads stay constant"),
        "S8": Fault("`/dev/shm` is small", "it is not used: hosts share anonymous memory"),
    },
    "Network and cluster": {
        "P1": Fault("a connection is cut", "messages are neither lost, repeated nor reordered"),
        "P2": Fault("a machine stops responding", "found by heartbeat, its roles restart elsewhere"),
        "P3": Fault("delay and packet loss", "the run continues, messages are neither lost nor reordered"),
        "P4": Fault("an old instance of a role is still alive", "it is rejected by its generation number"),
        "P5": Fault("two runs on one machine", "both work"),
        "P6": Fault("a Ray node is removed", "its roles restart elsewhere"),
        "P7": Fault("other versions on a node", "refused with both versions"),
        "P8": Fault("garbage in messages", "an error, never code from data; memory stays bounded"),
    },
    "Stop": {
        "T1": Fault("one Ctrl-C", "checkpoint, all roles end, exit code 3, no traceback"),
        "T2": Fault("two Ctrl-C", "ends at once, no process is left"),
        "T3": Fault("SIGTERM at any time", "as one Ctrl-C"),
        "T4": Fault("normal end", "the process exits, with every kind of env"),
        "T5": Fault("`close` twice or after a failure", "no error"),
        "T6": Fault("leftovers of any run", "no process, shared memory or temporary file"),
    },
    "Settings and commands": {
        "C1": Fault("unknown or invalid flags", "one sentence with flag, value and suggestion, exit code 2"),
        "C2": Fault("any configuration", "JSON round trip is exact; an invalid one starts nothing"),
        "C3": Fault("`--help`", "imports no heavy library that it does not need"),
        "C4": Fault("a config file that names code", "refused"),
        "C5": Fault("the user's env raises", "the error names the user's file and line"),
    },
    "Security": {
        "X1": Fault("pickle instead of a checkpoint", "refused, nothing is executed"),
        "X2": Fault("calls that execute data", "none in the package"),
        "X3": Fault("hostile tensor files and manifests", "refused"),
        "X4": Fault(
            "hostile ONNX files", "Troop reads none; those it writes need no other file and follow no link"
        ),
        "X5": Fault("dashboard on all interfaces without token", "refused", not_applicable=_NO_DASHBOARD),
        "X6": Fault("ports", "bound to the loopback interface by default"),
        "X7": Fault("path traversal through the dashboard", "nothing is read", not_applicable=_NO_DASHBOARD),
        "X8": Fault("foreign hosts and methods", "refused", not_applicable=_NO_DASHBOARD),
        "X9": Fault("escape sequences in names", "shown as text"),
        "X10": Fault("floods of requests", "training is unaffected", not_applicable=_NO_DASHBOARD),
        "X11": Fault("a peer without authentication", "refused before its data are read"),
        "X12": Fault("tokens", "never in a run directory or message"),
        "X13": Fault("Ray without token authentication", "refused unless `--engine.insecure` is given"),
        "X14": Fault("dependencies with known holes", "excluded by the lowest allowed versions"),
    },
}

FAULTS: dict[str, Fault] = {name: fault for group in GROUPS.values() for name, fault in group.items()}
