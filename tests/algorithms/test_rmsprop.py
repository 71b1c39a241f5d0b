import math

import pytest
import torch

from troop.algorithms.optim.rmsprop import RMSProp


def slow(weight, gradients, lr, decay, eps, centered, momentum, tf):
    """Scalar reference of TensorFlow's and PyTorch's RMSProp."""
    square, mean, velocity = (1.0 if tf else 0.0), 0.0, 0.0
    for g in gradients:
        square = decay * square + (1 - decay) * g * g
        mean = decay * mean + (1 - decay) * g
        variance = square - mean * mean if centered else square
        step = g / math.sqrt(variance + eps) if tf else g / (math.sqrt(variance) + eps)
        velocity = momentum * velocity + step
        weight -= lr * velocity
    return weight


def run(weights, gradients, optimizer, **options):
    parameter = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float64))
    instance = optimizer([parameter], **options)
    for g in gradients:
        parameter.grad = torch.tensor(g, dtype=torch.float64)
        instance.step()
    return parameter, instance


GRADIENTS = [[0.5, -2.0], [0.1, 3.0], [-0.7, 0.0], [0.2, -1.0], [1e-3, 10.0]]


@pytest.mark.parametrize("tf", [True, False])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop_equals_a_scalar_loop(tf, centered, momentum):
    options = {"lr": 0.01, "decay": 0.95, "eps": 1e-5, "centered": centered, "momentum": momentum, "tf": tf}
    parameter, _ = run([1.0, -1.0], GRADIENTS, RMSProp, **options)
    for place, weight in enumerate((1.0, -1.0)):
        by_hand = slow(weight, [g[place] for g in GRADIENTS], **options)
        assert parameter[place].item() == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_torch_variant_equals_torchs_rmsprop(centered, momentum):
    ours, _ = run([1.0, -1.0], GRADIENTS, RMSProp, lr=0.01, decay=0.9, centered=centered, momentum=momentum)
    torchs, _ = run(
        [1.0, -1.0],
        GRADIENTS,
        torch.optim.RMSprop,
        lr=0.01,
        alpha=0.9,
        centered=centered,
        momentum=momentum,
    )
    assert torch.allclose(ours, torchs, rtol=1e-9)


def test_the_first_steps_by_hand():
    # tf: 0.9 * 1 + 0.1 * 4 = 1.3, and 2 / sqrt(1.3 + 0.7) = sqrt 2; torch: 2 / (sqrt(0.4) + 0.7).
    tf, _ = run([0.0], [[2.0]], RMSProp, lr=1.0, decay=0.9, eps=0.7, tf=True)
    assert tf.item() == pytest.approx(-math.sqrt(2))
    plain, _ = run([0.0], [[2.0]], RMSProp, lr=1.0, decay=0.9, eps=0.7)
    assert plain.item() == pytest.approx(-2 / (math.sqrt(0.4) + 0.7))
    # centered: 1.3 - 0.2^2 = 1.26.
    centered, _ = run([0.0], [[2.0]], RMSProp, lr=1.0, decay=0.9, eps=0.74, centered=True, tf=True)
    assert centered.item() == pytest.approx(-math.sqrt(2))


def test_weight_decay_is_decoupled():
    decayed, _ = run([2.0], [[0.0]], RMSProp, lr=0.1, weight_decay=0.5, tf=True)
    assert decayed.item() == pytest.approx(2.0 * (1 - 0.1 * 0.5))


@pytest.mark.parametrize("tf", [True, False])
def test_a_constant_gradient_never_makes_a_negative_variance(tf):
    parameter = torch.nn.Parameter(torch.zeros(64))
    instance = RMSProp([parameter], lr=1e-4, decay=0.5, eps=1e-8, centered=True, tf=tf)
    for _ in range(200):
        parameter.grad = torch.linspace(0.1, 3.0, 64)
        instance.step()
        assert torch.isfinite(parameter).all()


@pytest.mark.parametrize("reads", [True, False])  # CPU path and device path
@pytest.mark.parametrize("tf", [True, False])
def test_a_skipped_step_changes_no_weight_or_accumulator(tf, reads):
    parameter, instance = run([1.0, -1.0], GRADIENTS, RMSProp, lr=0.1, centered=True, momentum=0.9, tf=tf)
    group, state = instance.param_groups[0], instance.state[parameter]
    before = [parameter.detach().clone(), *(x.clone() for x in state.values())]
    parameter.grad = torch.tensor([math.nan, math.inf], dtype=torch.float64)
    flag = torch.ones((), dtype=torch.float64)
    if reads:
        instance.found_inf = flag
        instance.step()
    else:
        with torch.no_grad():
            instance._step_parameter(parameter, state, group, flag)
    assert all(torch.equal(x, y) for x, y in zip(before, [parameter, *state.values()], strict=True))


def test_both_skip_implementations_agree_if_nothing_is_skipped():
    one, _ = run([1.0, -1.0], GRADIENTS, RMSProp, lr=0.1, centered=True, momentum=0.9, tf=True)
    other = torch.nn.Parameter(torch.tensor([1.0, -1.0], dtype=torch.float64))
    instance = RMSProp([other], lr=0.1, centered=True, momentum=0.9, tf=True)
    for g in GRADIENTS:
        other.grad = torch.tensor(g, dtype=torch.float64)
        with torch.no_grad():
            instance._step_parameter(
                other, instance.state[other], instance.param_groups[0], torch.zeros((), dtype=torch.float64)
            )
    assert torch.allclose(one, other, rtol=1e-12)
