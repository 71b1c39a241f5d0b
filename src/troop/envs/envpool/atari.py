"""The Atari preprocessing of the papers, as settings of EnvPool.

84 x 84 grey pictures, each the maximum of the last two of four frames, a history of four, up to 30 no-ops at
the start, FIRE pressed where a game waits for it, 108,000 frames a game. With no settings at all EnvPool does
this, with whole games and rewards as they are: what the papers report. They train on less: see below.
"""

from __future__ import annotations

Setting = tuple[str, int | float | bool | str]

FRAME_SKIP = 4
STICKY = 0.25  # Machado et al., 2018
TRAINING_ONLY = ("reward_clip", "episodic_life", "zero_discount_on_life_loss")


def preprocessing(
    training: bool = True,
    *,
    clip_rewards: bool | None = None,
    life_loss: bool | None = None,
    sticky: float = 0.0,
    full_actions: bool = False,
    noops: int = 30,
    fire: bool = True,
    frames: int = 108_000,
) -> tuple[Setting, ...]:
    """Settings of an Atari game: clipped rewards and an episode a life in training, neither in a evaluation_settings game.

    `sticky` is the probability that a frame repeats the last action; `frames` end a game, whatever its lives.
    """
    return (
        ("reward_clip", training if clip_rewards is None else clip_rewards),
        ("episodic_life", training if life_loss is None else life_loss),
        ("repeat_action_probability", sticky),
        ("full_action_space", full_actions),
        ("noop_max", noops),
        ("use_fire_reset", fire),
        ("frame_skip", FRAME_SKIP),
        ("max_episode_steps", frames // FRAME_SKIP),
    )


def evaluation_settings(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """The same settings with whole games and rewards as they are, which are EnvPool's defaults."""
    return tuple((name, value) for name, value in settings if name not in TRAINING_ONLY)
