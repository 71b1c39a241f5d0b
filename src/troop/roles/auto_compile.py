"""AutoCompiler: compiles the losses of an algorithm during training if measurements say that it pays."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from troop.core.algorithm import Algorithm, CompilableAlgorithm, UpdateResult
from troop.core.devices import cpp_compiler
from troop.core.role import Metrics
from troop.roles.cache_filler import CacheFiller

WARM_UP = 100  # updates before a measurement
MEASUREMENT_UPDATES = 200  # updates of a measurement
MIN_SHARE = 0.7  # of the time that updates take; below it, something else is the bottleneck
EXPECTED_SPEEDUP = 1.25  # of an update; 1.15 without and 1.35 with LayerNorm in small networks
MIN_SPEEDUP = 1.03  # measured; below it, the plain losses are used again
STALL_S = 10.0  # time for which the learner stops to compile losses that are in torch's cache
COLD_STALL_S = 40.0  # the same if they are not
PREPARATION_S = 60.0  # time in which another process fills the cache, if it has idle cores
MAX_PREPARATION_S = 600.0
MAX_GAP_S = 1.0  # longer times between updates are evaluations and checkpoints

Phase = Literal["measure", "prepare", "check", "done"]


@dataclass(frozen=True)
class AutoCompileConfig:
    """What an AutoCompiler needs to know of a run."""

    learner: dict[str, Any]  # how another process builds the same learner, see CacheFiller
    minutes: float | None  # of training; None: unknown, and taken as long


class Preparation(Protocol):
    """A process that compiles losses, such as CacheFiller."""

    def poll(self) -> bool | None:
        """Return whether it succeeded; None while it runs."""
        ...

    def close(self) -> None:
        """Stop the process."""
        ...


class AutoCompiler:
    """Makes the updates of a role and decides during training whether their losses are compiled.

    It measures plain updates, lets another process compile if updates take most of the time and the rest of
    the run is long enough, switches, measures again, and switches back if that is not faster. Each decision
    is one sentence in `notes`. Without `config` it only makes the updates.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        config: AutoCompileConfig | None,
        notes: list[str],
        clock: Callable[[], float] = time.monotonic,
        prepare: Callable[[dict[str, Any], Any], Preparation] = CacheFiller,
    ) -> None:
        self.algorithm, self.config, self.notes = algorithm, config, notes
        self.clock, self._prepare = clock, prepare
        supported = config is not None and isinstance(algorithm, CompilableAlgorithm)
        self.phase: Phase = "measure" if supported else "done"
        self.compiled = False
        self.updates = 0
        self.seconds = 0.0  # of training
        self._update_s: list[float] = []  # of the current phase
        self._gap_s: list[float] = []  # between the updates
        self._last_end: float | None = None
        self._phase_start = 0.0  # in seconds of training
        self._plain_s = 0.0  # per plain update
        self._gain = 1.0  # expected, in updates per second
        self._preparation: Preparation | None = None

    def update(self, batch: object) -> UpdateResult:
        """Make one update of the algorithm."""
        if self.phase == "done":
            return self.algorithm.update(batch)
        start = self.clock()
        result = self.algorithm.update(batch)
        end = self.clock()
        self._record(start, end)
        if self.phase == "prepare":
            self._poll()
        elif len(self._update_s) == WARM_UP + MEASUREMENT_UPDATES:
            self._decide(batch) if self.phase == "measure" else self._check()
        return result

    def _record(self, start: float, end: float) -> None:
        gap = 0.0 if self._last_end is None else start - self._last_end
        self.seconds += end - start + (gap if gap <= MAX_GAP_S else 0.0)
        if self.phase != "prepare":
            self._update_s.append(end - start)
            self._gap_s.append(gap)
        self._last_end = end
        self.updates += 1

    def _decide(self, batch: object) -> None:
        """Start to compile, or explain why not."""
        self._plain_s = trimmed_mean(self._update_s[WARM_UP:])
        share = self._plain_s / (self._plain_s + trimmed_mean(self._gap_s[WARM_UP:]))
        compiler, installed = cpp_compiler()
        if not installed:
            return self._finish(f"the C++ compiler {compiler} is not installed")
        if share < MIN_SHARE:
            return self._finish(f"updates take {share:.0%} of the time, so compiling them gains little")
        self._gain = 1 / (1 - share + share / EXPECTED_SPEEDUP)
        if not self._pays(STALL_S, PREPARATION_S):
            return self._finish("the rest of the run is too short for it")
        assert self.config is not None
        try:
            self._preparation = self._prepare(self.config.learner, batch)
        except (OSError, TypeError):  # no process, or a setting that is not JSON: the learner itself compiles
            self._switch(COLD_STALL_S)
        else:
            self._begin("prepare")

    def _pays(self, stall: float, delay: float = 0.0) -> bool:
        """Return whether a stop of `stall` seconds after `delay` seconds leads to more updates in the end."""
        assert self.config is not None
        if self.config.minutes is None:
            return True
        remaining = 60 * self.config.minutes - self.seconds - delay
        return (remaining - stall) * self._gain > remaining

    def _poll(self) -> None:
        assert self._preparation is not None
        if (succeeded := self._preparation.poll()) is not None:
            self._preparation = None
            self._switch(STALL_S if succeeded else COLD_STALL_S)
        elif self.seconds - self._phase_start > MAX_PREPARATION_S:
            self.close()
            self._finish(f"compilation took more than {MAX_PREPARATION_S / 60:g} minutes")

    def _switch(self, stall: float) -> None:
        if not self._pays(stall):
            return self._finish("the rest of the run is too short for it")
        self._set_compiled(True)
        self._begin("check")

    def _check(self) -> None:
        """Compare compiled with plain updates."""
        assert isinstance(self.algorithm, CompilableAlgorithm)
        compiled_s = trimmed_mean(self._update_s[WARM_UP:])
        times = f"an update takes {1e3 * compiled_s:.2g} ms instead of {1e3 * self._plain_s:.2g} ms"
        if self.algorithm.compile_error:
            self._finish(f"compilation failed with {self.algorithm.compile_error!r}")
        elif compiled_s * MIN_SPEEDUP > self._plain_s:
            self._finish(f"with compiled losses {times}")
        else:
            stall = sum(self._update_s[:WARM_UP]) - WARM_UP * compiled_s
            self._finish(f"{times}; compilation stopped the updates for {max(stall, 0):.0f} s", compiled=True)

    def _begin(self, phase: Phase) -> None:
        self.phase, self._phase_start = phase, self.seconds
        self._update_s.clear()
        self._gap_s.clear()

    def _finish(self, reason: str, compiled: bool = False) -> None:
        if not compiled:
            self._set_compiled(False)
        self._begin("done")
        state = f"on from update {self.updates - WARM_UP - MEASUREMENT_UPDATES:,} on" if compiled else "off"
        self.notes.append(f"--compile auto: {state}; {reason}")

    def _set_compiled(self, compiled: bool) -> None:
        assert isinstance(self.algorithm, CompilableAlgorithm)
        self.algorithm.set_compiled(compiled)
        self.compiled = compiled

    def close(self) -> None:
        """End the process that compiles."""
        if self._preparation is not None:
            self._preparation.close()
            self._preparation = None

    def gauges(self, module: str) -> Metrics:
        """Return whether the losses of `module` are compiled, 0 or 1; nothing without `config`."""
        return {} if self.config is None else {f"{module}/compiled": int(self.compiled)}

    def state_dict(self) -> dict[str, Any]:
        """Return the decision, empty before it is made, and updates and seconds of training so far."""
        decision = ("on" if self.compiled else "off") if self.phase == "done" else ""
        return {"decision": decision, "updates": self.updates, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the decision; without one, or without `config`, nothing."""
        self.updates, self.seconds = int(state["updates"]), float(state["seconds"])
        if self.phase == "done" or not state["decision"]:
            return
        self._set_compiled(state["decision"] == "on")
        self._begin("done")


def trimmed_mean(values: list[float]) -> float:
    """Return the mean without the largest 2 %, which other programs or an evaluation interrupted."""
    kept = sorted(values)[: len(values) - len(values) // 50]
    return sum(kept) / len(kept)
