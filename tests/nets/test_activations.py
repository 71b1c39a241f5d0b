"""The faster tanh of CPUs has the values and derivatives of torch's."""

import pytest
import torch

from troop.nets.activations import activate, tanh


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-7), (torch.float64, 1e-15)])
def test_tanh_equals_that_of_torch(dtype, tolerance):
    x = torch.cat((torch.linspace(-30, 30, 4001), torch.logspace(-8, 0, 50), torch.zeros(1))).to(dtype)
    assert (tanh(x) - x.tanh()).abs().max() <= tolerance
    assert tanh(torch.tensor([float("inf"), -float("inf")])).tolist() == [1.0, -1.0]
    assert tanh(torch.tensor([float("nan")])).isnan().all()


def test_values_with_and_without_gradients_and_of_any_batch_size_are_equal():
    x = torch.randn(37, 5)
    with_gradient = tanh(x.clone().requires_grad_())
    assert torch.equal(with_gradient, tanh(x))
    assert torch.equal(tanh(x[3:4]), tanh(x)[3:4])
    strided = tanh(x.t())
    assert torch.equal(strided, tanh(x).t())


def test_gradients_of_tanh():
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(tanh, (x,))
    assert torch.autograd.gradgradcheck(tanh, (x,))


def test_exported_programs_contain_the_tanh_operator():
    class Layer(torch.nn.Module):
        def forward(self, x):
            return activate(x, "tanh")

    program = torch.export.export(Layer(), (torch.randn(2, 3),))
    assert any("tanh" in str(node.target) for node in program.graph.nodes)
