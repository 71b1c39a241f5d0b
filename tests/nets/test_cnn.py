import pytest
import torch

from troop.nets import cnn


def test_nature_torso_has_the_papers_three_layers():
    net, features = cnn.build_torso("nature", (4, 84, 84))
    convs = [m for m in net if isinstance(m, torch.nn.Conv2d)]
    output = [(c.out_channels, c.kernel_size[0], c.stride[0]) for c in convs]
    assert output == [(32, 8, 4), (64, 4, 2), (64, 3, 1)] and features == 3136
    for conv in convs:  # PyTorch's default initialisation of weights and biases
        bound = 1 / (conv.in_channels * conv.kernel_size[0] ** 2) ** 0.5
        assert conv.weight.abs().max() <= bound and conv.bias.abs().max() <= bound


def test_impala_has_fifteen_convolutions_and_identity_residuals():
    net, features = cnn.build_torso("impala", (4, 84, 84))
    convs = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d)]
    assert [c.out_channels for c in convs] == [16] * 5 + [32] * 10 and features == 32 * 11 * 11
    block = cnn.ResidualBlock(3)
    x = torch.randn(2, 3, 5, 5)
    by_hand = x + block.second(torch.relu(block.first(torch.relu(x))))
    assert torch.allclose(block(x), by_hand, atol=1e-6)
    torch.nn.init.zeros_(block.second.weight)
    torch.nn.init.zeros_(block.second.bias)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize(
    ("image", "kind"),
    [((4, 84, 84), "nature"), ((3, 36, 36), "nature"), ((1, 35, 64), "small"), ((1, 10, 5), "small")],
)
def test_default_torso_follows_from_the_image_size(image, kind):
    assert cnn.default_torso(image) == kind
    net, features = cnn.build_torso(kind, image)
    assert net(torch.rand(2, *image)).shape == (2, features)


@pytest.mark.parametrize("kind", cnn.TORSOS)
def test_smallest_image_fits_and_a_smaller_one_is_rejected(kind):
    minimum = cnn.TORSOS[kind][1]
    assert cnn.build_torso(kind, (2, minimum, minimum))[1] > 0
    with pytest.raises(
        ValueError, match=f"{minimum - 1}x{minimum} with 2 channels.*{minimum}x{minimum} or more"
    ):
        cnn.build_torso(kind, (2, minimum - 1, minimum))


@pytest.mark.parametrize("kind", ["nips", "nature", "impala"])
def test_the_order_in_memory_changes_neither_features_nor_gradients(kind):
    net, _ = cnn.build_torso(kind, (3, 84, 84))
    assert isinstance(net, cnn.ChannelsLast)
    plain = torch.nn.Sequential(*net)
    x = torch.rand(5, 3, 84, 84)
    with torch.no_grad():
        assert torch.allclose(net(x), plain(x), atol=1e-5)
    gradients = [torch.autograd.grad(f(x).square().sum(), list(net.parameters())) for f in (net, plain)]
    for ours, reference in zip(*gradients, strict=True):
        assert torch.allclose(ours, reference, rtol=1e-3, atol=1e-4)


def test_uint8_and_float_pixels_are_equal():
    x = torch.arange(256, dtype=torch.uint8)
    assert cnn.to_unit_range(x).tolist() == pytest.approx([v / 255 for v in range(256)])
    assert torch.equal(cnn.to_unit_range(x), cnn.to_unit_range(x.float() / 255))
    assert x.dtype == torch.uint8 and x[255] == 255  # the input is not modified
