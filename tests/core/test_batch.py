import dataclasses

import pytest
import torch

from troop.core.batch import Rollout, Transition


def make_rollout(**extras):
    mask = torch.zeros(2, 3, dtype=torch.bool)
    obs = {"obs": torch.zeros(2, 3, 4), "privileged": torch.zeros(2, 3, 1)}
    return Rollout(torch.arange(3), obs, torch.zeros(2, 3, 1), torch.zeros(2, 3), mask, mask, mask, extras)


def make_transition(**fields):
    obs = {"obs": torch.zeros(5, 4)}
    return Transition(obs, torch.zeros(5, 1), torch.zeros(5), torch.ones(5), dict(obs), **fields)


def devices(batch):
    """Return the device type of every tensor by field, "field.key" for those in dicts."""
    types = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        nested = value.items() if isinstance(value, dict) else [("", value)]
        types |= {f"{field.name}.{k}".strip("."): x.device.type for k, x in nested if x is not None}
    return types


def test_rollout_moves_all_tensors_but_its_streams():
    moved = make_rollout(priority=torch.ones(2, 3)).to("meta")
    types = devices(moved)
    assert types.pop("streams") == "cpu" and set(types.values()) == {"meta"}
    assert types.keys() >= {"obs.obs", "obs.privileged", "action", "closing", "extras.priority"}


@pytest.mark.parametrize("fields", [{}, {"weight": torch.ones(5), "index": torch.arange(5)}])
def test_transition_moves_all_tensors_but_its_index(fields):
    moved = make_transition(**fields).to(torch.device("meta"))
    types = devices(moved)
    assert types.pop("index", "cpu") == "cpu" and set(types.values()) == {"meta"}
    assert ("weight" in types) == bool(fields) and types.keys() >= {"obs.obs", "next_obs.obs", "discount"}


def test_batches_on_the_host_are_returned_as_they_are():
    rollout, transition = make_rollout(), make_transition()
    assert rollout.cpu() is rollout.to("cpu") is rollout and transition.to("cpu") is transition


def test_rollouts_have_no_extras_by_default_and_do_not_share_them():
    first, second = (Rollout(*[torch.zeros(1)] * 7) for _ in range(2))
    assert first.extras == {} and first.extras is not second.extras
