"""The failures a user can meet, each with the exit code of the command line."""


class TroopError(Exception):
    """A failure that is told to the user as one sentence, never as a traceback."""

    exit_code = 1


class BadInput(TroopError):
    """The user asked for something that cannot be: an unknown name, a value out of range."""

    exit_code = 2


class TrainingFault(TroopError):
    """Training itself went wrong: NaN losses, a role over its restart budget."""

    exit_code = 4
    trace = ""  # where it first went wrong, if that was in another process


class SetupProblem(TroopError):
    """The machine does not offer what the run needs: disk, memory, a library, a device."""

    exit_code = 5
