"""--system.devices places roles on devices by name; unknown roles and devices are rejected."""

import dataclasses

import pytest
from small_systems import APEX, DISCRETE_CLOCK, DQN, GORILA, SETTINGS

from troop.core.errors import BadInput
from troop.systems import devices
from troop.systems.devices import parse_devices

DEFAULTS = {"learner": "cuda:0", "actor0": "cpu", "actor1": "cpu", "actor10": "cpu"}


@pytest.fixture
def any_device(monkeypatch):
    """Accept every device, as if this machine had it."""
    monkeypatch.setattr(devices, "check_device", lambda device, flag: None)


def test_unlisted_roles_keep_their_default_device(any_device):
    assert parse_devices("", DEFAULTS) == parse_devices("  ", DEFAULTS) == DEFAULTS
    assert parse_devices("learner=cuda:1", DEFAULTS) == DEFAULTS | {"learner": "cuda:1"}


def test_role_without_number_means_all_that_are_not_listed_by_number(any_device):
    parsed = parse_devices("actor1=cuda:3, actor=cuda:2", DEFAULTS)
    assert parsed == {"learner": "cuda:0", "actor0": "cuda:2", "actor1": "cuda:3", "actor10": "cuda:2"}


@pytest.mark.parametrize(
    "text, message",
    [
        ("lerner=cpu", "lists 'lerner'; did you mean 'learner'?"),
        ("actor2=cpu", "lists 'actor2'; did you mean 'actor"),
        ("oracle=cpu", "lists 'oracle'; "),
        ("learner:cpu", "is 'learner:cpu'; it must look like role=cuda:1"),
        ("learner=", "it must look like"),
        ("learner=cpu,learner=cpu", "at most once"),
        ("learner=cuda:99", "for learner is 'cuda:99' but torch sees"),
        ("learner=gpu", "for learner is 'gpu'; it must be cpu, cuda or cuda:N"),
    ],
)
def test_invalid_entries_raise_with_their_text(text, message):
    with pytest.raises(BadInput) as caught:
        parse_devices(text, DEFAULTS)
    assert message in str(caught.value) and "--system.devices" in str(caught.value)


def test_apex_places_its_learner_and_actors(any_device):
    system = dataclasses.replace(APEX, actors=3, devices="learner=cuda:1,actor2=cuda:0")
    nodes = system.program(DQN, DISCRETE_CLOCK, SETTINGS).nodes
    learner = nodes["learner"].build.args
    assert learner[0].args[-1] == learner[4] == "cuda:1"
    assert [nodes[f"actor{i}"].build.args[0].args[-1].device for i in range(3)] == ["cpu", "cpu", "cuda:0"]


def test_gorila_places_its_bundles_or_its_learners_and_actors(any_device):
    system = dataclasses.replace(GORILA, devices="bundle1=cuda:1")
    nodes = system.program(DQN, DISCRETE_CLOCK, SETTINGS).nodes
    learner_devices = [nodes[f"bundle{i}"].build.args[1].args[3] for i in range(2)]
    env_devices = [nodes[f"bundle{i}"].build.args[0].make.keywords["device"] for i in range(2)]
    assert learner_devices == env_devices == ["cpu", "cuda:1"]
    shared = dataclasses.replace(GORILA, shared_replay=True, devices="learner=cuda:1,actor0=cuda:0")
    nodes = shared.program(DQN, DISCRETE_CLOCK, SETTINGS).nodes
    assert [nodes[f"learner{i}"].build.args[4] for i in range(2)] == ["cuda:1", "cuda:1"]
    assert [nodes[f"actor{i}"].build.args[0].args[-1].kwargs["device"] for i in range(2)] == ["cuda:0", "cpu"]
