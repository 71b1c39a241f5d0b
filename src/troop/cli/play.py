"""troop play DIR --video FILE: film the newest policy."""

from __future__ import annotations

from pathlib import Path

from troop.cli.parse import Parser, say
from troop.core.errors import BadInput


def run(argv: list[str]) -> int:
    """Film one episode."""
    parser = Parser("play", "Film one episode of the newest policy of a run, without exploration.")
    parser.add_argument("run", type=Path, metavar="DIR", help="the run's directory")
    parser.add_argument("--video", type=Path, help="an .mp4 or .gif file (default DIR/videos/policy.mp4)")
    parser.add_argument("--frames", type=int, default=240, help="pictures at most, evenly over the episode")
    parser.add_argument("--steps", type=int, help="film only the first steps")
    parser.add_argument("--seed", type=int, default=0, help="seed of the env (default 0)")
    args = parser.parse(argv)
    video = args.video or args.run / "videos" / "policy.mp4"
    if video.suffix not in (".mp4", ".gif"):
        raise BadInput(f"--video is {str(video)!r}; it must end in .mp4 or .gif.")
    for flag, value in (("--frames", args.frames), ("--steps", args.steps)):
        if value is not None and value < 1:
            raise BadInput(f"{flag} is {value}; it must be at least 1.")
    from troop.api import load_policy
    from troop.envs import record, write_video

    policy = load_policy(args.run)
    film = record(policy.env, policy.act, seed=args.seed, frames=args.frames, steps=args.steps)
    write_video(video, film.frames, fps=30)
    say(f"{video}: {len(film.frames)} frames of {film.steps} steps, return {film.episode_return:.2f}")
    return 0
