import numpy as np
import pytest
import torch

from troop.core.env import Discrete, Field
from troop.envs import EnvPool, Gymnasium, Toy, preprocessing
from troop.envs.observations import spread

envpool = pytest.importorskip("envpool")


def rollout(config, steps, seed=0):
    env = config.make(seed)
    random = torch.Generator().manual_seed(seed)
    choices = config.spec.action.choices
    came = [env.reset(seed)]
    came += [env.step(torch.randint(choices, (config.envs,), generator=random)) for _ in range(steps)]
    env.close()
    return came


@pytest.mark.parametrize("life_loss", [False, True])
@pytest.mark.parametrize(("id", "steps", "frames"), [("Pong-v5", 120, 200), ("Breakout-v5", 260, 800)])
def test_a_stack_goes_on_from_the_row_before_or_begins_anew(id, steps, frames, life_loss):
    """What a replay of single frames relies on, for each row, those that only open an episode among them."""
    config = EnvPool(id, 4, 2, preprocessing(life_loss=life_loss, frames=frames))
    came = rollout(config, steps)
    seen = {"begins": 0, "goes on": 0}
    for i, step in enumerate(came):
        now = step.obs["obs"]
        equal = (now == now[:, :1]).flatten(1).all(dim=1)
        if i == 0:
            assert equal.all()
            continue
        peer_module = (now[:, :3] == came[i - 1].obs["obs"][:, 1:]).flatten(1).all(dim=1)
        assert (peer_module | (equal & ~step.valid)).all()
        seen["begins"] += int((~peer_module).sum())
        seen["goes on"] += int((peer_module & ~step.valid).sum())
    assert seen["begins"] > 0
    assert (seen["goes on"] > 0) == (life_loss and id == "Breakout-v5")  # Pong has no lives


def test_a_stack_of_colour_pictures():
    config = EnvPool("Pong-v5", 1, 1, (("gray_scale", False),))
    field = config.spec.obs["obs"]
    assert field == Field((12, 84, 84), torch.uint8, stack=4) and field.frame == (3, 84, 84)
    before, after = (step.obs["obs"] for step in rollout(config, 12)[-2:])
    assert torch.equal(before[:, 3:], after[:, :9])


def test_a_frame_is_the_maximum_of_the_last_two_of_four():
    whole = {"noop_max": 1, "stack_num": 1, "img_height": 210, "img_width": 160, "use_fire_reset": False}
    skipping, single = (
        envpool.make_gymnasium("Seaquest-v5", num_envs=1, seed=1, frame_skip=n, **whole) for n in (4, 1)
    )
    skipping.reset(), single.reset()
    flickers = 0
    for action in np.random.default_rng(0).integers(0, 18, (60, 1)):
        seen = skipping.step(action)[0]
        frames = [single.step(action)[0] for _ in range(4)]
        assert np.array_equal(seen, np.maximum(frames[2], frames[3]))
        flickers += not np.array_equal(seen, frames[3])
    assert flickers > 0


def test_rewards_are_clipped_in_training_and_real_when_judged():
    config = EnvPool("SpaceInvaders-v5", 4, 2, preprocessing(life_loss=False))
    clipped, real = (
        torch.stack([step.reward for step in rollout(c, 80)]) for c in (config, config.for_evaluation())
    )
    assert set(clipped.unique().tolist()) == {0.0, 1.0} and real.max() > 1
    assert torch.equal(clipped, real.sign())


def test_only_what_training_changes_is_judged_otherwise():
    training = EnvPool("Breakout-v5", 3, 1, preprocessing(sticky=0.25))
    judged = training.for_evaluation()
    assert dict(judged.settings) == {
        k: v for k, v in preprocessing(False, sticky=0.25) if k not in ("reward_clip", "episodic_life")
    }
    defaults = envpool.make_spec("Breakout-v5").config
    assert defaults.reward_clip is False and defaults.episodic_life is False
    assert judged.envs == 3 and judged.for_evaluation() is judged
    for other in (EnvPool("Pendulum-v1"), Gymnasium("Pendulum-v1"), Toy("Clock"), EnvPool("Pong-v5")):
        assert other.for_evaluation() is other


def test_the_defaults_of_the_backend_are_those_of_the_papers():
    config = envpool.make_spec("Breakout-v5").config
    for name, value in preprocessing(training=False):
        assert getattr(config, name) == value
    assert (config.img_height, config.img_width, config.gray_scale, config.stack_num) == (84, 84, True, 4)
    assert EnvPool("Breakout-v5").spec.episode_limit == 27_000
    assert EnvPool("Breakout-v5").spec.action == Discrete(4)
    assert EnvPool("Breakout-v5", settings=preprocessing(full_actions=True)).spec.action == Discrete(18)


@pytest.mark.parametrize("life_loss", [False, True])
def test_the_frame_limit_is_for_the_game_and_not_for_a_life(life_loss):
    came = rollout(EnvPool("Breakout-v5", 3, 2, preprocessing(life_loss=life_loss, frames=240)), 66)
    length, lost = torch.zeros(3), torch.zeros(3)
    for step in came[1:]:
        length += step.valid
        lost += step.terminated
        assert (length[step.truncated] == 60).all()
        if step.truncated.any():
            break
    else:
        pytest.fail("no game met its limit")
    assert bool(lost.any()) == life_loss


def test_an_episode_ends_where_a_life_is_lost_and_only_there():
    settings = preprocessing()
    env = EnvPool("Breakout-v5", 2, 1, settings).make(0)
    raw = envpool.make_gymnasium("Breakout-v5", num_envs=2, seed=spread(0), **dict(settings))
    env.reset(0)
    lives = raw.reset()[1]["lives"]
    ends = 0
    for i in range(200):
        action = np.array([i % 4, (i // 3) % 4])
        step, told = env.step(torch.from_numpy(action)), raw.step(action)[4]["lives"]
        lost = torch.from_numpy(told < lives)
        assert torch.equal(step.terminated, lost)
        ends += int(lost.sum())
        lives = told
    assert ends > 5  # more than one game


def test_sticky_actions_change_a_rollout_and_repeat_with_the_seed():
    def frames(sticky):
        config = EnvPool("Pong-v5", 2, 1, preprocessing(sticky=sticky))
        return torch.stack([step.obs["obs"] for step in rollout(config, 15)])

    plain, sticky = frames(0.0), frames(0.25)
    assert not torch.equal(plain, sticky) and torch.equal(sticky, frames(0.25))
