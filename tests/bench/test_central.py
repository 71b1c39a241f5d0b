"""`troop bench central` with tiny settings: every part runs and prints figures that can be true."""

import math
import os
from pathlib import Path

import pytest

from troop.algorithms import ImpalaConfig
from troop.bench.system import central
from troop.bench.system.parts import CENTRAL_PARTS, PARTS


def check(results, count):
    assert len(results) == count
    assert all(math.isfinite(result.ratio) and result.ratio > 0 for result in results)


def test_round_trip_and_share_of_the_network():
    trip, *shares = results = central.inference(seconds=1.5, runners=2)  # gauges are read every second
    check(results, 3)
    assert "beyond the network" in trip.measured and all(share.ratio <= 1.05 / 0.8 for share in shares)


def test_seed_and_impala_on_images():
    check(central.images(seconds=2.5, count=1, algorithm=ImpalaConfig(unroll_length=5, hidden=(16,))), 2)


def test_scaling_is_measured_against_the_first_number_of_runners():
    one, two = results = central.scaling(seconds=2.5, counts=(1, 2))
    check(results, 2)
    assert one.ratio == pytest.approx(1.0) and two.name.startswith("SEED, 2 runners")


def test_light_runners_leave_no_process():
    (result,) = results = central.light(runners=4)
    check(results, 1)
    assert "0 processes left" in result.measured


def test_living_processes_are_found_by_their_name():
    assert os.getpid() in central.processes_named(Path("/proc/self/comm").read_text().strip())
    assert os.getpid() not in central.processes_named("runner")


def test_parts_have_names():
    assert set(CENTRAL_PARTS) < set(PARTS)


def test_memory_of_runner_server_and_replayed_sequences_is_as_predicted():
    runner, server, sequence = central.memory(seconds=0.5)
    assert 0.8 < runner.ratio < 1.25 and 0.8 < server.ratio < 1.25 and 0.9 < sequence.ratio < 1.1
