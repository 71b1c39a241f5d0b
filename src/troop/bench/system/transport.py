"""CPU cost of chunks, latency of calls, and duration of weight broadcasts on the processes engine."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from troop.bench.system.measurement import Measurement, measure
from troop.bench.table import BenchResult
from troop.core.batch import Rollout
from troop.core.program import Program
from troop.core.remote import send, zero_copy
from troop.core.role import Metrics
from troop.engines import Processes
from troop.roles.weights import Weights

CHUNKS_PER_S = 50
ROWS, ACTORS = 64, 8
CALLS_PER_STEP = 50
PUBLISH_S = 0.1  # seconds between two broadcasts
RECENT_BROADCASTS = 20


def make_chunk(time: int = 25, envs: int = 16, obs: int = 240) -> Rollout:
    """Return a rollout of about 400 KB."""
    false = torch.zeros(time, envs, dtype=torch.bool)
    one = torch.ones(time, envs)
    return Rollout(
        torch.arange(envs),
        {"obs": torch.randn(time, envs, obs)},
        torch.randn(time, envs, 6),
        one,
        false,
        false.clone(),
        false.clone(),
        {"priority": one.clone()},
    )


class ChunkSink:
    """Receives chunks and discards them, so that only the transport costs CPU."""

    @zero_copy
    def add(self, chunk: Rollout) -> None:
        """Discard the chunk."""

    def gauges(self) -> Metrics:
        """Return the CPU seconds of this process so far and the current time."""
        return {"cpu/sink": time.process_time(), "clock/sink": time.monotonic()}


class ChunkSource:
    """Sends a chunk at fixed intervals and computes in between, as an actor does; if `idle` it sends none.

    A process that sleeps instead finds cold caches, and sending then costs four times as much CPU.
    """

    def __init__(self, sink: ChunkSink, idle: bool) -> None:
        self.sink, self.idle, self.chunk = sink, idle, make_chunk()
        self.due, self.cpu_seconds = time.monotonic(), 0.0
        self.matrix = torch.randn(ROWS, ROWS)

    def step(self) -> Metrics:
        """Compute until the next chunk is due, then send it."""
        self.due += 1 / CHUNKS_PER_S
        while time.monotonic() < self.due:
            self.matrix @ self.matrix
        if not self.idle:
            start = time.thread_time()
            send(self.sink.add, self.chunk)
            self.cpu_seconds += time.thread_time() - start
        return {"count/env_steps": 1}

    def gauges(self) -> Metrics:
        """Return the CPU seconds spent on sending so far and the current time."""
        return {"cpu/source": self.cpu_seconds, "clock/source": time.monotonic()}


class ConstantInference:
    """Replies to inference calls with constant actions."""

    def __init__(self) -> None:
        self.action = torch.zeros(ROWS, 6)

    @zero_copy
    def act(self, obs: Tensor) -> Tensor:
        """Return one action per row; keeps no reference to `obs`."""
        return self.action


class InferenceClient:
    """Calls the inference server, one call at a time."""

    def __init__(self, inference: ConstantInference) -> None:
        self.inference, self.obs = inference, torch.randn(ROWS, 100)

    def step(self) -> Metrics:
        """Make CALLS_PER_STEP calls; return the median round trip in seconds."""
        times = []
        for _ in range(CALLS_PER_STEP):
            start = time.perf_counter()
            self.inference.act(self.obs)
            times.append(time.perf_counter() - start)
        return {"count/env_steps": CALLS_PER_STEP, "round_trip": statistics.median(times)}


class BroadcastTimes:
    """Collects when each version of the weights was published and when each reader received it."""

    def __init__(self) -> None:
        self.published: dict[int, float] = {}
        self.received: dict[int, list[float]] = {}

    def on_published(self, version: int, time_s: float) -> None:
        """Store the start of a broadcast."""
        self.published[version] = time_s

    def on_received(self, version: int, time_s: float) -> None:
        """Store when one reader received a version."""
        self.received.setdefault(version, []).append(time_s)

    def gauges(self) -> Metrics:
        """Return the median seconds until the last reader had the weights, over recent broadcasts."""
        complete = [
            version
            for version, times in self.received.items()
            if len(times) == ACTORS and version in self.published
        ][-RECENT_BROADCASTS:]
        durations = [max(self.received[version]) - self.published[version] for version in complete]
        return {"broadcast": statistics.median(durations)} if durations else {}


class BroadcastPublisher:
    """Publishes 4 MB of weights every PUBLISH_S seconds."""

    def __init__(self, weights: Weights, times: BroadcastTimes) -> None:
        self.weights, self.times, self.version = weights, times, 0
        self.network = {f"layer{i}": torch.randn(256, 512) for i in range(8)}

    def step(self) -> Metrics:
        """Sleep until the next multiple of PUBLISH_S, then publish."""
        time.sleep(PUBLISH_S - time.monotonic() % PUBLISH_S)
        start = time.monotonic()
        self.version += 1
        send(self.weights.publish, self.version, self.network)
        send(self.times.on_published, self.version, start)
        return {"count/env_steps": 1}


class BroadcastReader:
    """Requests the newest weights when they are published, at the same time as all other readers."""

    def __init__(self, weights: Weights, times: BroadcastTimes) -> None:
        self.weights, self.times, self.version = weights, times, -1

    def step(self) -> Metrics:
        """Poll until a newer version is available."""
        time.sleep(PUBLISH_S - time.monotonic() % PUBLISH_S)
        while (newest := self.weights.latest(self.version)) is None:
            time.sleep(0.0005)
        self.version = newest[0]
        send(self.times.on_received, self.version, time.monotonic())
        return {"count/env_steps": 1}


def chunk_cpu_share(seconds: float, idle: bool) -> float:
    """Return the CPU seconds per second of sending plus those of the whole receiving process."""
    program = Program("chunks")
    program.add("source", ChunkSource, program.add("sink", ChunkSink), idle)
    measurement = measure(program, Processes(threads=1), Measurement(seconds))
    return sum(measurement.increase_ratio(f"cpu/{role}", f"clock/{role}") for role in ("source", "sink"))


def round_trip(seconds: float) -> float:
    """Return the seconds of a call with 64 rows and its reply."""
    program = Program("inference")
    program.add("client", InferenceClient, program.add("inference", ConstantInference))
    return measure(program, Processes(threads=1), Measurement(seconds)).median("round_trip")


def broadcast(seconds: float) -> float:
    """Return the seconds from publishing until the last actor has the weights."""
    program = Program("broadcast")
    weights, times = program.add("weights", Weights), program.add("times", BroadcastTimes)
    program.add("publisher", BroadcastPublisher, weights, times)
    for i in range(ACTORS):
        program.add(f"actor{i}", BroadcastReader, weights, times)
    return measure(program, Processes(threads=1), Measurement(seconds)).median("broadcast")


def run(seconds: float = 6.0) -> list[BenchResult]:
    """Measure chunks, calls and broadcasts."""
    idle, sending = chunk_cpu_share(seconds, True), chunk_cpu_share(seconds, False)
    call, spread = round_trip(seconds / 2), broadcast(seconds)
    cost = 100 * (sending - idle)
    return [
        BenchResult(
            f"400 KB chunks at {CHUNKS_PER_S}/s, both sides",
            f"{cost:.2f} % of a core",
            f"3 % (without chunks {100 * idle:.2f} %)",
            cost / 3,
            "<= 1",
        ),
        BenchResult(
            f"{ROWS}-row inference round trip", f"{1e3 * call:.3f} ms", "0.1 ms", call / 1e-4, "<= 1"
        ),
        BenchResult(
            f"4 MB of weights to {ACTORS} actors", f"{1e3 * spread:.1f} ms", "10 ms", spread / 1e-2, "<= 1"
        ),
    ]
