"""MetricAggregator: sums counts and averages all other metrics between two readings."""

from __future__ import annotations

from typing import Any

from troop.core.role import Metrics

COUNT_PREFIX = "count/"


class MetricAggregator:
    """Collects metrics of steps. Tensors stay on their device until they are read, so no step waits for one.

    Torch is imported only if a metric is a tensor: hosts without torch use this class too.
    """

    def __init__(self) -> None:
        self._counts: dict[str, Any] = {}
        self._values: dict[str, list[Any]] = {}

    def add(self, metrics: Metrics) -> None:
        """Add the metrics of one step."""
        for name, value in metrics.items():
            if not name.startswith(COUNT_PREFIX):
                self._values.setdefault(name, []).append(value)
            elif name in self._counts:
                self._counts[name] = self._counts[name] + value
            else:
                self._counts[name] = value

    def plain_count(self, name: str) -> float:
        """Return the sum of a count since the last reading; 0 if it is a tensor, which is not read here."""
        value = self._counts.get(name, 0)
        return 0 if _is_tensor(value) else value

    def read_counts(self) -> dict[str, float | int]:
        """Return and reset the sums of all `count/*` metrics."""
        counts, self._counts = self._counts, {}
        return {name: _as_number(value) for name, value in counts.items()}

    def read_means(self) -> dict[str, float]:
        """Return and reset the means of all other metrics."""
        values, self._values = self._values, {}
        return {name: _mean(series) for name, series in values.items()}


def _is_tensor(value: Any) -> bool:  # noqa: ANN401
    return hasattr(value, "requires_grad")


def _as_number(value: Any) -> int | float:  # noqa: ANN401
    number = float(value)
    return int(number) if number.is_integer() else number


def _mean(values: list[Any]) -> float:
    first = values[0]
    if _is_tensor(first):
        import torch

        # One stack and one read: on a GPU each read of a single value would synchronise.
        same_device = [torch.as_tensor(v, dtype=torch.float32, device=first.device) for v in values]
        return float(torch.stack(same_device).mean())
    return sum(float(value) for value in values) / len(values)
