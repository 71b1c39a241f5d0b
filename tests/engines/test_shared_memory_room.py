"""Whether a machine has room for a process per host is asked before any is started."""

import resource
from types import SimpleNamespace

import psutil
import pytest

from troop.core.errors import SetupProblem
from troop.core.program import Program
from troop.engines import Processes
from troop.engines.runtime import HOST_BYTES, HOST_FILES, OTHER_FILES, check_capacity


class StepRecorder:
    """Does nothing."""

    def step(self):
        """Nothing."""


def of(hosts):
    program = Program("many")
    for i in range(hosts):
        program.add(f"actor{i}", StepRecorder)
    return program


@pytest.fixture
def limits(monkeypatch):
    """A machine of the test's own: files soft and hard, and what the soft limit was set to."""
    set_to = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1000, 2000))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limit: set_to.append(limit))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=600 * HOST_BYTES))
    return set_to


def test_more_hosts_than_memory_has_room_for_are_refused_with_the_numbers(limits):
    with pytest.raises(SetupProblem, match=r"601 hosts want at least 12\.6 GB of memory and 12\.6") as no:
        Processes().check(of(601))
    assert no.value.exit_code == 5 and "lower the number of actors" in str(no.value) and not limits


def test_more_hosts_than_files_may_be_open_are_refused(limits):
    most = (2000 - OTHER_FILES) // HOST_FILES
    check_capacity(most)
    with pytest.raises(SetupProblem, match=f"{most + 1} hosts want 2,00. open files and 2,000 are allowed"):
        check_capacity(most + 1)


def test_the_soft_limit_of_files_is_raised_as_far_as_needed_and_no_further(limits):
    check_capacity(20)
    assert not limits
    check_capacity(300)
    assert limits == [(OTHER_FILES + 300 * HOST_FILES, 2000)]
