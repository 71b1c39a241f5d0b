"""check_capacity: memory and open files are checked before any host process starts."""

import resource

import pytest

from troop.core.errors import SetupProblem
from troop.core.program import Program
from troop.engines import Processes, runtime
from troop.engines.runtime import HOST_BYTES, HOST_FILES, OTHER_FILES, check_capacity


class Stepping:
    """A role without work."""

    def step(self):
        pass


def program_with(hosts):
    program = Program("many")
    for i in range(hosts):
        program.add(f"actor{i}", Stepping)
    return program


@pytest.fixture
def new_limits(monkeypatch):
    """Fake a machine with memory for 600 hosts and limits of 1000 and 2000 files; list the limits set."""
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1000, 2000))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.append(limit))
    monkeypatch.setattr(runtime, "free_memory", lambda: 600 * HOST_BYTES)
    return limits


@pytest.mark.reliability("S5")
def test_too_little_memory_is_a_setup_problem_with_both_numbers(new_limits):
    with pytest.raises(SetupProblem, match=r"601 hosts need at least 12\.6 GB of memory and 12\.6") as caught:
        Processes().check(program_with(601))
    assert caught.value.exit_code == 5 and "lower the number of actors" in str(caught.value)
    assert not new_limits


def test_more_files_than_the_hard_limit_is_a_setup_problem(new_limits):
    most = (2000 - OTHER_FILES) // HOST_FILES
    check_capacity(most)
    with pytest.raises(SetupProblem, match=f"{most + 1} hosts need 2,00. open files and 2,000 are allowed"):
        check_capacity(most + 1)


def test_soft_limit_of_files_is_raised_only_as_far_as_needed(new_limits):
    check_capacity(20)
    assert not new_limits
    check_capacity(300)
    assert new_limits == [(OTHER_FILES + 300 * HOST_FILES, 2000)]
