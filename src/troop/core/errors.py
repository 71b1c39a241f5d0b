"""Failures that the command line reports as one sentence, each with its exit code."""


class TroopError(Exception):
    """A failure that is shown to the user as one sentence without a traceback."""

    exit_code = 1


class BadInput(TroopError):
    """The user gave an unknown name, a value out of range, or settings that contradict each other."""

    exit_code = 2


class TrainingFault(TroopError):
    """Training failed: losses are NaN, or a role exceeded its restart budget."""

    exit_code = 4
    trace = ""  # traceback of the first failure, if it happened in another process


class EnvFault(TrainingFault):
    """An env returned something that its spaces exclude, or NaN again and again."""


class SetupProblem(TroopError):
    """The machine lacks something that the run needs: disk space, memory, a library, a device."""

    exit_code = 5


class UnsupportedEnv(BadInput):
    """The algorithm cannot learn this env, e.g. because of its actions; another recipe may be able to."""
