"""What the processes engine's transport costs: chunks, round trips, weights to many."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from troop.bench.system.trial import Trial, tried
from troop.bench.table import Line
from troop.core.batch import Rollout
from troop.core.program import Program
from troop.core.remote import send, zero_copy
from troop.core.role import Metrics
from troop.engines import Processes
from troop.roles.weights import Weights

CHUNKS_PER_S = 50
ROWS, ACTORS = 64, 8
TRIPS = 50  # round trips in a step
PUBLISH_S = 0.1  # seconds between two broadcasts


def chunk(time: int = 25, envs: int = 16, obs: int = 240) -> Rollout:
    """About 400 KB of experience."""
    never = torch.zeros(time, envs, dtype=torch.bool)
    one = torch.ones(time, envs)
    return Rollout(
        torch.arange(envs),
        {"obs": torch.randn(time, envs, obs)},
        torch.randn(time, envs, 6),
        one,
        never,
        never.clone(),
        never.clone(),
        one.clone(),
    )


class Store:
    """Takes chunks."""

    @zero_copy
    def add(self, piece: Rollout) -> None:
        """Nothing is kept: what is measured is the way here."""

    def gauges(self) -> Metrics:
        """CPU seconds of its process so far, and the time of reading them."""
        return {"cpu/store": time.process_time(), "clock/store": time.monotonic()}


class Sender:
    """A chunk every so often from a process that works in between, as an actor does; a silent one sends none.

    One that sleeps instead finds cold caches on its core, and telling then costs it four times as much.
    """

    def __init__(self, store: Store, silent: bool) -> None:
        self.store, self.silent, self.piece = store, silent, chunk()
        self.due, self.spent = time.monotonic(), 0.0
        self.work = torch.randn(ROWS, ROWS)

    def step(self) -> Metrics:
        """Work until it is time, then send."""
        self.due += 1 / CHUNKS_PER_S
        while time.monotonic() < self.due:
            self.work @ self.work
        if not self.silent:
            began = time.thread_time()
            send(self.store.add, self.piece)
            self.spent += time.thread_time() - began
        return {"count/env_steps": 1}

    def gauges(self) -> Metrics:
        """CPU seconds that telling took so far, and the time of reading them."""
        return {"cpu/sender": self.spent, "clock/sender": time.monotonic()}


class Inference:
    """Answers with actions it has at hand."""

    def __init__(self) -> None:
        self.action = torch.zeros(ROWS, 6)

    @zero_copy
    def act(self, obs: Tensor) -> Tensor:
        """An action a row; of what it is shown it keeps nothing."""
        return self.action


class Runner:
    """Asks for actions, one question after the other."""

    def __init__(self, inference: Inference) -> None:
        self.inference, self.obs = inference, torch.randn(ROWS, 100)

    def step(self) -> Metrics:
        """Some round trips."""
        took = []
        for _ in range(TRIPS):
            began = time.perf_counter()
            self.inference.act(self.obs)
            took.append(time.perf_counter() - began)
        return {"count/env_steps": TRIPS, "round_trip": statistics.median(took)}


class Scores:
    """Who had which weights when."""

    def __init__(self) -> None:
        self.began: dict[int, float] = {}
        self.took: dict[int, list[float]] = {}

    def published(self, version: int, when: float) -> None:
        """A broadcast began."""
        self.began[version] = when

    def on_step(self, version: int, when: float) -> None:
        """An actor has it."""
        self.took.setdefault(version, []).append(when)

    def gauges(self) -> Metrics:
        """Seconds until the last of all had it, over the last broadcasts."""
        whole = [v for v, times in self.took.items() if len(times) == ACTORS and v in self.began][-20:]
        took = [max(self.took[v]) - self.began[v] for v in whole]
        return {"broadcast": statistics.median(took)} if took else {}


class Publisher:
    """Publishes weights of 4 MB now and then."""

    def __init__(self, weights: Weights, scores: Scores) -> None:
        self.weights, self.scores, self.version = weights, scores, 0
        self.net = {f"layer{i}": torch.randn(256, 512) for i in range(8)}

    def step(self) -> Metrics:
        """At the next full tenth of a second."""
        time.sleep(PUBLISH_S - time.monotonic() % PUBLISH_S)
        began = time.monotonic()
        self.version += 1
        send(self.weights.publish, self.version, self.net)
        send(self.scores.published, self.version, began)
        return {"count/env_steps": 1}


class Reader:
    """Wants the newest weights at the same moments as they are published: all actors at once."""

    def __init__(self, weights: Weights, scores: Scores) -> None:
        self.weights, self.scores, self.version = weights, scores, -1

    def step(self) -> Metrics:
        """Ask until they are there."""
        time.sleep(PUBLISH_S - time.monotonic() % PUBLISH_S)
        while (newest := self.weights.latest(self.version)) is None:
            time.sleep(0.0005)
        self.version = newest[0]
        send(self.scores.on_step, self.version, time.monotonic())
        return {"count/env_steps": 1}


def core_share(seconds: float, silent: bool) -> float:
    """CPU seconds a second of telling and of the store's process together."""
    program = Program("chunks")
    program.add("sender", Sender, program.add("store", Store), silent)
    trial = tried(program, Processes(threads=1), Trial(seconds))
    return sum(trial.value_and_grad(f"cpu/{role}", f"clock/{role}") for role in ("sender", "store"))


def round_trip(seconds: float) -> float:
    """Seconds of a question with 64 rows and its answer."""
    program = Program("inference")
    program.add("runner", Runner, program.add("inference", Inference))
    return tried(program, Processes(threads=1), Trial(seconds)).median("round_trip")


def broadcast(seconds: float) -> float:
    """Seconds from publishing until the last actor has the weights."""
    program = Program("broadcast")
    weights, scores = program.add("weights", Weights), program.add("scores", Scores)
    program.add("publisher", Publisher, weights, scores)
    for i in range(ACTORS):
        program.add(f"actor{i}", Reader, weights, scores)
    return tried(program, Processes(threads=1), Trial(seconds)).median("broadcast")


def run(seconds: float = 6.0) -> list[Line]:
    """The three of them."""
    idle, busy = core_share(seconds, True), core_share(seconds, False)
    trip, spread = round_trip(seconds / 2), broadcast(seconds)
    cost = 100 * (busy - idle)
    return [
        Line(
            f"400 KB chunks at {CHUNKS_PER_S}/s, both sides",
            f"{cost:.2f} % of a core",
            f"3 % (without chunks {100 * idle:.2f} %)",
            cost / 3,
            "<= 1",
        ),
        Line(f"{ROWS}-row inference round trip", f"{1e3 * trip:.3f} ms", "0.1 ms", trip / 1e-4, "<= 1"),
        Line(f"4 MB of weights to {ACTORS} actors", f"{1e3 * spread:.1f} ms", "10 ms", spread / 1e-2, "<= 1"),
    ]
