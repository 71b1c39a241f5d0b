import pytest
import torch

from troop.functional import td


def test_target_is_reward_plus_discounted_value():
    found = td.target(
        torch.tensor([1.0, 2.0]), torch.tensor([0.9, 0.0]), torch.tensor([[10.0, 10.0], [20.0, 20.0]])
    )
    assert found.tolist() == [pytest.approx([10.0, 2.0]), pytest.approx([19.0, 2.0])]


def test_target_refuses_shapes_that_would_broadcast():
    with pytest.raises(AssertionError):
        td.target(torch.zeros(3), torch.zeros(3), torch.zeros(3, 1))


def test_clipped_double_takes_the_lower_critic_of_each_row():
    assert td.clipped_double(torch.tensor([[1.0, 5.0, 2.0], [3.0, 4.0, 2.0]])).tolist() == [1, 4, 2]
