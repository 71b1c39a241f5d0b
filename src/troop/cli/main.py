"""Run the module of a verb; every error that a user can cause becomes one sentence and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import warnings

from troop.core.errors import BadInput, TroopError

VERBS = {
    "train": "train a recipe on an env",
    "resume": "continue a run from its last checkpoint",
    "compare": "find the fastest of several recipes for an env on this machine",
    "suite": "train recipes on a list of tasks and report normalised returns",
    "eval": "evaluate a trained policy",
    "play": "record a video of a trained policy",
    "export": "write a trained policy as an ONNX file",
    "envs": "list envs",
    "recipes": "list recipes",
    "doctor": "check this machine, and estimate the memory of a run",
    "bench": "measure the speed of Troop against the limits of this machine",
}

HELP = """\
Troop: distributed reinforcement learning for PyTorch.

usage: troop VERB [...]      (`troop VERB --help` explains a verb)

{verbs}

First steps:
  troop train fasttd3 --env CartpoleSwingup-v1 --minutes 3 --run runs/first
  troop eval runs/first --episodes 32
  troop play runs/first --video first.mp4
  troop train fasttd3 --help        all settings of the recipe, as flags
  troop compare fasttd3 td3 --env Pendulum-v1 --minutes 2 --run runs/which

Exit codes: 0 done, 2 bad input, 3 stopped but resumable, 4 training fault, 5 set-up problem.
"""


def run(argv: list[str], warm_up: bool = False) -> int:
    """Run `troop ARGV` and return its exit code.

    With `warm_up`, slow background processes start before the heavy imports; only the command itself does it.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {verb:9} {about}" for verb, about in VERBS.items())))
        return 0
    if argv[0] in ("-V", "--version"):
        from troop import __version__

        print(f"troop {__version__}")
        return 0
    # Gymnasium warns about every float64 bound that it rounds, which the user cannot change.
    warnings.filterwarnings("ignore", module="gymnasium")
    try:
        if argv[0] not in VERBS:
            from troop.core.config import suggest

            similar = suggest(argv[0], VERBS, 1)
            hint = f"did you mean {similar[0]!r}?" if similar else f"the verbs are {', '.join(VERBS)}."
            raise BadInput(f"Unknown verb {argv[0]!r}; {hint}")
        verb = importlib.import_module(f"troop.cli.{argv[0]}")
        if warm_up and argv[0] == "train":
            verb.warm_up(argv[1:])
        code: int = verb.run(argv[1:])
        return code
    except TroopError as error:
        from troop.logs.progress import printable

        # A name in a file of a stranger may have escape sequences; a traceback keeps its lines.
        print("troop:", "\n".join(map(printable, str(error).splitlines())), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("troop: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output has closed it (`troop envs | head`), which is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        print("troop: out of memory; lower --replay-capacity, --envs or --batch-size.", file=sys.stderr)
        return 5
