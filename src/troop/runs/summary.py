"""summary.json: the state or the result of a run as one JSON object."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from troop.core.config_json import invalid_field
from troop.core.errors import BadInput
from troop.runs import files

Status = Literal["running", "done", "stopped", "failed"]
NAME = "summary.json"


@dataclass(frozen=True)
class Summary:
    """Last evaluation (None before the first one), counters, rates and status of a run."""

    status: Status
    return_mean: float | None = None
    return_std: float | None = None
    episodes: int = 0  # of the last evaluation
    env_steps: int = 0
    updates: int = 0
    wall_s: float = 0.0  # training only, without evaluation_s
    env_steps_per_s: float = 0.0
    updates_per_s: float = 0.0
    target_reached_s: float | None = None
    restarts: int = 0
    recipe: str | None = None
    env: str | None = None
    seed: int | None = None
    target: float | None = None
    evaluation_s: float = 0.0
    env_faults: int = 0
    skipped_updates: int = 0
    message: str | None = None  # why it failed or stopped

    def write(self, run: Path) -> None:
        """Replace summary.json in the run directory atomically."""
        files.write_json(
            run / NAME, {name: _finite_or_none(value) for name, value in dataclasses.asdict(self).items()}
        )

    @classmethod
    def read(cls, run: Path) -> Self:
        """Read summary.json, ignoring unknown fields; BadInput if it cannot be read or is damaged."""
        path = run / NAME
        try:
            values = files.read_object(path)
        except OSError as error:
            raise BadInput(f"{path} cannot be read ({error.strerror}).") from error
        except ValueError as error:
            raise BadInput(f"{path} is damaged ({error}).") from error
        if values.get("status") not in ("running", "done", "stopped", "failed"):
            raise BadInput(f"{path} is damaged (no status).")
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in values.items() if name in known}
        if name := invalid_field(cls, values):
            raise BadInput(f"{path} is damaged ({name}).")
        return cls(**values)


def _finite_or_none(value: Any) -> Any:  # noqa: ANN401 - one JSON leaf
    return None if isinstance(value, float) and not math.isfinite(value) else value
