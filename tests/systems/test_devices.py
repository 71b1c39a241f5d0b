"""Roles are put on devices by name; what no role or device is called is refused before anything starts."""

import dataclasses

import pytest
from test_apex import CLOCK, DQN, SETTING
from test_apex import SMALL as APEX
from test_gorila import SMALL as GORILA

from troop.core.errors import BadInput
from troop.systems import devices
from troop.systems.devices import parse_devices

USUAL = {"learner": "cuda:0", "actor0": "cpu", "actor1": "cpu", "actor10": "cpu"}


@pytest.fixture
def many_gpus(monkeypatch):
    """As if all devices were there."""
    monkeypatch.setattr(devices, "check_device", lambda device, flag: None)


def test_who_is_not_named_stays_where_it_usually_is(many_gpus):
    assert parse_devices("", USUAL) == parse_devices("  ", USUAL) == USUAL
    assert parse_devices("learner=cuda:1", USUAL) == USUAL | {"learner": "cuda:1"}


def test_a_kind_is_all_of_its_like_but_for_those_named_by_themselves(many_gpus):
    found = parse_devices("actor1=cuda:3, actor=cuda:2", USUAL)
    assert found == {"learner": "cuda:0", "actor0": "cuda:2", "actor1": "cuda:3", "actor10": "cuda:2"}


@pytest.mark.parametrize(
    "text, said",
    [
        ("lerner=cpu", "names 'lerner'; did you mean 'learner'?"),
        ("actor2=cpu", "names 'actor2'; did you mean 'actor"),
        ("oracle=cpu", "names 'oracle'; "),
        ("learner:cpu", "is 'learner:cpu'; it must look like role=cuda:1"),
        ("learner=", "it must look like"),
        ("learner=cpu,learner=cpu", "at most once"),
        ("learner=cuda:99", "for learner is 'cuda:99' but torch sees"),
        ("learner=gpu", "for learner is 'gpu'; it must be cpu, cuda or cuda:N"),
    ],
)
def test_mistakes_are_named(text, said):
    with pytest.raises(BadInput) as caught:
        parse_devices(text, USUAL)
    assert said in str(caught.value) and "--system.devices" in str(caught.value)


def test_apex_puts_its_learner_and_its_actors_there(many_gpus):
    system = dataclasses.replace(APEX, actors=3, devices="learner=cuda:1,actor2=cuda:0")
    nodes = system.program(DQN, CLOCK, SETTING).nodes
    learner = nodes["learner"].build.args
    assert learner[0].args[-1] == learner[4] == "cuda:1"
    assert [nodes[f"actor{i}"].build.args[0].args[-1].device for i in range(3)] == ["cpu", "cpu", "cuda:0"]


def test_gorila_puts_its_bundles_there_or_its_learners_and_actors(many_gpus):
    nodes = dataclasses.replace(GORILA, devices="bundle1=cuda:1").program(DQN, CLOCK, SETTING).nodes
    learners = [nodes[f"bundle{i}"].build.args[1].args[3] for i in range(2)]
    worlds = [nodes[f"bundle{i}"].build.args[0].make.keywords["device"] for i in range(2)]
    assert learners == worlds == ["cpu", "cuda:1"]
    apart = dataclasses.replace(GORILA, shared_replay=True, devices="learner=cuda:1,actor0=cuda:0")
    nodes = apart.program(DQN, CLOCK, SETTING).nodes
    assert [nodes[f"learner{i}"].build.args[4] for i in range(2)] == ["cuda:1", "cuda:1"]
    assert [nodes[f"actor{i}"].build.args[0].args[-1].device for i in range(2)] == ["cuda:0", "cpu"]
