"""Host: which of the optional role protocols of core/role.py it uses, and how."""

import subprocess
import sys

import pytest

from troop.core.errors import BadInput
from troop.core.program import Program, Schedule
from troop.engines.host import Host


class Passive:
    """Implements no protocol."""


class WeightHolder:
    """Holds weights of a module; without a name of the module they are those of the policy."""

    def __init__(self, weights, module_name=None):
        self.weights = weights
        if module_name is not None:
            self.module_name = module_name

    def latest(self, after):
        return None if self.weights is None else (1, {"w": self.weights})


class FullRole:
    """Implements every protocol."""

    restart_fresh = True

    def __init__(self):
        self.notes, self.value, self.closed = ["built"], 1, False

    def step(self):
        return None if self.value > 2 else {"count/updates": 1}

    def gauges(self):
        return {"value": self.value}

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]

    def close(self):
        self.closed = True


def host_of(**roles):
    program = Program("host")
    for name, (make, *args) in roles.items():
        program.add(name, make, *args)
    return Host(program, seed=0)


def test_passive_roles_need_no_protocol():
    host = host_of(passive=(Passive,))
    assert host.active == [] and host.step_all() == [] and host.gauges() == {} and host.notes() == []
    assert {key for key in host.state_dict() if key not in ("policy", "rng")} == set()
    host.load_state_dict({})
    host.close()


def test_optional_methods_of_roles_are_used():
    host = host_of(role=(FullRole,), passive=(Passive,))
    assert host.active == ["role"] and host.step_all() == [{"count/updates": 1}]
    assert host.gauges() == {"value": 1}
    assert host.notes() == ["built"] and host.notes() == []
    assert host.state_dict()["role.value"] == 1
    host.load_state_dict({"role.value": 5})
    assert host.roles["role"].value == 5 and host.step_all() == []
    host.load_state_dict({"role.value": 7}, only=lambda role: not getattr(role, "restart_fresh", False))
    assert host.roles["role"].value == 5
    host.close()
    assert host.roles["role"].closed


def test_state_that_does_not_fit_is_bad_input_that_names_the_role():
    with pytest.raises(BadInput, match="checkpoint of 'role' does not fit"):
        host_of(role=(FullRole,)).load_state_dict({"role.other": 1})


def test_scheduled_roles_are_not_active():
    program = Program("host")
    program.add("role", FullRole)
    program.schedule("role", Schedule(env_steps=5))
    host = Host(program, seed=0)
    assert host.active == [] and list(host.scheduled) == ["role"]


def test_policy_is_taken_from_the_first_role_that_has_weights_of_the_policy():
    host = host_of(
        critic=(WeightHolder, 1, "critic"), empty=(WeightHolder, None), first=(WeightHolder, 2, "policy"),
        second=(WeightHolder, 3),
    )  # fmt: skip
    assert host.policy() == {"w": 2}
    assert host_of(only=(WeightHolder, 3)).policy() == {"w": 3}
    assert host_of(critic=(WeightHolder, 1, "critic")).policy() == {}


def test_host_process_does_not_import_torch_by_itself():
    code = "import sys, troop.engines.processes.child; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
