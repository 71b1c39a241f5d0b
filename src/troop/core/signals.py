"""The signals that request a resumable stop; imports nothing slow, since the command reads it first."""

import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Ctrl-C, `kill`, the end of a terminal, the preemption of a job."""
