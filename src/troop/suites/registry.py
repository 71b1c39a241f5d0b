"""Find suites by name, and the reference of an env in any suite."""

from __future__ import annotations

import importlib

from troop.core.config import suggest
from troop.core.errors import BadInput
from troop.suites.task import Suite, Task

SUITES = {
    "dmc": "DeepMind Control tasks with a published return",
    "dmc-12": "twelve of them, half with sparse rewards or hard exploration",
    "gym-mujoco": "eight Gymnasium MuJoCo tasks",
    "classic": "Gymnasium's classic control and Box2D tasks",
    "atari-5": "five Atari games that predict the median of all 57",
}
_MODULES = {
    "dmc": "dmc",
    "dmc-12": "dmc",
    "gym-mujoco": "gym_mujoco",
    "classic": "classic",
    "atari-5": "atari",
}


def find_suite(name: str) -> Suite:
    """Return the suite of this name; KeyError if there is none."""
    suites: dict[str, Suite] = importlib.import_module(f"troop.suites.{_MODULES[name]}").SUITES
    return suites[name]


def find_task(env: str) -> tuple[Task, str] | None:
    """Return the task of an env in the first suite that has it, with the citation of its reference."""
    for name in SUITES:
        suite = find_suite(name)
        for task in suite.tasks:
            if task.env == env:
                return task, suite.sources[task.source]
    return None


def parse_suite(text: str) -> tuple[str | None, tuple[str, ...]]:
    """Return name and env ids of a suite; a comma-separated list of env ids has no name.

    BadInput names similar suites or envs.
    """
    if text in SUITES:
        return text, find_suite(text).envs
    from troop.envs import resolve

    envs = tuple(dict.fromkeys(env for env in text.split(",") if env))
    try:
        for env in envs:
            resolve(env)
    except BadInput as error:
        if "," in text:
            raise
        similar = suggest(text, SUITES, 1)
        hint = f"did you mean {similar[0]!r}?" if similar else f"the suites are {', '.join(SUITES)}."
        raise BadInput(
            f"Unknown suite {text!r}; {hint} A comma-separated list of env ids works too."
        ) from error
    if not envs:
        raise BadInput(
            f"SUITE is {text!r}; give one of {', '.join(SUITES)} or a comma-separated list of env ids."
        )
    return None, envs
