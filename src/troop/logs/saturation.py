"""Warn once when a policy's actions stay at the bounds of the action range."""

from __future__ import annotations

from collections.abc import Mapping

METRIC = "policy/saturation"
LIMIT = 0.9  # share of outputs beyond 0.95 of the action range
LINES = 6  # consecutive lines of metrics above the limit before the warning


class SaturationMonitor:
    """Counts consecutive lines of metrics in which the share of saturated outputs is above `LIMIT`."""

    def __init__(self, algorithm: object = None) -> None:
        self.lines = 0
        self.cures = cures(algorithm)

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
            f"gradient of the policy vanishes. If returns do not improve, {self.cures}."
        )


def cures(algorithm: object) -> str:
    """Return what the user of this algorithm's config can do, naming only flags that it has."""
    texts = []
    penalty = getattr(algorithm, "preactivation_penalty", None)
    if penalty is not None:
        texts.append(f"pass --preactivation-penalty {10 * penalty if penalty else 1:g}")
    if getattr(algorithm, "normalize_rewards", True) is False:
        texts.append("pass --normalize-rewards")
    if type(algorithm).__name__ != "FlashSACConfig":
        texts.append("train with the recipe flashsac, whose entropy target a saturated policy cannot meet")
    else:
        texts.append("pass a smaller --actor-lr")
    return " or ".join(texts)
