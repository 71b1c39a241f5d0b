"""How experience, policies and gradients pass through a system, from one line of metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from troop.logs.topology import RatioSpec, Topology

_GRADIENT_COUNTS = ("applied", "dropped_stale", "dropped_outlier", "delay")


@dataclass(frozen=True)
class RatioReading:
    """The present value of one ratio of the system."""

    name: str
    value: float
    unit: str
    target: float | None  # None: no role waits for this ratio


@dataclass(frozen=True)
class Flow:
    """The state of replays, policies and gradients; None where no role reports a value."""

    rows: int = 0  # summed over all replays
    capacity: int = 0
    sample_age_s: float | None = None  # age of sampled rows, at the present rate of env steps
    samples_per_insert: float | None = None
    samples_per_insert_target: float | None = None  # 0: no target, actors and learners run freely
    policy_lag: float | None = None  # updates by which the policies of actors are behind the learner's
    gradients: dict[str, float] | None = None  # counts and delay of parameter servers
    ratios: tuple[RatioReading, ...] = ()

    @property
    def limit(self) -> str:
        """The ratio that roles wait for, such as ` at 4 samples/insert`; empty if none has a target."""
        for ratio in self.ratios:
            if ratio.target:
                return f" at {ratio.target:g} {ratio.unit}"
        if self.samples_per_insert_target:
            return f" at {self.samples_per_insert_target:g} samples/insert"
        return ""


def read_flow(metrics: Mapping[str, float], topology: Topology) -> Flow:
    """What replays, actors and parameter servers report; the shards of a replay count as one."""
    replays = [name[:-5] for name in metrics if name.endswith("/rows") and f"{name[:-5]}/capacity" in metrics]
    servers = [name[:-8] for name in metrics if name.endswith("/applied")]
    # Every gradient has one part for each server, so the servers' counts are averaged and not summed.
    gradients = {name: _mean(metrics, servers, name) or 0.0 for name in _GRADIENT_COUNTS} if servers else None
    return Flow(
        rows=round(sum(metrics[f"{replay}/rows"] for replay in replays)),
        capacity=round(sum(metrics[f"{replay}/capacity"] for replay in replays)),
        sample_age_s=_sample_age_s(metrics, replays),
        samples_per_insert=_mean(metrics, replays, "samples_per_insert"),
        samples_per_insert_target=_mean(metrics, replays, "samples_per_insert_target"),
        policy_lag=metrics.get("policy/lag"),
        gradients=gradients,
        ratios=_read_ratios(metrics, topology.ratios),
    )


def _read_ratios(metrics: Mapping[str, float], specs: Sequence[RatioSpec]) -> tuple[RatioReading, ...]:
    """All ratios of the system, or none until each of their metrics has been counted."""
    readings = []
    for spec in specs:
        numerator = math.prod(metrics.get(name, 0.0) for name in spec.numerator)
        denominator = math.prod(metrics.get(name, 0.0) for name in spec.denominator)
        if not numerator or not denominator:
            return ()
        readings.append(RatioReading(spec.name, numerator / denominator, spec.unit, spec.target))
    return tuple(readings)


def ratio_metrics(flow: Flow) -> dict[str, float]:
    """The ratios as metrics: `ratio/<name>`, and `ratio/<name>_target` where there is a target."""
    values = {f"ratio/{ratio.name}": ratio.value for ratio in flow.ratios}
    targets = {f"ratio/{ratio.name}_target": ratio.target for ratio in flow.ratios if ratio.target}
    return values | targets


def _sample_age_s(metrics: Mapping[str, float], replays: Sequence[str]) -> float | None:
    """Seconds in which the envs produce as many rows as sampled rows are old; each replay gets its share."""
    age, rate = _mean(metrics, replays, "sample_age"), metrics.get("rate/env_steps_per_s", 0.0)
    return None if age is None or not rate else age * len(replays) / rate


def _mean(metrics: Mapping[str, float], owners: Iterable[str], name: str) -> float | None:
    values = [metrics[f"{owner}/{name}"] for owner in owners if f"{owner}/{name}" in metrics]
    return sum(values) / len(values) if values else None
