"""Scheduling of EnvPool's threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from troop.envs.envpool.adapter import EnvPool
from troop.envs.envpool.simulator_threads import affinity_options

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux only")


def own_threads() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


def test_simulator_threads_do_not_preempt_and_their_caller_is_unchanged():
    policy, before = os.sched_getscheduler(0), own_threads()
    env = EnvPool("CartPole-v1", envs=4, threads=1).make_numpy(0)
    try:
        assert os.sched_getscheduler(0) == policy == os.SCHED_OTHER
        started = own_threads() - before
        assert started
        assert {os.sched_getscheduler(thread) for thread in started} == {os.SCHED_BATCH}
    finally:
        env.close()


def test_one_thread_per_core_keeps_to_its_core_unless_cores_are_left_to_others(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert affinity_options(0) == affinity_options(4) == {"thread_affinity_offset": 0}
    assert affinity_options(3) == affinity_options(5) == {}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})  # as with taskset -c 2,3
    assert affinity_options(0) == affinity_options(2) == affinity_options(4) == {}


def test_a_forbidden_policy_is_no_error(monkeypatch):
    def forbidden(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    env = EnvPool("CartPole-v1", envs=4, threads=1).make_numpy(0)
    env.reset(0)
    env.close()
