"""The Atari preprocessing of the papers, as settings of EnvPool.

84 x 84 grey frames, each the maximum of the last two of four emulator frames, stacks of four, up to 30 no-ops
at the start, FIRE pressed in games that wait for it, and a limit of 108,000 emulator frames per game. These
are EnvPool's defaults, with full games and unclipped rewards: the protocol under which papers report scores.
For training, papers clip rewards and end an episode at each lost life; `preprocessing` adds both.
"""

from __future__ import annotations

from troop.envs.settings import Setting

FRAME_SKIP = 4
TRAINING_ONLY = ("reward_clip", "episodic_life", "zero_discount_on_life_loss")


def preprocessing(
    training: bool = True,
    *,
    clip_rewards: bool | None = None,
    terminal_on_life_loss: bool | None = None,
    repeat_action_probability: float = 0.0,
    full_action_space: bool = False,
    noop_max: int = 30,
    fire_reset: bool = True,
    max_frames: int = 108_000,
) -> tuple[Setting, ...]:
    """Return the EnvPool settings of an Atari game.

    `training` is the default of `clip_rewards` (rewards become their sign) and `terminal_on_life_loss`.
    `repeat_action_probability` is that of sticky actions, 0.25 in Machado et al., 2018. `max_frames` limits a
    game in emulator frames, across all its lives.
    """
    return (
        ("reward_clip", training if clip_rewards is None else clip_rewards),
        ("episodic_life", training if terminal_on_life_loss is None else terminal_on_life_loss),
        ("repeat_action_probability", repeat_action_probability),
        ("full_action_space", full_action_space),
        ("noop_max", noop_max),
        ("use_fire_reset", fire_reset),
        ("frame_skip", FRAME_SKIP),
        ("max_episode_steps", max_frames // FRAME_SKIP),
    )


def evaluation_settings(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Remove the settings that only training uses: EnvPool then plays full games with unclipped rewards."""
    return tuple((name, value) for name, value in settings if name not in TRAINING_ONLY)
