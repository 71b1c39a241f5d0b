"""Resource requests, the order in which hosts start, and a local Ray that does not start; without a Ray."""

import pytest

from troop.core.errors import BadInput, SetupProblem
from troop.core.program import Program, Schedule
from troop.engines.pool import host_handles
from troop.engines.ray import cluster
from troop.engines.ray.placement import MIN_CPUS, parse_requests, resource_bundles, role_of
from troop.engines.ray.pool import deferrable_hosts


class Stepping:
    """A role that steps and may call a server."""

    def __init__(self, server=None):
        self.server = server

    def step(self):
        """Do nothing."""


class Serving:
    """A role without `step`."""


def test_requests_for_a_host_override_requests_for_its_role_and_for_all():
    program = Program("placement")
    program.add("replay", Serving)
    for i in range(2):
        program.add(f"actor{i}", Stepping)
    program.add("runner/0", Stepping)
    requests = [
        *parse_requests(("0.5", "actor=2", "actor1=3"), "cpus", "CPU"),
        *parse_requests(("runner=1",), "gpus", "GPU"),
        *parse_requests(("actor:sim=4",), "resources"),
    ]
    assert resource_bundles(host_handles(program), requests) == {
        "replay": {"CPU": MIN_CPUS},
        "actor0": {"CPU": 2.0, "sim": 4.0},
        "actor1": {"CPU": 3.0, "sim": 4.0},
        "runner/0": {"CPU": 0.5, "GPU": 1.0},
    }
    assert [role_of(name) for name in ("actor12", "runner/0/1", "7")] == ["actor", "runner", "7"]


@pytest.mark.parametrize("text", ["actor=", "=1", "actor=nan", "actor=inf", "actor 1", "1e999"])
def test_malformed_request_is_rejected(text):
    with pytest.raises(BadInput, match=r"--engine.cpus is"):
        parse_requests((text,), "cpus", "CPU")


def test_run_starts_with_all_servers_and_one_host_of_each_kind():
    program = Program("apex")
    shards = [program.add(f"replay{i}", Serving) for i in range(2)]
    program.add("learner", type("Learner", (Stepping,), {}), shards[0])
    for i in range(3):
        program.add(f"actor{i}", Stepping, shards[i % 2])
    program.add("evaluator", type("Evaluator", (Stepping,), {}), shards[0])
    program.schedule("evaluator", Schedule(seconds=1))
    assert deferrable_hosts(host_handles(program)) == {"actor1", "actor2", "evaluator"}


def test_start_failure_of_local_ray_is_reported_in_one_sentence(monkeypatch):
    ray = pytest.importorskip("ray")

    def init(**_):
        raise RuntimeError("The node did not come up.\nmany\nlines")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        SetupProblem, match=r"^Ray could not start on this machine: The node did not come up\.$"
    ):
        cluster._start_local()
