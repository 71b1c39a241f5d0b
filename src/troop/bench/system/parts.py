"""The parts of `troop bench system` by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from troop.bench.system import apex, asynchronous, central, learning, pql, scaling, start, transport
from troop.bench.table import BenchResult
from troop.core.errors import BadInput


@dataclass(frozen=True)
class BenchArgs:
    """The arguments of `troop bench system`; None selects the default of each part."""

    seconds: float | None = None  # of each measurement
    env: str | None = None
    engines: tuple[str, ...] = ("processes", "ray")
    seeds: int = 3
    figure: Path = Path("scaling.png")

    def check(self) -> None:
        """Raise BadInput that names the flag of an invalid value."""
        if self.seconds is not None and not (0 < self.seconds < math.inf):
            raise BadInput(f"--seconds is {self.seconds}; it must be above 0.")
        if self.seeds < 1:
            raise BadInput(f"--seeds is {self.seeds}; it must be at least 1.")


PARTS: dict[str, Callable[[BenchArgs], list[BenchResult]]] = {
    "transport": lambda args: transport.run(args.seconds or 6.0),
    "apex": lambda args: apex.run(args.seconds or 10.0, args.env or apex.ENV),
    "scaling": lambda args: scaling.run(args.seconds or 5.0, args.engines),
    "ray": lambda args: apex.ray(args.seconds or 10.0, args.env or apex.ENV),
    "start": lambda args: start.run(args.engines),
    "pql": lambda args: pql.run(args.seconds or 60.0, args.engines),
    "learning": lambda args: learning.run(args.figure, args.seeds),
    "impala": lambda args: asynchronous.impala(args.seconds or 10.0, args.env or asynchronous.ENV),
    "buffering": lambda args: asynchronous.double_buffering(args.seconds or 10.0),
    "workers": lambda args: asynchronous.data_parallel(args.seconds or 10.0),
    "actors": lambda args: asynchronous.scaling(args.seconds or 5.0, args.engines),
    "inference": lambda args: central.inference(args.seconds or 5.0),
    "images": lambda args: central.images(args.seconds or 10.0),
    "runners": lambda args: central.scaling(args.seconds or 5.0),
    "light": lambda args: central.light(),
    "memory": lambda args: central.memory(args.seconds or 3.0),
}
CENTRAL_PARTS = ("inference", "images", "runners", "light", "memory")  # of `troop bench central`
ASYNC_PARTS = ("impala", "buffering", "workers", "actors")  # of `troop bench async`
DEFAULT_PARTS = ("transport", "apex", "scaling", "ray", "start")  # the others take many minutes
