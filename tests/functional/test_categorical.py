import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from troop.functional import categorical


def slow_projection(probabilities, reward, discount, atoms):
    """C51's algorithm 1, one atom at a time."""
    low, high, count = atoms[0], atoms[-1], len(atoms)
    gap = (high - low) / (count - 1)
    projected = [0.0] * count
    for mass, atom in zip(probabilities, atoms, strict=True):
        place = (min(max(reward + discount * atom, low), high) - low) / gap
        below = min(math.floor(place), count - 2)
        projected[below] += mass * (below + 1 - place)
        projected[below + 1] += mass * (place - below)
    return projected


def project(probabilities, reward, discount, atoms):
    return categorical.project(probabilities, categorical.bellman_shift(reward, discount, atoms), atoms)


def random_rows(count, atoms, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.rand(count, atoms, generator=random).pow(3).softmax(-1)


@given(
    st.integers(2, 30),
    st.floats(-40, 0),
    st.floats(0.5, 50),
    st.lists(
        st.tuples(st.floats(-60, 60), st.sampled_from([0.0, 0.9, 0.99**3, 1.0])), min_size=1, max_size=6
    ),
)
def test_projection_equals_the_loop_over_rows_and_atoms(count, low, width, answers):
    atoms = torch.linspace(low, low + width, count)
    reward, discount = (torch.tensor(x) for x in zip(*answers, strict=True))
    probabilities = random_rows(len(answers), count)
    found = project(probabilities, reward, discount, atoms)
    for row, (r, d) in enumerate(answers):
        slow = slow_projection(
            probabilities[row].tolist(), r, d, torch.linspace(low, low + width, count).tolist()
        )
        assert found[row].tolist() == pytest.approx(slow, abs=1e-4 + 1e-5 * abs(r) * count / width)


EXACT = {
    "reward 0 and no discount": (0.0, 1.0),
    "a terminal reward on an atom": (4.0, 0.0),
    "a terminal reward on the lowest atom": (-10.0, 0.0),
    "a terminal reward on the highest atom": (10.0, 0.0),
    "a reward above the range": (1000.0, 0.99),
    "a reward below the range": (-1000.0, 0.99),
    "all atoms moved by one bin": (2.0, 1.0),
    "a reward between atoms": (0.3, 0.97),
}


@pytest.mark.parametrize("name", EXACT)
def test_rows_keep_their_sum(name):
    reward, discount = EXACT[name]
    atoms = torch.linspace(-10, 10, 11)
    rows = torch.cat((random_rows(64, 11), torch.full((1, 11), 1 / 11), torch.eye(11)))
    found = project(rows, torch.full((76,), reward), torch.full((76,), discount), atoms)
    assert (found.sum(-1) - 1).abs().max() < 1e-6
    assert found.min() >= 0


def test_random_rows_keep_their_sum_on_the_papers_support():
    random = torch.Generator().manual_seed(1)
    atoms = torch.linspace(-250, 250, 101)
    reward = torch.randn(4096, generator=random) * 100
    found = project(random_rows(4096, 101), reward, torch.full((4096,), 0.99), atoms)
    assert (found.sum(-1) - 1).abs().max() < 1e-6


def test_uniform_atoms_that_all_land_on_bins_keep_mass_one():
    # The reference moved both neighbours of an exact hit (until October 2025): total mass 1.82 here.
    uniform = torch.full((1, 11), 1 / 11)
    found = project(uniform, torch.zeros(1), torch.ones(1), torch.linspace(-5, 5, 11))
    assert found.sum().item() == pytest.approx(1.0, abs=1e-6)
    assert found.flatten().tolist() == pytest.approx([1 / 11] * 11, abs=1e-6)


def test_a_target_on_an_atom_receives_all_mass():
    found = project(random_rows(1, 11), torch.tensor([3.0]), torch.zeros(1), torch.linspace(-5, 5, 11))
    assert found.flatten().tolist() == pytest.approx([0] * 8 + [1] + [0] * 2, abs=1e-6)


def test_mass_between_two_atoms_is_shared_in_proportion():
    found = project(random_rows(1, 11), torch.tensor([3.25]), torch.zeros(1), torch.linspace(-5, 5, 11))
    assert found.flatten().tolist() == pytest.approx([0] * 8 + [0.75, 0.25, 0], abs=1e-6)


def test_projection_keeps_the_mean_of_the_clipped_atoms():
    random = torch.Generator().manual_seed(2)
    atoms = torch.linspace(-10, 10, 51)
    reward, probabilities = torch.randn(256, generator=random) * 6, random_rows(256, 51)
    found = project(probabilities, reward, torch.full((256,), 0.9), atoms)
    for row in range(256):
        clipped = [min(max(reward[row].item() + 0.9 * z, -10), 10) for z in atoms.tolist()]
        by_hand = sum(p * z for p, z in zip(probabilities[row].tolist(), clipped, strict=True))
        assert categorical.mean(found[row], atoms).item() == pytest.approx(by_hand, abs=1e-4)


def test_projection_does_not_modify_its_inputs():
    probabilities, atoms = random_rows(4, 11), torch.linspace(-5, 5, 11)
    moved = categorical.bellman_shift(torch.ones(4), torch.ones(4), atoms)
    kept = probabilities.clone(), moved.clone(), atoms.clone()
    categorical.project(probabilities, moved, atoms)
    assert all(torch.equal(x, y) for x, y in zip(kept, (probabilities, moved, atoms), strict=True))


def test_cross_entropy_equals_the_sum_by_hand():
    target, logits = random_rows(5, 7), torch.randn(5, 7, generator=torch.Generator().manual_seed(3))
    for row in range(5):
        total = math.log(sum(math.exp(x) for x in logits[row].tolist()))
        by_hand = -sum(
            t * (x - total) for t, x in zip(target[row].tolist(), logits[row].tolist(), strict=True)
        )
        assert categorical.cross_entropy(target, logits)[row].item() == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("wanted", [0, 1])  # target probability of the atom with probability 1
def test_cross_entropy_of_extreme_logits_is_finite(wanted):
    logits = torch.tensor([[0.0, -1e30, 1.0]], requires_grad=True)
    target = torch.tensor([[1.0 - wanted, float(wanted), 0.0]])
    loss = categorical.cross_entropy(target, logits).sum()
    loss.backward()
    assert math.isfinite(loss.item())
    assert torch.isfinite(logits.grad).all()


def test_cross_entropy_is_computed_in_float32_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        loss = categorical.cross_entropy(torch.full((2, 4), 0.25), torch.zeros(2, 4, dtype=torch.bfloat16))
    assert loss.dtype == torch.float32


def slow_binary(target, logits):
    """-t log p - (1 - t) log(1 - p), one number at a time in double precision."""
    rows = []
    for t, z in zip(target.double().tolist(), logits.double().tolist(), strict=True):
        total = sum(math.exp(x) for x in z)
        p = [math.exp(x) / total for x in z]
        terms = [-a * math.log(b) - (1 - a) * math.log(1 - b) for a, b in zip(t, p, strict=True)]
        rows.append(sum(terms) / len(terms))
    return rows


def test_binary_cross_entropy_equals_the_sum_by_hand():
    torch.manual_seed(0)
    target, logits = torch.rand(20, 7) / 7, torch.randn(2, 20, 7) * 2
    found = categorical.binary_cross_entropy(target.unsqueeze(0), logits)
    assert found.shape == (2, 20)
    for critic in range(2):
        assert found[critic].tolist() == pytest.approx(slow_binary(target, logits[critic]), rel=1e-5)


def test_binary_cross_entropy_is_minimal_at_the_target_and_finite():
    target = torch.tensor([[0.2, 0.5, 0.3]])
    logits = target.log().clone().requires_grad_()
    categorical.binary_cross_entropy(target, logits).sum().backward()
    assert logits.grad.abs().max() < 1e-6
    sure = torch.tensor([[200.0, 0.0, 0.0], [0.0, -300.0, 0.0]], requires_grad=True)
    loss = categorical.binary_cross_entropy(torch.tensor([[0.0, 1.0, 0.0], [0.1, 0.2, 0.3]]), sure)
    loss.sum().backward()
    assert loss.isfinite().all() and sure.grad.isfinite().all() and sure.grad[0, 1] < 0


def test_expectations_are_float32_under_autocast():
    """In bf16 the lower of two similar critics is wrong or tied in many rows."""
    atoms = torch.linspace(-250, 250, 101)
    one = torch.randn(4096, 101, generator=torch.Generator().manual_seed(0)).softmax(-1)
    other = (one + 1e-4 * torch.rand(4096, 101, generator=torch.Generator().manual_seed(1))).clamp_min(0)
    other = other / other.sum(-1, keepdim=True)
    exact = [(p.double() @ atoms.double()) for p in (one, other)]
    with torch.autocast("cpu", torch.bfloat16):
        found = [categorical.mean(p, atoms) for p in (one, other)]
    assert all(x.dtype == torch.float32 for x in found)
    assert ((found[0] < found[1]) == (exact[0] < exact[1])).float().mean() > 0.99


def test_binary_entropy_of_mass_that_rounding_made_larger_than_one():
    mass = torch.tensor([[0.0, 1.0000001, 0.0], [0.5, 0.5, 0.0]])
    found = categorical.binary_entropy(mass)
    assert found.tolist() == pytest.approx([0.0, 2 * 2 * 0.5 * math.log(2) / 3], abs=1e-6)
