"""The parts of `troop bench system`, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from troop.bench.system import apex, learning, pql, scaling, start, transport
from troop.bench.table import Line
from troop.core.errors import BadInput


@dataclass(frozen=True)
class BenchArgs:
    """What the command line may say; None is a part's own choice."""

    seconds: float | None = None  # of each measurement
    env: str | None = None
    engines: tuple[str, ...] = ("processes", "ray")
    seeds: int = 3
    figure: Path = Path("scaling.png")

    def check(self) -> None:
        """Raise BadInput, naming the flag."""
        if self.seconds is not None and not (0 < self.seconds < math.inf):
            raise BadInput(f"--seconds is {self.seconds}; it must be above 0.")
        if self.seeds < 1:
            raise BadInput(f"--seeds is {self.seeds}; it must be at least 1.")


PARTS: dict[str, Callable[[BenchArgs], list[Line]]] = {
    "transport": lambda wish: transport.run(wish.seconds or 6.0),
    "apex": lambda wish: apex.run(wish.seconds or 10.0, wish.env or apex.ENV),
    "scaling": lambda wish: scaling.run(wish.seconds or 5.0, wish.engines),
    "ray": lambda wish: apex.ray(wish.seconds or 10.0, wish.env or apex.ENV),
    "start": lambda wish: start.run(wish.engines),
    "pql": lambda wish: pql.run(wish.seconds or 60.0, wish.engines),
    "learning": lambda wish: learning.run(wish.figure, wish.seeds),
}
USUAL = ("transport", "apex", "scaling", "ray", "start")  # without those that take many minutes
