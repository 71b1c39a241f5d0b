"""Processes that may be started: limits of the machine, the user and control groups of both versions."""

import resource

import pytest

from troop.core import control_groups, process_limits


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 900 of 1000 processes left, without other limits; returns a writer of its files."""
    monkeypatch.setattr(process_limits, "PROC", tmp_path / "proc")
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(control_groups, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    monkeypatch.setattr(process_limits.os, "getuid", lambda: 7)

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("proc/sys/kernel/pid_max", "1000\n")
    write("proc/sys/kernel/threads-max", "5000\n")
    write("proc/loadavg", "0.1 0.2 0.3 2/100 4711\n")
    return write


def test_without_other_limits_the_machine_decides(machine):
    assert process_limits.free_processes() == 900


@pytest.mark.parametrize(
    "own, root", [("0::/slurm/job\n", "cgroup"), ("5:pids:/slurm/job\n4:memory:/\n0::/\n", "cgroup/pids")]
)
def test_the_tightest_control_group_counts(machine, own, root):
    machine("own", own)
    machine(f"{root}/slurm/job/pids.max", "max\n")
    machine(f"{root}/slurm/job/pids.current", "3\n")
    assert process_limits.free_processes() == 900
    machine(f"{root}/slurm/pids.max", "64\n")
    machine(f"{root}/slurm/pids.current", "24\n")
    assert process_limits.free_processes() == 40
    machine(f"{root}/slurm/pids.current", "70\n")
    assert process_limits.free_processes() == 0


def test_threads_of_the_same_user_count_against_its_limit_but_not_for_root(machine, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (200, 500))
    machine("proc/11/status", "Name:\ta\nUid:\t7\t7\t7\t7\nThreads:\t30\n")
    machine("proc/12/status", "Name:\tb\nUid:\t8\t8\t8\t8\nThreads:\t500\n")
    machine("proc/13/status", "Name:\tended\n")
    assert process_limits.free_processes() == 170
    monkeypatch.setattr(process_limits.os, "getuid", lambda: 0)
    assert process_limits.free_processes() == 900


def test_this_machine_can_start_a_process():
    assert process_limits.free_processes() > 0
