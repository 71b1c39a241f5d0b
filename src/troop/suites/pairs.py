"""TimeRatio: how much longer a recipe takes to reach 90 % of the reference than an external program."""

from __future__ import annotations

import math
from dataclasses import dataclass

from troop.compare.statistics import median_time
from troop.suites.results import FRACTIONS, TaskResult, time_to


@dataclass(frozen=True)
class TimeRatio:
    """Time of a recipe divided by that of an external program, on the tasks that both were trained on.

    The ratio of a task is 0 where only the recipe reached 90 %, and infinite where only the other one did.
    """

    recipe: str
    external: str
    tasks: int  # that both were trained on
    ratios: dict[str, float]  # env -> ratio, where at least one of both reached 90 %

    @property
    def faster(self) -> int:
        """The number of tasks on which the recipe was faster."""
        return sum(ratio < 1 for ratio in self.ratios.values())

    @property
    def median(self) -> float:
        """The median over tasks; infinity without any."""
        return median_time(list(self.ratios.values()))

    @property
    def worst(self) -> tuple[str, float] | None:
        """The task with the highest ratio, and the ratio."""
        return max(self.ratios.items(), key=lambda item: item[1], default=None)


def time_ratios(tasks: list[TaskResult]) -> list[TimeRatio]:
    """Compare every recipe with every external program that share a task."""
    labels = {name: result.external for task in tasks for name, result in task.recipes.items()}
    pairs = [(own, other) for own in labels for other in labels if not labels[own] and labels[other]]
    ratios = [_time_ratio(own, other, tasks) for own, other in pairs]
    return [ratio for ratio in ratios if ratio.tasks]


def _time_ratio(recipe: str, external: str, tasks: list[TaskResult]) -> TimeRatio:
    shared = [task for task in tasks if all(len(task.final_scores(name)) for name in (recipe, external))]
    ratios = {}
    for task in shared:
        own, other = (
            time_to(task.recipes[name], FRACTIONS[-1]).median_seconds for name in (recipe, external)
        )
        if math.isfinite(own) and math.isfinite(other):
            ratios[task.env] = own / max(other, 1e-9)
        elif math.isfinite(own) or math.isfinite(other):
            ratios[task.env] = 0.0 if math.isfinite(own) else math.inf
    return TimeRatio(recipe, external, len(shared), ratios)
