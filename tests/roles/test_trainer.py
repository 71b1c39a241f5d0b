import copy
import math
from fractions import Fraction

import pytest
import torch
from small_trainer import make_trainer

from troop.core.errors import TrainingFault
from troop.envs import Toy
from troop.roles.evaluator import Evaluator
from troop.roles.update_schedule import UpdateSchedule

ENV = Toy("PointMass", 4, limit=10)


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.algorithm.policy.parameters()]).clone()


@pytest.mark.parametrize("updates, delay", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (8, 4), (3, 2), (8, 2)])
@pytest.mark.parametrize("rounds", [7, 12])
def test_policy_is_updated_every_policy_delay_critic_updates_across_steps(updates, delay, rounds):
    trainer = make_trainer(ENV, updates, policy_delay=delay)
    for _ in range(4):  # the warm-up needs five rows per env
        assert "count/updates" not in trainer.step()
    before = weights(trainer)
    updates_made = sum(trainer.step()["count/updates"] for _ in range(rounds))
    assert updates_made == trainer.algorithm.critic_learner.updates == trainer.version == rounds * updates
    assert trainer.algorithm.critic_learner.optimizer.steps == rounds * updates
    assert trainer.algorithm.actor_learner.optimizer.steps == rounds * updates // delay
    assert not torch.equal(before, weights(trainer))


@pytest.mark.parametrize("overlap", [False, True])
def test_step_reports_how_long_acting_simulating_and_learning_took(overlap, monkeypatch):
    trainer = make_trainer(ENV, updates=2, overlap=overlap)
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def lasting(seconds, function):
        def call(*args):
            now[0] += seconds
            return function(*args)

        return call

    trainer.algorithm.policy.act = lasting(1.0, trainer.algorithm.policy.act)
    trainer.collector.env.send = lasting(2.0, trainer.collector.env.send)
    trainer.collector.env.recv = lasting(4.0, trainer.collector.env.recv)
    trainer.replay.sample = lasting(8.0, trainer.replay.sample)
    metrics = [trainer.step() for _ in range(8)][-1]
    names = ("count/act_s", "count/env_s", "count/learn_s")
    assert [metrics[name] for name in names] == [1.0, 6.0, 16.0]


def test_overlap_makes_the_same_updates_one_step_later():
    # Updates trainer while the simulator steps do not have its rows, so the warm-up takes one step more.
    counts = {}
    for overlap in (False, True):
        trainer = make_trainer(ENV, updates=3, overlap=overlap)
        counts[overlap] = [trainer.step().get("count/updates", 0) for _ in range(12)]
    assert counts[False] == [0] * 4 + [3] * 8
    assert counts[True] == [0] * 5 + [3] * 7


@pytest.mark.parametrize("rate", [0.25, 1 / 3, 0.29, 1.5, 2.75])
def test_fractions_of_updates_are_accumulated_exactly(rate):
    schedule = UpdateSchedule(updates_per_step=rate)
    counts = [schedule.updates_after(step) for step in range(1, 1001)]
    assert set(counts) == {math.floor(rate), math.ceil(rate)}
    for steps in (4, 100, 300, 1000):
        assert sum(counts[:steps]) == math.floor(Fraction(rate).limit_denominator(1000) * steps)


@pytest.mark.parametrize("overlap", [False, True])
def test_one_update_in_four_vector_steps_also_after_a_restart(overlap):
    trainers = [make_trainer(ENV, updates=0.25, overlap=overlap, recreate_every=100) for _ in range(2)]
    counts = [trainers[0].step().get("count/updates", 0) for _ in range(14)]
    assert counts == [0] * 7 + [1] + [0] * 3 + [1] + [0] * 2
    trainers[1].load_state_dict(copy.deepcopy(trainers[0].state_dict()))
    for trainer in trainers:
        assert [trainer.step().get("count/updates", 0) for _ in range(6)] == [0, 1, 0, 0, 0, 1]


def test_overlap_does_not_change_the_stored_rows():
    trainers = [make_trainer(ENV, updates=0, overlap=overlap) for overlap in (False, True)]
    for trainer in trainers:
        torch.manual_seed(3)
        for _ in range(15):
            trainer.step()
    assert torch.equal(*(trainer.replay.storage.rows for trainer in trainers))


def test_weights_do_not_change_without_updates():
    trainer = make_trainer(ENV, updates=0)
    before = weights(trainer)
    for _ in range(10):
        assert "count/updates" not in trainer.step()
    assert torch.equal(before, weights(trainer)) and trainer.version == 0


def test_rows_that_only_reset_an_env_are_not_env_steps():
    same_step, next_step = (
        make_trainer(Toy("Clock", 4, limit=3, autoreset=mode)) for mode in ("same_step", "next_step")
    )
    counts = [[x.step()["count/env_steps"] for _ in range(8)] for x in (same_step, next_step)]
    assert counts == [[4] * 8, [4, 4, 4, 0, 4, 4, 4, 0]]


@pytest.mark.parametrize("finite, stopped_at", [(0, 10), (3, 20)])  # checked every tenth update
@pytest.mark.reliability("N2")
def test_ten_consecutive_nan_losses_stop_training_with_finite_weights(finite, stopped_at):
    trainer = make_trainer(ENV, updates=1)
    for _ in range(4 + finite):
        trainer.step()
    with pytest.raises(TrainingFault, match=r"consecutive updates had a NaN or infinite loss"):
        for _ in range(30):
            trainer.replay.storage.reward.fill_(math.nan)
            trainer.step()
    assert trainer.version == stopped_at
    critic = torch.cat([p.detach().flatten() for p in trainer.algorithm.critic.parameters()])
    assert torch.isfinite(critic).all() and torch.isfinite(weights(trainer)).all()


def test_nine_consecutive_nan_losses_do_not_stop_training():
    trainer = make_trainer(ENV, updates=1)
    for _ in range(5):
        trainer.step()
    rewards = trainer.replay.storage.reward.clone()
    for _ in range(9):
        trainer.replay.storage.reward.fill_(math.nan)
        assert trainer.step()["count/skipped_updates"] == 1
    trainer.replay.storage.reward.copy_(rewards)
    assert trainer.step()["count/skipped_updates"] == 0 and trainer.algorithm.consecutive_skips == 0
    for _ in range(20):
        trainer.step()


def test_latest_returns_each_version_once():
    trainer = make_trainer(ENV)
    assert trainer.latest(-1)[0] == 0 and trainer.latest(0) is None
    for _ in range(6):
        trainer.step()
    version, state = trainer.latest(0)
    assert version == 4 and set(state) == set(trainer.algorithm.policy.state_dict())
    assert trainer.latest(4) is None


@pytest.mark.reliability("R8")
def test_trainer_restored_from_an_older_checkpoint_is_evaluated():
    trainer = make_trainer(ENV)
    for _ in range(6):
        trainer.step()
    state = copy.deepcopy(trainer.state_dict())
    for _ in range(4):
        trainer.step()
    evaluator = Evaluator(ENV.make, make_trainer(ENV).algorithm.policy, trainer, 4, 20)
    assert evaluator.step() is not None and evaluator.version == 12
    trainer.load_state_dict(state)  # its host was restarted
    assert evaluator.step() is not None and evaluator.version == 4
    assert evaluator.step() is None


def test_stored_actions_contain_the_exploration_noise():
    trainer = make_trainer(Toy("Clock", 64, limit=50), updates=0, std_min=0.2, std_max=0.3, actor_init=1e-6)
    for _ in range(40):
        trainer.step()
    action = trainer.replay.storage.fields(torch.arange(64 * 200))["action"].view(64, 200)[:, :40]
    spread = action.square().mean(1).sqrt()  # per env; the policy's own action is nearly 0
    assert 0.23 < spread.mean() < 0.27
    assert spread.min() > 0.1 and spread.max() < 0.45


@pytest.mark.reliability("R5")
def test_resumed_run_without_replay_rows_keeps_the_divisor_of_rewards():
    env = Toy("Clock", 4, limit=10)  # rewards of 1: the first returns are far below later ones
    settings = {"save_replay": False, "normalize_rewards": True}
    trainer = make_trainer(env, updates=0, **settings)
    for _ in range(40):
        trainer.step()
    divisor = trainer.replay.reward_scale.value
    resumed = make_trainer(env, updates=0, **settings)
    resumed.load_state_dict(copy.deepcopy(trainer.state_dict()))
    assert len(resumed.replay) == 0 and resumed.replay.reward_scale.value == divisor
    for _ in range(6):
        resumed.step()
    reward = resumed.replay.sample(16).reward
    assert torch.equal(reward, 1 / resumed.replay.reward_scale.value.expand(16))
    assert resumed.replay.reward_scale.value == pytest.approx(divisor.item(), rel=0.1)


def test_checkpoint_without_reward_scale_is_restored_into_a_run_with_one():
    state = make_trainer(ENV, save_replay=False).state_dict()
    trainer = make_trainer(ENV, save_replay=False, normalize_rewards=True)
    trainer.load_state_dict(copy.deepcopy(state))
    assert trainer.replay.reward_scale.moments.count == 0
