"""Distribution of tests over workers, reruns of tests with many processes, and the seed of every test."""

import os

import pytest
import torch

# These tests count shared-memory files and processes of the machine: all of them run in one worker.
ONE_WORKER = ("tests/engines/", "tests/conformance/test_engine.py")

# Complete runs of many processes, some of them killed, on a machine that may be loaded: a failing test is
# repeated once and reported as RERUN. A test that fails twice is broken; one that is often rerun needs a fix.
RERUN_ONCE = (
    "tests/engines/test_ray",
    "tests/engines/test_processes.py",
    "tests/conformance/test_engine.py",
    "tests/systems/",
    "tests/compare/test_compare_session.py",
    "tests/cli/",
    "tests/outside/test_own_code.py",
    "tests/docs/test_pages.py",
    "tests/learning/test_distributed.py",
    "tests/learning/test_split.py",
)


def pytest_collection_modifyitems(items):
    """Assign each test to the group of its file, or to the common group of `ONE_WORKER`; skip long tests."""
    for item in items:
        if item.get_closest_marker("long") and not os.environ.get("TROOP_LONG_TESTS"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; run `make test-long`"))
        file = item.nodeid.partition("::")[0]
        group = "engines" if file.startswith(ONE_WORKER) else file
        item.add_marker(pytest.mark.xdist_group(group))
        if file.startswith(RERUN_ONCE):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def fixed_seed():
    """Seed torch before every test, so that a failure is reproducible, and give every worker one thread.

    Threads of several workers on the same cores wait for each other at every operation.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
