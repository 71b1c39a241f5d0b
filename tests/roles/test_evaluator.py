import pytest
import torch
from small_trainer import make_trainer

from troop.envs import Toy
from troop.roles.evaluator import Evaluator, first_episodes


def make_policy(env):
    return make_trainer(env).algorithm.policy


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_only_the_first_episode_of_each_env_counts(autoreset):
    config = Toy("Countdown", 8, limit=5, autoreset=autoreset)
    counts = (config.make(7).reset(7).obs["obs"].squeeze(1) * 5).round()
    returns, lengths, finished = first_episodes(config.make(7), make_policy(config), 7, 100)
    assert torch.equal(returns.float(), counts) and torch.equal(lengths, counts) and finished.all()


def test_episodes_longer_than_the_limit_count_as_unfinished():
    config = Toy("Clock", 3, limit=20)
    returns, lengths, finished = first_episodes(config.make(0), make_policy(config), 0, 8)
    assert returns.tolist() == lengths.tolist() == [8, 8, 8] and not finished.any()


def test_two_evaluations_of_one_policy_are_equal_and_use_no_random_numbers():
    config = Toy("PointMass", 5, limit=9)
    trainer = make_trainer(config)
    evaluator = Evaluator(config.make, trainer.algorithm.policy, trainer, 4, 10)
    rng_state = torch.get_rng_state()
    first = evaluator.step()
    assert evaluator.step() is None  # nothing newer
    evaluator.version = -1
    assert {k: float(v) for k, v in first.items()} == {k: float(v) for k, v in evaluator.step().items()}
    assert torch.equal(rng_state, torch.get_rng_state())
    assert first["eval/episodes"] == 5 and first["eval/unfinished"] == 0 and float(first["eval/length"]) == 9


def test_evaluator_loads_the_newest_weights_into_its_own_policy():
    config = Toy("PointMass", 5, limit=9)
    trainer = make_trainer(config, actor_lr=0.05, policy_delay=1)
    own = make_trainer(config, actor_init=0.5).algorithm.policy
    evaluator = Evaluator(config.make, own, trainer, 4, 10)
    before = evaluator.step()
    for _ in range(15):
        trainer.step()
    after = evaluator.step()
    assert float(before["eval/return_mean"]) != float(after["eval/return_mean"])
    returns, _, _ = first_episodes(config.make(4), trainer.algorithm.policy, 4, 10)
    assert float(after["eval/return_mean"]) == pytest.approx(returns.mean().item())


def test_evaluation_with_exploration_is_repeatable_and_leaves_the_global_generator_alone():
    config = Toy("PointMass", 5, limit=9)
    trainer = make_trainer(config)
    plain = Evaluator(config.make, trainer.algorithm.policy, trainer, 4, 10).step()
    rng_state = torch.get_rng_state()
    noisy = [
        Evaluator(config.make, trainer.algorithm.policy, trainer, 4, 10, explore=0.5).step() for _ in range(2)
    ]
    returns = [float(metrics["eval/return_mean"]) for metrics in noisy]
    assert returns[0] == returns[1] != float(plain["eval/return_mean"])
    assert torch.equal(rng_state, torch.get_rng_state())
