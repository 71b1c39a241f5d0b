"""The faster tanh of CPUs has the values and derivatives of torch's."""

import pytest
import torch

from troop.nets.activations import VECTOR_WIDTH, activate, tanh


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 3e-7), (torch.float64, 1e-15)])
def test_tanh_equals_that_of_torch(dtype, tolerance):
    x = torch.cat((torch.linspace(-30, 30, 4001), torch.logspace(-8, 0, 62), torch.zeros(1))).to(dtype)
    assert len(x) % VECTOR_WIDTH == 0
    assert (tanh(x) - x.tanh()).abs().max() <= tolerance
    assert not torch.equal(tanh(x), x.tanh())  # it is the faster one
    limits = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0]).repeat(8)
    assert tanh(limits)[:2].tolist() == [1.0, -1.0] and tanh(limits)[2].isnan() and tanh(limits)[3] == 0


@pytest.mark.parametrize("width", [32, 64, 16, 5, 33])
@pytest.mark.parametrize("seed", range(20))
def test_rows_do_not_depend_on_the_batch_or_on_gradients(width, seed):
    torch.manual_seed(seed)
    x = torch.randn(37, 4 * width)[:, width : 2 * width]  # strided, as a gate of an LSTM
    x = x if width % VECTOR_WIDTH == 0 else x.contiguous()  # torch's own differs if strided
    whole = tanh(x)
    for rows in (1, 2, 7, 36):
        assert torch.equal(tanh(x[:rows]), whole[:rows])
    assert torch.equal(tanh(x.clone().requires_grad_()), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_floats_are_those_of_torch(dtype):
    x = torch.tensor([1e-3, 1e-2, 1.0, -2.0]).repeat(8).to(dtype)
    assert torch.equal(tanh(x), x.tanh())


def test_gradients_of_tanh():
    x = torch.randn(32, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(tanh, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(tanh, (x,))


def test_function_transforms():
    x = torch.randn(3, 32)
    expected = torch.stack([torch.diag(1 - row.tanh().square()) for row in x])
    assert torch.allclose(torch.func.vmap(torch.func.jacrev(tanh))(x), expected, atol=1e-6)
    _, tangent = torch.func.jvp(tanh, (x,), (torch.ones_like(x),))
    assert torch.allclose(tangent, 1 - x.tanh().square(), atol=1e-6)


def test_exported_programs_contain_the_tanh_operator():
    class Layer(torch.nn.Module):
        def forward(self, x):
            return activate(x, "tanh")

    program = torch.export.export(Layer(), (torch.randn(2, 32),))
    assert any("tanh" in str(node.target) for node in program.graph.nodes)
