import pytest
import torch

from troop.functional import td


def test_target_is_reward_plus_discounted_value():
    found = td.target(
        torch.tensor([1.0, 2.0]), torch.tensor([0.9, 0.0]), torch.tensor([[10.0, 10.0], [20.0, 20.0]])
    )
    assert found.tolist() == [pytest.approx([10.0, 2.0]), pytest.approx([19.0, 2.0])]


def test_target_rejects_shapes_that_would_broadcast():
    with pytest.raises(AssertionError):
        td.target(torch.zeros(3), torch.zeros(3), torch.zeros(3, 1))


def test_clipped_double_takes_the_lower_critic_of_each_row():
    assert td.clipped_double(torch.tensor([[1.0, 5.0, 2.0], [3.0, 4.0, 2.0]])).tolist() == [1, 4, 2]


def test_select_action_with_and_without_atoms():
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    atoms = torch.randn(5, 3, 7, generator=torch.Generator().manual_seed(1))
    action = torch.tensor([2, 0, 1, 1, 2])
    assert td.select_action(values, action).tolist() == [values[r, action[r]].item() for r in range(5)]
    assert torch.equal(td.select_action(atoms, action), torch.stack([atoms[r, action[r]] for r in range(5)]))


def test_double_q_selects_online_and_evaluates_target():
    chooser = torch.tensor([[1.0, 3.0, 2.0], [5.0, 1.0, 1.0]])
    judge = torch.tensor([[9.0, 4.0, 8.0], [2.0, 7.0, 6.0]])
    assert td.double_q(chooser, judge).tolist() == [4.0, 2.0]
    assert td.double_q(judge, judge).tolist() == judge.amax(1).tolist()


def test_huber_and_half_squared_by_hand():
    value, target = torch.tensor([0.0, 0.5, 1.0, 3.0, -3.0]), torch.zeros(5)
    assert td.huber(value, target).tolist() == pytest.approx([0, 0.125, 0.5, 2.5, 2.5])
    assert td.half_squared(value, target).tolist() == pytest.approx([0, 0.125, 0.5, 4.5, 4.5])
    pulled = torch.tensor([0.5, 30.0, -30.0], requires_grad=True)
    td.huber(pulled, torch.zeros(3)).sum().backward()
    assert pulled.grad.tolist() == pytest.approx([0.5, 1.0, -1.0])


def test_greedy_returns_the_largest_value_and_its_first_action():
    value, action = td.greedy(torch.tensor([[1.0, 5.0, 5.0], [3.0, -4.0, 2.0]]))
    assert value.tolist() == [5.0, 3.0] and action.tolist() == [1, 0]
