"""Suite: a list of tasks, each with the returns of random actions and of a published agent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One env; a return is normalised so that random actions score 0 and the reference scores 1.

    `random` is the output of `python -m troop.suites.random_returns`, unless the suite says otherwise.
    """

    env: str
    random: float
    reference: float | None  # None: no return is published; reports use their best return
    source: str  # of the reference: a key of `Suite.sources`


@dataclass(frozen=True)
class Suite:
    """Tasks on which recipes are trained and reported together."""

    name: str
    tasks: tuple[Task, ...]
    sources: dict[str, str]  # short name -> citation
    remark: str = ""  # what the suite leaves out, and why

    @property
    def envs(self) -> tuple[str, ...]:
        """The env ids in order."""
        return tuple(task.env for task in self.tasks)
