"""Files run side by side; tests that start processes and look for what is left of them, one after another."""

import pytest
import torch

TOGETHER = ("tests/engines/", "tests/conformance/test_engine.py")

# Whole runs of many processes, some killed, on a machine that may be busy: a test that fails is tried once
# more, and is shown as RERUN. What fails twice is broken; what is often shown wants looking at.
RUNS = ("tests/engines/test_ray", "tests/engines/test_processes.py", "tests/conformance/test_engine.py")
RUNS += ("tests/systems/", "tests/compare/test_compare_session.py", "tests/cli/")
RUNS += ("tests/learning/test_distributed.py", "tests/learning/test_split.py")


def pytest_collection_modifyitems(items):
    """Give each test the group whose tests share a worker: its file, or all that count shared memory."""
    for item in items:
        file = item.nodeid.partition("::")[0]
        group = "engines" if file.startswith(TOGETHER) else file
        item.add_marker(pytest.mark.xdist_group(group))
        if file.startswith(RUNS):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def same_numbers():
    """Every test begins with the same random numbers, so that one that fails fails again."""
    torch.manual_seed(0)
