"""Reference page of exit codes: those of the error classes, and those of a normal end."""

from __future__ import annotations

from troop.core.errors import TroopError
from troop_docs.markdown import code, table

NORMAL = {
    0: ("", "The command finished."),
    3: (
        "",
        "The run was stopped on request (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1) and can be resumed.",
    ),
    130: ("", "Interrupted: a second Ctrl-C during a run, or Ctrl-C outside of a run. Nothing was saved."),
}


def page() -> str:
    """Return the table, ordered by code."""
    errors = {
        kind.exit_code: (kind.__name__, (kind.__doc__ or "").strip()) for kind in TroopError.__subclasses__()
    }
    rows = [
        [str(number), code(name), " ".join(text.split())]
        for number, (name, text) in sorted((NORMAL | errors).items())
    ]
    return table(["code", "exception", "meaning"], rows)
