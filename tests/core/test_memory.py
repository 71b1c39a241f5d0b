"""Free memory within control groups of both versions, also where a container hides its own path."""

import subprocess
import sys

import pytest

from troop.core import control_groups, memory


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 64 GB free; the returned function writes its control group files."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {64 << 20} kB\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(control_groups, "OWN_CGROUPS", tmp_path / "own")

    def write(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


def test_without_a_limit_the_machine_decides(machine):
    assert memory.free_memory() == 64 << 30  # no control groups at all
    machine("0::/job\n", {"job/memory.max": "max\n", "job/memory.current": "5\n", "job/memory.stat": "a 1\n"})
    assert memory.free_memory() == 64 << 30


def test_version_2_counts_reclaimable_cache_and_the_tightest_parent(machine):
    stat = f"anon 5\ninactive_file {1 << 30}\n"
    machine(
        "0::/slurm/job\n",
        {
            "slurm/job/memory.max": str(16 << 30),
            "slurm/job/memory.current": str(10 << 30),
            "slurm/job/memory.stat": stat,
        },
    )
    assert memory.free_memory() == 7 << 30
    parent = {
        "slurm/memory.max": str(8 << 30),
        "slurm/memory.current": str(7 << 30),
        "slurm/memory.stat": stat,
    }
    machine("0::/slurm/job\n", parent)
    assert memory.free_memory() == 2 << 30


def test_version_1_in_a_container_that_hides_the_path_of_the_host(machine):
    machine(
        "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n",
        {
            "memory/memory.limit_in_bytes": str(4 << 30),
            "memory/memory.usage_in_bytes": str(3 << 30),
            "memory/memory.stat": "total_inactive_file 0\n",
        },
    )
    assert memory.free_memory() == 1 << 30


def test_an_exhausted_group_has_nothing_free(machine):
    files = {"memory.max": "100", "memory.current": "200", "memory.stat": "inactive_file 10"}
    machine("0::/\n", files)
    assert memory.free_memory() == 0


def test_resident_memory_grows_with_an_allocation():
    code = (
        "from troop.core import memory\n"
        "before = memory.resident_bytes()\n"
        "block = b'x' * (64 << 20)\n"
        "print(memory.resident_bytes() - before)\n"
    )  # a process of its own: here other threads may free memory meanwhile
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) > 32 << 20
