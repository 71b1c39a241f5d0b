"""Warn once when a policy's actions stay at the bounds of the action range."""

from __future__ import annotations

from collections.abc import Mapping

METRIC = "policy/saturation"
LIMIT = 0.9  # share of outputs beyond 0.95 of the action range
LINES = 6  # consecutive lines of metrics above the limit before the warning


class SaturationMonitor:
    """Counts consecutive lines of metrics in which the share of saturated outputs is above `LIMIT`."""

    def __init__(self) -> None:
        self.lines = 0

    def update(self, metrics: Mapping[str, float]) -> str | None:
        """Take the metrics of one line; return the warning on the line on which it is due, else None."""
        share = metrics.get(METRIC)
        if share is None:
            return None
        self.lines = self.lines + 1 if share > LIMIT else 0
        if self.lines != LINES:
            return None
        return (
            f"{METRIC} is {share:.2f}: almost all actions are at the bounds of the action range, where the "
            "gradient of the policy vanishes. If returns do not improve, pass --preactivation-penalty 1 or "
            "train with the recipe flashsac, whose entropy target a saturated policy cannot meet."
        )
