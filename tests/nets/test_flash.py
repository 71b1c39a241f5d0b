import math

import pytest
import torch
from torch import nn

from troop.nets import flash
from troop.nets.flash import FlashNetwork


class PlainNetwork(nn.Module):
    """One network made of torch's own layers; modes by `train()` and `eval()`."""

    def __init__(self, inputs, width, blocks, outputs, momentum=0.01):
        super().__init__()
        self.input_norm = nn.BatchNorm1d(inputs, momentum=momentum)
        self.embedding = nn.Linear(inputs, width, bias=False)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Linear(width, 4 * width, bias=False),
                    nn.BatchNorm1d(4 * width, momentum=momentum),
                    nn.Linear(4 * width, width, bias=False),
                    nn.BatchNorm1d(width, momentum=momentum),
                ]
            )
            for _ in range(blocks)
        )
        self.rms_norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        x = self.embedding(self.input_norm(x))
        for first, first_norm, second, second_norm in self.blocks:
            x = x + torch.relu(second_norm(second(torch.relu(first_norm(first(x))))))
        return self.head(self.rms_norm(x))

    def norms(self):
        return [module for module in self.modules() if isinstance(module, nn.BatchNorm1d)]

    @torch.no_grad()
    def load(self, net, copy=None):
        """Copy parameters and running statistics of a FlashNetwork, or of one of its copies."""
        layers = [layer if copy is None else layer[copy] for layer in net.layers]
        linears = [module for module in self.modules() if isinstance(module, nn.Linear)]
        weights = [layers[1], *layers[2:-3:2], layers[-2]]
        for linear, weight in zip(linears, weights, strict=True):
            linear.weight.copy_(weight)
        self.head.bias.copy_(layers[-1])
        self.rms_norm.weight.copy_(layers[-3][0])
        start = 0
        for norm, (gain, bias) in zip(self.norms(), [layers[0], *layers[3:-3:2]], strict=True):
            norm.weight.copy_(gain)
            norm.bias.copy_(bias)
            columns = slice(start, start + len(gain))
            mean, var = (x if copy is None else x[copy] for x in (net.running_mean, net.running_var))
            norm.running_mean.copy_(mean[columns])
            norm.running_var.copy_(var[columns])
            start = columns.stop
        return self

    def ordered(self):
        """Return all parameters in the order of FlashNetwork."""
        parts = [self.input_norm.weight, self.input_norm.bias, self.embedding.weight]
        for first, first_norm, second, second_norm in self.blocks:
            parts += [first.weight, first_norm.weight, first_norm.bias]
            parts += [second.weight, second_norm.weight, second_norm.bias]
        return [*parts, self.rms_norm.weight, self.head.weight, self.head.bias]

    def running(self):
        """Return running means and variances of all BatchNorms."""
        return (
            torch.cat([norm.running_mean for norm in self.norms()]),
            torch.cat([norm.running_var for norm in self.norms()]),
        )


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def randomised(copies, blocks=2, **changes):
    """Return a small network in double precision with arbitrary weights and statistics."""
    torch.manual_seed(0)
    net = FlashNetwork(5, 6, blocks, 3, copies=copies, **changes).double()
    for parameter in net.parameters():
        nn.init.normal_(parameter, 0.4)
    net.running_mean.normal_()
    net.running_var.uniform_(0.5, 2)
    return net


def plain_copies(net, blocks):
    numbers = [None] if net.copies is None else range(net.copies)
    return [PlainNetwork(5, 6, blocks, 3, net.momentum).double().load(net, copy) for copy in numbers]


@pytest.mark.parametrize("batched", [False, True], ids=["one network at a time", "batched"])
@pytest.mark.parametrize("copies, blocks", [(None, 1), (None, 2), (2, 2), (3, 1)])
def test_outputs_gradients_and_statistics_equal_torchs_layers(monkeypatch, copies, blocks, batched):
    if batched:  # as on a GPU
        monkeypatch.setattr(flash, "one_at_a_time", lambda x: False)
    net = randomised(copies, blocks, momentum=0.1)
    plain = plain_copies(net, blocks)
    x = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    pull = torch.randn(len(plain), 9, 3, dtype=torch.float64)
    before = net.running_mean.clone(), net.running_var.clone()
    for train in (False, True):
        for other in plain:
            other.train(train)
        outputs, statistics = net.forward_train(x) if train else (net(x), None)
        expected = torch.stack([other(x) for other in plain])
        assert torch.allclose(outputs if copies else outputs.unsqueeze(0), expected, atol=1e-10)
        mine = torch.autograd.grad((outputs * (pull if copies else pull[0])).sum(), [x, *net.layers])
        parameters = [parameter for other in plain for parameter in other.ordered()]
        theirs = torch.autograd.grad((expected * pull).sum(), [x, *parameters])
        assert torch.allclose(mine[0], theirs[0], atol=1e-9)
        by_copy = [[g if copies is None else g[c] for g in mine[1:]] for c in range(len(plain))]
        assert torch.allclose(flat(g for own in by_copy for g in own), flat(theirs[1:]), atol=1e-9)
        assert torch.equal(before[0], net.running_mean) and torch.equal(before[1], net.running_var)
    net.update_statistics(*statistics)
    for number, other in enumerate(plain):
        mean, var = other.running()
        assert torch.allclose(net.running_mean if copies is None else net.running_mean[number], mean)
        assert torch.allclose(net.running_var if copies is None else net.running_var[number], var)


def test_outputs_of_some_rows_use_the_statistics_of_all():
    net, x = randomised(2), torch.randn(8, 5, dtype=torch.float64)
    whole, statistics = net.forward_train(x)
    for rows in (slice(0, 3), slice(3, None)):
        some, same = net.forward_train(x, rows)
        assert torch.equal(some, whole[:, rows])
        assert all(torch.equal(one, other) for one, other in zip(statistics, same, strict=True))
    assert not torch.allclose(net.forward_train(x[:3])[0], whole[:, :3], atol=1e-3)


def test_copies_are_independent_networks():
    net, x = FlashNetwork(5, 8, 2, 3, copies=2), torch.randn(10, 5)
    assert not torch.allclose(*net(x), atol=1e-2)
    with torch.no_grad():
        before = net(x)
        net.running_var[1] *= 2
        net.layers[2][1] *= -1
    assert torch.equal(net(x)[0], before[0]) and not torch.equal(net(x)[1], before[1])


def test_weights_have_constant_length():
    """Rows of length 1; gain and bias of a BatchNorm together sqrt(d), as the gain of the RMSNorm."""
    net = FlashNetwork(2, 1, 1, 1)
    with torch.no_grad():
        net.layers[0].copy_(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
        net.layers[1].copy_(torch.tensor([[3.0, 4.0]]))
    net.project()
    assert net.layers[1].flatten().tolist() == pytest.approx([0.6, 0.8])
    assert net.layers[0].flatten().tolist() == pytest.approx([0.8165, 0.8165, 0.8165, 0], abs=1e-5)
    net = randomised(2).float()
    net.project()
    *layers, gain, head, bias = net.layers
    for weight in (layers[1], *layers[2::2], head):
        assert (weight.norm(dim=-1) - 1).abs().max() < 1e-6
    for norm in (layers[0], *layers[3::2], gain):
        length = norm.flatten(-2).norm(dim=-1)
        assert torch.allclose(length, torch.full((2,), math.sqrt(norm.shape[-1])), atol=1e-5)
    assert (bias.norm(dim=-1) - 1).abs().max() > 1e-2  # free


def test_initial_weights_are_orthogonal_rows_without_bias():
    net = FlashNetwork(7, 8, 2, 5, heads=2, copies=2)
    head = net.layers[-2]
    for weight in (net.layers[4][0], net.layers[4][1], head[0, :5], head[0, 5:], head[1, 5:]):
        assert torch.allclose(weight @ weight.T, torch.eye(len(weight)), atol=1e-5)
    assert not torch.allclose(head[0], head[1], atol=0.1) and not net.output_bias.any()
    norm = net.layers[3]
    assert torch.allclose(norm[:, 0], torch.ones(2, 32)) and not norm[:, 1].any()
    assert torch.allclose(net.layers[-3], torch.ones(2, 1, 8))
    assert not net.running_mean.any() and (net.running_var == 1).all()


def test_number_of_parameters():
    """The paper's critics and actor on G1 (123 observations, 37 actions) have 2.53 million."""
    critics, actor = FlashNetwork(160, 256, 2, 101, copies=2), FlashNetwork(123, 128, 2, 37, heads=2)
    count = [sum(parameter.numel() for parameter in net.parameters()) for net in (critics, actor)]
    assert count[0] == pytest.approx(2.16e6 + 2 * 258 * 160, rel=1e-3)
    assert count[1] == pytest.approx(0.265e6 + 130 * 123 + 258 * 37, rel=1e-3)
    assert sum(count) == pytest.approx(2.53e6, rel=2e-3)


def test_running_statistics_approach_those_of_constant_batches():
    """With momentum 0.01: 90% after 230 updates, 99% after 460."""
    net, x = FlashNetwork(3, 4, 1, 1), torch.randn(64, 3) * 3 + 5
    _, (mean, var) = net.forward_train(x)
    assert torch.allclose(mean[:3], x.mean(0), atol=1e-5) and torch.allclose(var[:3], x.var(0), rtol=1e-4)
    for updates, share in ((230, 0.9), (230, 0.99)):
        for _ in range(updates):
            net.update_statistics(mean, var)
        assert torch.allclose(net.running_mean, share * mean, rtol=2e-3)
        assert torch.allclose(net.running_var - 1, share * (var - 1), rtol=2e-3)


def test_statistics_that_are_not_finite_are_ignored():
    net, x = FlashNetwork(3, 4, 1, 1), torch.randn(16, 3)
    x[0, 1] = math.nan
    net.update_statistics(*net.forward_train(x)[1])
    assert net.running_mean.isfinite().all() and net.running_var.isfinite().all()
    assert net.running_mean[0] != 0 and net.running_mean[1] == 0
    net.update_statistics(*net.forward_train(torch.randn(1, 3))[1])  # one row has no variance
    assert net.running_var.isfinite().all()


@pytest.mark.parametrize("clip", [0.0, 10.0])
def test_an_input_that_was_constant_is_not_amplified_when_it_changes(clip):
    net = FlashNetwork(2, 8, 1, 1, input_clip=clip, momentum=1.0)
    x = torch.randn(256, 2)
    x[:, 1] = 0.3
    net.update_statistics(*net.forward_train(x)[1])
    inputs = []
    original = flash.affine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            flash, "affine", lambda x, norm, clip: inputs.append(original(x, norm, clip)) or inputs[-1]
        )
        changed = torch.tensor([[0.0, 1.3]])
        net(changed)
        x[0, 1] = 1.3
        net.forward_train(x)
    assert inputs[0][0, 1].item() == pytest.approx(10 if clip else 316, rel=0.01)
    assert inputs[1][0, 1].item() == pytest.approx(10 if clip else 15.97, rel=0.01)


def test_small_initial_head_is_bounded_and_not_rescaled():
    net = FlashNetwork(3, 8, 1, 2, heads=2, output_std=1e-3)
    head = net.layers[-2]
    assert 1e-4 < head[:2].std() < 5e-3 and not head[2:].any()
    with torch.no_grad():
        head[0], head[1] = 0.1, 3.0
    net.project()
    assert torch.allclose(head[0], torch.full((8,), 0.1))
    assert head[1].norm().item() == pytest.approx(1)


def test_autocast_computes_in_bf16_with_float_statistics():
    net, x = FlashNetwork(5, 16, 2, 3, copies=2), torch.randn(64, 5)
    with torch.autocast("cpu", torch.bfloat16):
        low, (mean, var) = net.forward_train(x)
        still = net(x)
    exact, _ = net.forward_train(x)
    assert mean.dtype == var.dtype == torch.float32
    assert torch.allclose(low.float(), exact, atol=0.1) and not torch.allclose(low.float(), exact, atol=1e-5)
    assert torch.allclose(still.float(), net(x), atol=0.1)
