import numpy as np
import pytest
import torch

from troop.core.env import Discrete, Field
from troop.envs import EnvPool, Gymnasium, Toy, preprocessing
from troop.envs.seeding import hash_seed

envpool = pytest.importorskip("envpool")


def rollout(config, steps, seed=0):
    env = config.make(seed)
    random = torch.Generator().manual_seed(seed)
    choices = config.spec.action.choices
    results = [env.reset(seed)]
    results += [env.step(torch.randint(choices, (config.envs,), generator=random)) for _ in range(steps)]
    env.close()
    return results


@pytest.mark.parametrize("terminal_on_life_loss", [False, True])
@pytest.mark.parametrize(("id", "steps", "max_frames"), [("Pong-v5", 120, 200), ("Breakout-v5", 260, 800)])
def test_frame_stack_continues_the_previous_row_or_repeats_the_first_frame(
    id, steps, max_frames, terminal_on_life_loss
):
    """A replay buffer of single frames relies on this for every row, including those with `valid` False."""
    settings = preprocessing(terminal_on_life_loss=terminal_on_life_loss, max_frames=max_frames)
    results = rollout(EnvPool(id, 4, 2, settings), steps)
    new_stacks = continued_after_end = 0
    for i, step in enumerate(results):
        stack = step.obs["obs"]
        is_repeated = (stack == stack[:, :1]).flatten(1).all(dim=1)
        if i == 0:
            assert is_repeated.all()
            continue
        is_continued = (stack[:, :3] == results[i - 1].obs["obs"][:, 1:]).flatten(1).all(dim=1)
        assert (is_continued | (is_repeated & ~step.valid)).all()
        new_stacks += int((~is_continued).sum())
        continued_after_end += int((is_continued & ~step.valid).sum())
    assert new_stacks > 0
    assert (continued_after_end > 0) == (terminal_on_life_loss and id == "Breakout-v5")  # Pong has no lives


def test_colour_frames_are_stacked_oldest_first():
    config = EnvPool("Pong-v5", 1, 1, (("gray_scale", False),))
    field = config.spec.obs["obs"]
    assert field == Field((12, 84, 84), torch.uint8, stack=4) and field.frame == (3, 84, 84)
    before, after = (step.obs["obs"] for step in rollout(config, 12)[-2:])
    assert torch.equal(before[:, 3:], after[:, :9])


def test_a_frame_is_the_maximum_of_the_last_two_of_four():
    full_size = {"noop_max": 1, "stack_num": 1, "img_height": 210, "img_width": 160, "use_fire_reset": False}
    skipping, single = (
        envpool.make_gymnasium("Seaquest-v5", num_envs=1, seed=1, frame_skip=n, **full_size) for n in (4, 1)
    )
    skipping.reset(), single.reset()
    flickers = 0
    for action in np.random.default_rng(0).integers(0, 18, (60, 1)):
        pooled = skipping.step(action)[0]
        frames = [single.step(action)[0] for _ in range(4)]
        assert np.array_equal(pooled, np.maximum(frames[2], frames[3]))
        flickers += not np.array_equal(pooled, frames[3])
    assert flickers > 0


def test_rewards_are_clipped_in_training_but_not_in_evaluation():
    config = EnvPool("SpaceInvaders-v5", 4, 2, preprocessing(terminal_on_life_loss=False))
    clipped, unclipped = (
        torch.stack([step.reward for step in rollout(c, 80)]) for c in (config, config.for_evaluation())
    )
    assert set(clipped.unique().tolist()) == {0.0, 1.0} and unclipped.max() > 1
    assert torch.equal(clipped, unclipped.sign())


def test_for_evaluation_removes_only_the_training_settings():
    training = EnvPool("Breakout-v5", 3, 1, preprocessing(repeat_action_probability=0.25))
    evaluation = training.for_evaluation()
    full_game = dict(preprocessing(False, repeat_action_probability=0.25))
    assert full_game.pop("reward_clip") is False and full_game.pop("episodic_life") is False
    assert dict(evaluation.settings) == full_game
    defaults = envpool.make_spec("Breakout-v5").config
    assert defaults.reward_clip is False and defaults.episodic_life is False
    assert evaluation.envs == 3 and evaluation.for_evaluation() is evaluation
    for other in (EnvPool("Pendulum-v1"), Gymnasium("Pendulum-v1"), Toy("Clock"), EnvPool("Pong-v5")):
        assert other.for_evaluation() is other


def test_envpool_defaults_are_the_evaluation_protocol_of_the_papers():
    config = envpool.make_spec("Breakout-v5").config
    for name, value in preprocessing(training=False):
        assert getattr(config, name) == value
    assert (config.img_height, config.img_width, config.gray_scale, config.stack_num) == (84, 84, True, 4)
    assert EnvPool("Breakout-v5").spec.episode_limit == 27_000
    assert EnvPool("Breakout-v5").spec.action == Discrete(4)
    assert EnvPool("Breakout-v5", settings=preprocessing(full_action_space=True)).spec.action == Discrete(18)


@pytest.mark.parametrize("terminal_on_life_loss", [False, True])
def test_frame_limit_counts_a_game_across_its_lives(terminal_on_life_loss):
    settings = preprocessing(terminal_on_life_loss=terminal_on_life_loss, max_frames=240)
    length, terminations = torch.zeros(3), torch.zeros(3)
    for step in rollout(EnvPool("Breakout-v5", 3, 2, settings), 66)[1:]:
        length += step.valid
        terminations += step.terminated
        assert (length[step.truncated] == 60).all()
        if step.truncated.any():
            break
    else:
        pytest.fail("no game reached its limit")
    assert bool(terminations.any()) == terminal_on_life_loss


def test_an_episode_terminates_exactly_when_a_life_is_lost():
    settings = preprocessing()
    env = EnvPool("Breakout-v5", 2, 1, settings).make(0)
    raw = envpool.make_gymnasium("Breakout-v5", num_envs=2, seed=hash_seed(0), **dict(settings))
    env.reset(0)
    lives = raw.reset()[1]["lives"]
    ends = 0
    for i in range(200):
        action = np.array([i % 4, (i // 3) % 4])
        step, new_lives = env.step(torch.from_numpy(action)), raw.step(action)[4]["lives"]
        lost = torch.from_numpy(new_lives < lives)
        assert torch.equal(step.terminated, lost)
        ends += int(lost.sum())
        lives = new_lives
    assert ends > 5  # more than one game


def test_sticky_actions_change_a_rollout_and_are_reproducible():
    def frames(probability):
        config = EnvPool("Pong-v5", 2, 1, preprocessing(repeat_action_probability=probability))
        return torch.stack([step.obs["obs"] for step in rollout(config, 15)])

    plain, sticky = frames(0.0), frames(0.25)
    assert not torch.equal(plain, sticky) and torch.equal(sticky, frames(0.25))
