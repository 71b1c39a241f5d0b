"""check_capacity: what a machine cannot hold is refused before any process starts, with what it can."""

import resource

import pytest

from troop.algorithms import PPOConfig
from troop.core.errors import SetupProblem
from troop.core.group import Group
from troop.core.program import Program
from troop.core.system import Evaluation, RunSettings
from troop.engines import Processes
from troop.engines.processes import capacity
from troop.engines.processes.capacity import (
    ACTIVE_THREADS,
    HOST_BYTES,
    HOST_FILES,
    HOST_THREADS,
    OTHER_FILES,
    OTHER_THREADS,
    PEER_FILES,
    Demand,
    Machine,
    files_of_host,
)
from troop.engines.rpc.transport import HostSpec
from troop.envs import Toy
from troop.systems import DataParallel


class Stepping:
    """A role without work."""

    kind = "acting"

    def __init__(self, peer=None):
        pass

    def step(self):
        pass


class Member(Stepping):
    def __init__(self, group: Group):
        pass


def program_with(hosts):
    program = Program("many")
    for i in range(hosts):
        program.add(f"actor{i}", Stepping)
    return program


def group_of(size):
    program = Program("group")
    for rank, group in enumerate(program.group("workers", size)):
        program.add(f"worker{rank}", Member, group)
    program.add("evaluator", Stepping)
    return program


@pytest.fixture
def new_limits(monkeypatch):
    """Fake a machine with memory for 600 hosts and limits of 1000 and 2000 files; list the limits set."""
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1000, 2000))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.append(limit))
    monkeypatch.setattr(capacity, "free_memory", lambda: 600 * HOST_BYTES["forkserver"])
    monkeypatch.setattr(capacity, "free_processes", lambda: 100_000)
    monkeypatch.setattr(capacity, "cores", lambda: 2)
    return limits


def refusal(program, **settings):
    with pytest.raises(SetupProblem) as caught:
        Processes(**settings).check(program)
    assert caught.value.exit_code == 5
    return str(caught.value)


@pytest.mark.reliability("S5")
def test_too_little_memory_is_a_setup_problem_with_both_numbers(new_limits, monkeypatch):
    monkeypatch.setattr(capacity, "HOST_FILES", 1)
    Processes().check(program_with(600))
    message = refusal(program_with(601))
    assert (
        "601 of them actors, need at least 15.8 GB of memory and 15.7 GB are free; 600 actors fit" in message
    )
    assert "Lower the number of actors" in message and "--engine ray" in message


def test_every_process_imports_torch_with_spawn(new_limits):
    most = 600 * HOST_BYTES["forkserver"] // HOST_BYTES["spawn"]
    Processes(start="spawn").check(program_with(most))
    assert f"; {most} actors fit" in refusal(program_with(most + 1), start="spawn")


def test_more_files_than_the_hard_limit_is_a_setup_problem(new_limits):
    most = (2000 - OTHER_FILES) // HOST_FILES
    Processes().check(program_with(most))
    message = refusal(program_with(most + 1))
    assert f"open files and 2,000 are allowed; {most} actors fit" in message


def test_the_host_that_all_others_call_needs_most_files(new_limits):
    program = Program("served")
    server = program.add("weights", Stepping)
    for i in range(40):
        program.add(f"actor{i}", Stepping, server)
    demand = Demand.of(program, "forkserver")
    assert (demand.hosts, demand.peers) == (41, 40) and demand.files == OTHER_FILES + 40 * PEER_FILES


def test_soft_limit_of_files_is_raised_only_as_far_as_needed(new_limits):
    Processes().check(program_with(20))
    assert not new_limits
    Processes().check(program_with(300))
    assert new_limits == [(OTHER_FILES + 300 * HOST_FILES, 2000)]


def test_processes_raise_their_own_limit_of_files(new_limits):
    program = Program("own")
    program.add("weights", Stepping)
    spec = HostSpec("weights", program, {}, tuple(f"actor{i}" for i in range(200)), 0, 1, 1, 1.0)
    assert files_of_host(spec) == OTHER_FILES + 200 * PEER_FILES
    capacity.raise_file_limit(files_of_host(spec))
    capacity.raise_file_limit(10**6)  # as far as the hard limit allows
    capacity.raise_file_limit(1000)
    assert new_limits == [(OTHER_FILES + 200 * PEER_FILES, 2000), (2000, 2000)]


def test_more_threads_than_the_user_or_its_control_group_may_have_is_a_setup_problem(new_limits, monkeypatch):
    each = HOST_THREADS + ACTIVE_THREADS
    monkeypatch.setattr(capacity, "free_processes", lambda: OTHER_THREADS + 64 * each)
    Processes().check(program_with(64))
    message = refusal(program_with(65))
    assert f"need {OTHER_THREADS + 65 * each} processes and threads and" in message
    assert "; 64 actors fit" in message


def test_more_ranks_than_can_start_in_time_is_a_setup_problem_with_the_number_that_can(
    monkeypatch, new_limits
):
    """501 hosts x 0.1 s and 500 x 500 connections x 0.007 s are 1800 s of CPU time, on two cores 900 s."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (10**6, 10**6))
    message = refusal(group_of(500))
    assert "501 processes, 500 of them workers, need 900 s to start on 2 cores" in message
    assert "--engine.start-limit-s is 300; 285 workers fit" in message
    Processes().check(group_of(285))
    Processes(start_limit_s=1000.0).check(group_of(500))


def test_a_machine_without_room_for_one_worker_says_so(monkeypatch, new_limits):
    monkeypatch.setattr(capacity, "free_memory", lambda: 1)
    assert "not even one of each kind fits" in refusal(group_of(4))


def test_the_number_that_fits_is_the_largest_one():
    demand = Demand.of(group_of(200), "forkserver")
    machine = Machine(120 * HOST_BYTES["forkserver"], 10**6, 10**6, 64, 300.0)
    fitting = [n for n in range(1, 200) if machine.shortage(demand.without(200 - n)) is None]
    assert fitting == list(range(1, 120))  # and the evaluator


def test_data_parallel_workers_are_a_group(new_limits):
    settings = RunSettings(0, "cpu", Evaluation(episodes=1))
    program = DataParallel(3).program(PPOConfig(minibatches=1), Toy("Clock", 4), settings)
    demand = Demand.of(program, "forkserver")
    assert (demand.hosts, demand.active, demand.members) == (4, 4, 3)


def test_ten_thousand_actors_are_refused_at_once(new_limits):
    assert "10,000 of them actors" in refusal(program_with(10_000))
