import math

import pytest
import torch
from parts import trainer

from troop.core.errors import TrainingFault
from troop.envs import Toy

ENV = Toy("PointMass", 4, limit=10)


def weights(made):
    return torch.cat([p.detach().flatten() for p in made.algorithm.policy.parameters()]).clone()


@pytest.mark.parametrize("updates, delay", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (8, 4), (3, 2), (8, 2)])
@pytest.mark.parametrize("rounds", [7, 12])
def test_the_policy_is_updated_once_per_delay_critic_updates_across_steps(updates, delay, rounds):
    made = trainer(ENV, updates, policy_delay=delay)
    for _ in range(4):  # warming up: four rows an env, five are wanted
        assert "count/updates" not in made.step()
    before = weights(made)
    counted = sum(made.step()["count/updates"] for _ in range(rounds))
    assert counted == made.algorithm.critic_learner.updates == made.version == rounds * updates
    assert made.algorithm.critic_learner.descent.steps == rounds * updates
    assert made.algorithm.actor_learner.descent.steps == rounds * updates // delay
    assert not torch.equal(before, weights(made))


def test_overlap_makes_the_same_updates_one_round_later():
    # Learning while the simulator steps misses the newest row, so warming up takes one round more.
    counts = {}
    for overlap in (False, True):
        made = trainer(ENV, updates=3, overlap=overlap)
        counts[overlap] = [made.step().get("count/updates", 0) for _ in range(12)]
    assert counts[False] == [0] * 4 + [3] * 8
    assert counts[True] == [0] * 5 + [3] * 7


def test_overlap_does_not_change_what_is_stored():
    frozen = [trainer(ENV, updates=0, overlap=overlap) for overlap in (False, True)]
    for made in frozen:
        torch.manual_seed(3)
        for _ in range(15):
            made.step()
    assert torch.equal(*(made.store.streams.rows for made in frozen))


def test_without_updates_weights_stay():
    made = trainer(ENV, updates=0)
    before = weights(made)
    for _ in range(10):
        assert "count/updates" not in made.step()
    assert torch.equal(before, weights(made)) and made.version == 0


def test_env_steps_are_those_that_were_acted():
    same, call_async = (
        trainer(Toy("Clock", 4, limit=3, autoreset=style)) for style in ("same_step", "next_step")
    )
    counts = [[made.step()["count/env_steps"] for _ in range(8)] for made in (same, call_async)]
    assert counts == [[4] * 8, [4, 4, 4, 0, 4, 4, 4, 0]]  # the row that only resets is no step


@pytest.mark.parametrize("sound, stopped", [(0, 10), (3, 20)])  # every tenth update it is looked at
def test_ten_losses_in_a_row_that_are_nan_stop_training_with_finite_weights(sound, stopped):
    made = trainer(ENV, updates=1)
    for _ in range(4 + sound):
        made.step()
    with pytest.raises(TrainingFault, match=r"updates in a row had a NaN or infinite loss"):
        for _ in range(30):
            made.store.streams.reward.fill_(math.nan)
            made.step()
    assert made.version == stopped
    critic = torch.cat([p.detach().flatten() for p in made.algorithm.critic.parameters()])
    assert torch.isfinite(critic).all() and torch.isfinite(weights(made)).all()


def test_nine_bad_losses_are_forgiven():
    made = trainer(ENV, updates=1)
    for _ in range(5):
        made.step()
    kept = made.store.streams.reward.clone()
    for _ in range(9):
        made.store.streams.reward.fill_(math.nan)
        assert made.step()["count/skipped_updates"] == 1
    made.store.streams.reward.copy_(kept)
    assert made.step()["count/skipped_updates"] == 0 and made.algorithm.consecutive_skips == 0
    for _ in range(20):
        made.step()


def test_the_newest_policy_is_given_once():
    made = trainer(ENV)
    assert made.latest(-1)[0] == 0 and made.latest(0) is None
    for _ in range(6):
        made.step()
    version, state = made.latest(0)
    assert version == 4 and set(state) == set(made.algorithm.policy.state_dict())


def test_exploration_reaches_the_stored_actions():
    made = trainer(Toy("Clock", 64, limit=50), updates=0, std_min=0.2, std_max=0.3, actor_init=1e-6)
    for _ in range(40):
        made.step()
    action = made.store.streams.fields(torch.arange(64 * 200))["action"].view(64, 200)[:, :40]
    spread = action.square().mean(1).sqrt()  # per env; the policy itself says nearly 0
    assert 0.23 < spread.mean() < 0.27
    assert spread.min() > 0.1 and spread.max() < 0.45
