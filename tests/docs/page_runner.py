"""Runs the commands and Python blocks of a page in a temporary directory, with a shortened budget."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from page_blocks import ROOT, SHELL, Block, blocks

from troop.cli.main import run as troop
from troop.cli.train import MANY_HOSTS
from troop.compare import child, session
from troop.core.engine import Until
from troop.experiment import Experiment
from troop.suites.registry import SUITES, find_suite

ENV_STEPS = 64  # of each run
ENVS = 4  # at most
ONE_THREAD = ["--engine", "inline", "--engine.threads", "1"]
EPISODES, EPISODE_STEPS = 2, 200  # of each evaluation
SKIPPED_FLAGS = ("--run", "--minutes", "--env-steps", "--seed", "--seeds", "--target", "--video", "--figure")
_done: set[tuple[str, ...]] = set()
_run_in_processes: set[str] = set()


def shorter(experiment: Experiment, env_steps: int) -> Experiment:
    """Return the experiment with few envs, few env steps and short evaluations."""
    return dataclasses.replace(
        experiment,
        env=experiment.env.with_envs(min(experiment.env.envs, ENVS)),
        system=fewer_actors(experiment.system),
        algorithm=fewer_minibatches(experiment.algorithm),
        until=Until(env_steps=min(env_steps, experiment.until.env_steps or env_steps)),
        evaluation=dataclasses.replace(
            experiment.evaluation, episodes=EPISODES, max_episode_steps=EPISODE_STEPS
        ),
    )


def fewer_actors(system: object) -> object:
    """Return the system with at most two actors."""
    if getattr(system, "actors", 0) <= 2:
        return system
    return dataclasses.replace(system, actors=2)


def fewer_minibatches(algorithm: object) -> object:
    """Return the algorithm with at most as many minibatches of whole envs as there are envs."""
    if getattr(algorithm, "core", "none") == "none" or getattr(algorithm, "minibatches", 0) <= ENVS:
        return algorithm
    return dataclasses.replace(algorithm, minibatches=ENVS)


@contextlib.contextmanager
def shortened() -> Iterator[None]:
    """Shorten every run that starts inside, and run the processes of a comparison in this one."""
    run, resume = Experiment.run, Experiment.resume

    def short_run(self: Experiment, *args: object, **kwargs: object) -> object:
        return run(shorter(self, ENV_STEPS), *args, **kwargs)

    def short_resume(self: Experiment, directory: object, *args: object, **kwargs: object) -> object:
        from troop.runs.summary import Summary

        done = Summary.read(directory.path).env_steps
        longer = dataclasses.replace(self, until=Until(env_steps=done + ENV_STEPS))
        return resume(shorter(longer, done + ENV_STEPS), directory, *args, **kwargs)

    def in_process(self: session.Session, argv: list[str], errors: Path) -> int:
        errors.touch()
        *allow, folder, recipe, seed = argv[len(session.COMMAND) :]
        return child.run(Path(folder), recipe, int(seed), allow)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, "run", short_run)
        patch.setattr(Experiment, "resume", short_resume)
        patch.setattr(session.Session, "_run_child", in_process)
        yield


class PageRunner:
    """Runs the blocks of one page in order: files are written, commands and Python blocks executed."""

    def __init__(self, page: str, template: Path) -> None:
        self.page, self.template = page, template
        self.names: dict[str, object] = {"__name__": "__main__"}

    def run(self) -> None:
        """Run every block of the page in the current directory; the first failure names page and line."""
        with shortened():
            for block in blocks(self.page):
                if not block.no_run:
                    self.run_block(block)

    def run_block(self, block: Block) -> None:
        """Run one block."""
        if block.file:
            path = Path(block.file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            if block.language in SHELL:
                subprocess.run(["bash", "-n", str(path)], check=True)
        elif block.language in SHELL:
            for words in block.commands():
                self.run_command(block, words)
        elif block.language == "python":
            code = compile(block.text, block.where, "exec")
            exec(code, self.names)

    def run_command(self, block: Block, words: list[str]) -> None:
        """Run one command, or check it where running it would change the machine or take too long."""
        program, *arguments = words
        handler = HANDLERS.get(program)
        assert handler is not None, (
            f"{block.where}: no test runs {program!r}; mark the block with no-run: REASON"
        )
        start = time.monotonic()
        try:
            code = handler(self, arguments)
        except SystemExit as stop:  # --help of tyro and argparse
            code = int(stop.code or 0)
        except Exception as error:
            raise AssertionError(f"{block.where}: {' '.join(words)} raised {error!r}") from error
        print(
            f"{time.monotonic() - start:6.1f} s  {' '.join(words)}"
        )  # shown for a test that fails, and by -s
        assert code in (0, None), f"{block.where}: {' '.join(words)} ended with exit code {code}"

    def troop(self, argv: list[str]) -> int:
        """Run `troop ARGV` in this process, unless the same run was made before."""
        verb = argv[0]
        if verb in ("resume", "eval", "play", "export"):
            self.provide(argv[1])
        if verb == "suite":
            argv = few_tasks(argv)
        if verb in ("compare", "suite"):
            argv = short_comparison(argv)
        if verb == "train":
            argv = in_one_thread(argv)
        if verb == "eval":
            argv = [*without(argv, ("--episodes",)), "--episodes", str(EPISODES)]
        if verb == "play":
            argv = [*without(argv, ("--frames", "--steps")), "--frames", "2", "--steps", "4"]
        if verb == "bench":
            argv = [*argv, "--seconds", "0.2"]
        key = tuple(without(argv, SKIPPED_FLAGS))
        if "--run" not in argv and verb in (
            "train",
            "bench",
            "envs",
            "recipes",
            "doctor",
            "compare",
            "suite",
        ):
            if key in _done:
                return 0
            _done.add(key)
        return troop(argv)

    def provide(self, run: str) -> None:
        """Copy a finished run to where the page expects one that it does not make itself."""
        if not Path(run).exists():
            shutil.copytree(self.template, run)

    def python(self, argv: list[str]) -> int:
        """Run a script or a module of this page in this process; `-m pytest` only checks its paths."""
        if argv[:2] == ["-m", "pytest"]:
            missing = [path for path in argv[2:] if not path.startswith("-") and not (ROOT / path).exists()]
            assert not missing, f"{missing} do not exist"
            return 0
        before = sys.argv
        sys.argv = argv
        try:
            runpy.run_path(argv[0], run_name="__main__")
        except SystemExit as stop:
            return int(stop.code or 0)
        finally:
            sys.argv = before
        return 0

    def make(self, argv: list[str]) -> int:
        """Check that the Makefile has the targets."""
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
        assert set(argv) <= targets, f"the Makefile has no target {set(argv) - targets}"
        return 0

    def pip(self, argv: list[str]) -> int:
        """Check that the extras exist."""
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for name in re.findall(r"(?:trooprl|\.)\[([\w,]+)\]", " ".join(argv)):
            assert set(name.split(",")) <= set(extras), f"pyproject.toml has no extra {name}"
        return 0

    def ignore(self, argv: list[str]) -> int:
        """Do nothing: the command changes the shell or the checkout only."""
        return 0

    def venv(self, argv: list[str]) -> int:
        """Check that the command creates a virtual environment."""
        assert argv[:2] == ["-m", "venv"], f"{argv} is not checked"
        return 0

    def cd(self, argv: list[str]) -> int:
        """Change the directory if it exists here."""
        if Path(argv[0]).is_dir():
            os.chdir(argv[0])
        return 0


HANDLERS: dict[str, Callable[[PageRunner, list[str]], int | None]] = {
    "troop": PageRunner.troop,
    "python": PageRunner.python,
    "make": PageRunner.make,
    "pip": PageRunner.pip,
    "cd": PageRunner.cd,
    "source": PageRunner.ignore,
    "export": PageRunner.ignore,
    "git": PageRunner.ignore,
    "python3.11": PageRunner.venv,
    "mkdir": lambda runner, argv: Path(argv[-1]).mkdir(parents=True, exist_ok=True),
    "cat": lambda runner, argv: print(Path(argv[0]).read_text()),
}


def in_one_thread(argv: list[str]) -> list[str]:
    """Return `troop train ARGV`; after the first run of a recipe in processes, later ones use one thread.

    Starting processes takes longer than the shortened runs.
    """
    recipe = argv[1] if len(argv) > 1 else ""
    if not recipe.startswith(MANY_HOSTS) or "--engine" in argv:
        return argv
    if recipe not in _run_in_processes:
        _run_in_processes.add(recipe)
        return argv
    return [*argv, *ONE_THREAD]


def short_comparison(argv: list[str]) -> list[str]:
    """Return a comparison or suite ARGV with few env steps and one seed, or two where seeds are added.

    All runs use one thread: starting processes takes longer than the shortened runs.
    """
    budget = any(word in ("--minutes", "--env-steps") for word in argv)
    short = without(argv, ("--minutes", "--env-steps"))
    if "--seeds" in short:
        position = short.index("--seeds") + 1
        short[position] = "1" if budget else "2"
    elif budget:
        short += ["--seeds", "1"]
    if budget:
        short += ["--env-steps", str(ENV_STEPS), *ONE_THREAD]
        short += ["--envs", str(ENVS)] if "--envs" not in short else []
        short += [
            "--evaluation.episodes",
            str(EPISODES),
            "--evaluation.max-episode-steps",
            str(EPISODE_STEPS),
        ]
    return short


def few_tasks(argv: list[str]) -> list[str]:
    """Return `troop suite ARGV` with two tasks of a named suite."""
    if len(argv) < 2 or argv[1] not in SUITES or "--tasks" in argv:
        return argv
    envs = find_suite(argv[1]).envs
    return [*argv, "--tasks", envs[0], envs[4]]


def without(argv: list[str], flags: tuple[str, ...]) -> list[str]:
    """Return argv without these flags and their values."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word in flags:
            next(words, None)
        elif word.split("=")[0] not in flags:
            kept.append(word)
    return kept
