"""`troop bench`: the machine, the table, JSON lines, and the FLOP count of the learner."""

import json
import time

import pytest

from troop.bench.learner import SIZES, flop
from troop.bench.table import BenchResult, format_table
from troop.bench.timing import time_alternately
from troop.cli import bench
from troop.cli.main import run
from troop.compare.machine import machine_facts
from troop.logs import status_line

RESULTS = [BenchResult("sample", "10 us", "gather 20 us", 0.5, ">= 0.4"), BenchResult("add", "3 us", "", 2.0)]


def test_flop_per_row_equals_the_count_by_hand():
    # Critic 30-1024-512-256-101 and actor 24-512-256-128-6; biases are not counted.
    critic = 30 * 1024 + 1024 * 512 + 512 * 256 + 256 * 101
    actor = 24 * 512 + 512 * 256 + 256 * 128 + 128 * 6
    critic_update = actor + 2 * critic + 2 * (3 * critic - 30 * 1024)
    actor_update = 3 * actor - 24 * 512 + 4 * critic
    full = flop(*SIZES["full"][:2])
    assert full == 2 * critic_update + actor_update
    assert 14.9e6 < full < 15.2e6


def test_table_has_a_heading_and_aligned_columns():
    head, first, second = format_table(RESULTS).splitlines()
    assert head.split() == ["benchmark", "measured", "limit", "ratio", "target"]
    assert first.index("10 us") == second.index("3 us") == head.index("measured")
    assert first.split() == ["sample", "10", "us", "gather", "20", "us", "0.50", ">=", "0.4"]


@pytest.fixture
def fixed_results(monkeypatch):
    monkeypatch.setattr(bench, "_measure_parts", lambda args, report: RESULTS)


def test_machine_is_printed_once_above_the_table(fixed_results, capsys):
    assert run(["bench", "replay"]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = machine_facts("cpu")
    assert lines[0].startswith("Machine: ") and facts["cpu"] in lines[0]
    assert f"{facts['cores']} torch thread" in lines[0]
    assert lines[1].startswith("benchmark") and len(lines) == 4


def test_json_lines_are_the_machine_and_one_object_per_result(fixed_results, capsys):
    assert run(["bench", "replay", "--json", "--threads", "1"]) == 0
    machine, *results = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert machine == {"machine": machine_facts("cpu") | {"torch_threads": 1}}
    assert results[0] == {
        "name": "sample",
        "measured": "10 us",
        "limit": "gather 20 us",
        "ratio": 0.5,
        "target": ">= 0.4",
    }
    assert len(results) == 2


def test_time_alternately_reports_every_round():
    reports, calls = [], []
    seconds = time_alternately({"a": lambda: calls.append(1)}, rounds=3, min_seconds=0, report=reports.append)
    assert reports == ["warm-up", "round 1 of 3", "round 2 of 3", "round 3 of 3"] and set(seconds) == {"a"}


def test_benchmark_says_what_it_measures(monkeypatch, capsys):
    def measure(args, report):
        report("learner full: round 3 of 15")
        time.sleep(0.2)
        return RESULTS

    monkeypatch.setattr(bench, "_measure_parts", measure)
    monkeypatch.setattr(status_line, "PIPE_INTERVAL_S", 0.02)
    assert run(["bench", "learner", "--json"]) == 0
    output = capsys.readouterr()
    assert "learner full: round 3 of 15 (0s)" in output.err
    assert len(output.out.splitlines()) == 3 and "round" not in output.out


def test_actor_and_system_report_one_thread_per_process(fixed_results, capsys):
    assert run(["bench", "actor"]) == 0
    assert "1 torch thread per process" in capsys.readouterr().out
