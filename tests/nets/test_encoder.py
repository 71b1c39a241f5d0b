"""The encoder of named observations: order of features, normalization, leading axes."""

import pytest
import torch

from troop.nets.cnn import build_torso
from troop.nets.encoder import ObservationEncoder, Trunk
from troop.nets.normalizer import Normalizer

SHAPES = {"joints": (3,), "front": (3, 12, 12), "touch": (2, 2), "wrist": (1, 5, 7), "privileged": (2,)}


def observations(*leading):
    return {
        name: torch.randint(0, 256, (*leading, *shape), dtype=torch.uint8)
        if len(shape) == 3
        else torch.randn(*leading, *shape)
        for name, shape in SHAPES.items()
    }


def test_features_are_those_of_each_image_then_the_columns_of_all_vectors():
    torch.manual_seed(0)
    encoder, obs = ObservationEncoder(SHAPES), observations(4)
    torch.manual_seed(0)
    front, wrist = (build_torso("small", SHAPES[name]) for name in ("front", "wrist"))
    parts = [
        torso(obs[name] / 255) for (torso, _), name in zip((front, wrist), ("front", "wrist"), strict=True)
    ]
    expected = torch.cat((*parts, obs["joints"], obs["touch"].flatten(1), obs["privileged"]), 1)
    features = encoder(encoder.select(obs))
    assert torch.allclose(features, expected) and features.shape[1] == encoder.features
    assert encoder.image_features == front[1] + wrist[1] and encoder.columns == 3 + 4 + 2


def test_only_vectors_are_normalized_and_skipped_ones_leave_their_statistics():
    encoder, obs, normalizer = ObservationEncoder(SHAPES), observations(50), Normalizer(9)
    normalizer.update(encoder.vector(obs))
    every = encoder.select(obs, normalizer)["vector"]
    assert torch.allclose(every, normalizer(encoder.vector(obs)))
    without = {name: x for name, x in obs.items() if name != "privileged"}
    assert torch.equal(encoder.select(without, normalizer, ("privileged",))["vector"], every[:, :-2])
    assert encoder.select(obs, normalizer)["front"] is obs["front"]


def test_any_number_of_leading_axes():
    encoder, obs = ObservationEncoder(SHAPES, "small"), observations(2, 3)
    flat = {name: x.flatten(0, 1) for name, x in obs.items()}
    assert torch.allclose(
        encoder(encoder.select(obs)).flatten(0, 1), encoder(encoder.select(flat)), atol=1e-6
    )


def test_vectors_alone_need_no_parameters_and_pass_unchanged():
    encoder, x = ObservationEncoder({"obs": (4,)}), torch.randn(5, 4)
    assert not list(encoder.parameters()) and not encoder.state_dict()
    assert encoder(encoder.select({"obs": x})) is x and Trunk(0, 50)(x) is x


def test_the_trunk_reduces_image_features_and_keeps_the_other_columns():
    trunk, x = Trunk(20, 6), torch.randn(5, 23)
    y = trunk(x)
    assert y.shape == (5, 23 - trunk.removed) == (5, 9) and torch.equal(y[:, 6:], x[:, 20:])
    assert y[:, :6].abs().max() <= 1
    assert Trunk(20, 6)(x[:, :20]).shape == (5, 6)


def test_an_image_that_is_too_small_for_its_torso_is_refused():
    with pytest.raises(ValueError, match="nature torso needs 36x36"):
        ObservationEncoder({"obs": (3, 20, 20)}, "nature")
