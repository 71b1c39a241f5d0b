"""Find the verb, run it, and turn every failure a user can cause into one sentence and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence

from troop.core.errors import BadInput, TroopError

VERBS = {
    "train": "train a recipe on an env",
    "resume": "go on with a run that was stopped",
    "compare": "which of some recipes is fastest for an env on this machine",
    "eval": "returns of a trained policy",
    "play": "film a trained policy",
    "envs": "list envs",
    "recipes": "list recipes",
    "doctor": "what this machine can do, and what a run would need",
    "bench": "measure Troop against the limits of this machine",
}

HELP = """\
Troop: distributed reinforcement learning for PyTorch.

usage: troop VERB [...]      (troop VERB --help for each)

{verbs}

First steps:
  troop train fasttd3 --env CartpoleSwingup-v1 --minutes 3 --run runs/first
  troop eval runs/first --episodes 32
  troop play runs/first --video first.mp4
  troop train fasttd3 --help        every setting, as a flag
  troop compare fasttd3 td3 --env Pendulum-v1 --minutes 2 --run runs/which

Exit codes: 0 done, 2 bad input, 3 stopped but resumable, 4 training fault, 5 set-up problem.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run `troop ARGV` and exit."""
    words = list(sys.argv[1:] if argv is None else argv)
    code = run(words, early=True)
    if (
        ray := sys.modules.get("troop.engines.ray.cluster")
    ) is not None and ray.BackgroundInit.running is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        ray.BackgroundInit.running.leave(code)
    sys.exit(code)


def run(argv: list[str], early: bool = False) -> int:
    """The exit code of `troop ARGV`; `early`, if this process is the command's: let start what takes long."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {verb:9} {about}" for verb, about in VERBS.items())))
        return 0
    if argv[0] in ("-V", "--version"):
        from troop import __version__

        print(f"troop {__version__}")
        return 0
    # Gymnasium warns of every float64 box it rounds; that is not the user's concern.
    warnings.filterwarnings("ignore", module="gymnasium")
    try:
        if argv[0] not in VERBS:
            from troop.core.config import suggest

            near = suggest(argv[0], VERBS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the verbs are {', '.join(VERBS)}."
            raise BadInput(f"Unknown verb {argv[0]!r}; {hint}")
        verb = importlib.import_module(f"troop.cli.{argv[0]}")
        if early and argv[0] == "train":
            verb.warm(argv[1:])
        code: int = verb.run(argv[1:])
        return code
    except TroopError as error:
        print(f"troop: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("troop: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone (`troop envs | head`): that is no failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        print("troop: out of memory; lower --system.replay-capacity, --envs or the batch.", file=sys.stderr)
        return 5
