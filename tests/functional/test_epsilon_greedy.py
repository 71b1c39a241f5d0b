import pytest
import torch

from troop.functional.epsilon_greedy import EpsilonGreedy

GREEDY = 9  # not one of the four random actions


def simulate(repeats, epsilon, rows=400, steps=300):
    """Return actions [steps, rows]; greedy ones are GREEDY."""
    torch.manual_seed(0)
    policy = EpsilonGreedy(4, repeats)
    state, actions = policy.initial_state(rows), []
    for _ in range(steps):
        action, state = policy(torch.full((rows,), GREEDY), torch.full((rows,), epsilon), state)
        actions.append(action)
    return torch.stack(actions)


def test_one_step_actions_are_plain_epsilon_greedy_and_have_no_state():
    assert EpsilonGreedy(4).initial_state(3) is None
    share = (simulate(1, 0.3) != GREEDY).float().mean().item()
    assert share == pytest.approx(0.3, abs=0.01)


def test_share_of_random_steps_follows_from_the_mean_number_of_repeats():
    # A greedy step is followed by k random ones with probability epsilon, E[k] = 2.1338 for 16 repeats.
    share = (simulate(16, 0.2) != GREEDY)[50:].float().mean().item()
    assert share == pytest.approx(0.2 * 2.1338 / (0.2 * 2.1338 + 0.8), abs=0.01)


def test_runs_of_equal_random_actions_have_the_law_of_repeats():
    actions = simulate(16, 0.02, rows=4000)
    lengths = []
    for column in actions.T:
        values, counts = torch.unique_consecutive(column, return_counts=True)
        lengths += counts[1:-1][values[1:-1] != GREEDY].tolist()
    lengths = torch.tensor(lengths)
    assert (lengths == 1).float().mean().item() == pytest.approx(0.631, abs=0.02)
    assert (lengths == 2).float().mean().item() == pytest.approx(0.158, abs=0.02)
    assert (lengths > 8).any()


def test_random_actions_are_uniform():
    actions = simulate(16, 1.0, rows=2000)
    for action in range(4):
        assert (actions == action).float().mean().item() == pytest.approx(0.25, abs=0.01)


def test_rows_without_epsilon_are_greedy_and_keep_their_state():
    torch.manual_seed(0)
    policy, state = EpsilonGreedy(4, 16), {"repeat": torch.tensor([[2.0, 5.0], [2.0, 5.0]])}
    action, after = policy(torch.tensor([GREEDY, GREEDY]), torch.tensor([0.0, 1e-9]), state)
    assert action.tolist() == [GREEDY, 2]
    assert after["repeat"].tolist() == [[2.0, 5.0], [2.0, 4.0]]
