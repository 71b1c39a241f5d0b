"""troop play DIR --video FILE: record a video of a trained policy."""

from __future__ import annotations

from pathlib import Path

from troop.cli.parse import Parser, echo
from troop.core.errors import BadInput

DESCRIPTION = """\
Record a video of one episode of the policy in the newest valid checkpoint of a run, without exploration.

Rendering needs the extra `trooprl[video]`; MuJoCo envs also need EGL (`troop doctor` checks it).
"""
EPILOG = """\
examples:
  troop play runs/first                                  writes runs/first/videos/policy.mp4
  troop play runs/first --video first.gif --steps 200    the first 200 steps, as a GIF
"""


def run(argv: list[str]) -> int:
    """Record one episode and print its length and return."""
    parser = Parser("play", DESCRIPTION, EPILOG)
    parser.add_argument("run", type=Path, metavar="DIR", help="directory of the run")
    parser.add_argument(
        "--video", type=Path, metavar="FILE", help=".mp4 or .gif (default DIR/videos/policy.mp4)"
    )
    parser.add_argument(
        "--frames",
        type=int,
        default=240,
        metavar="N",
        help="at most this many frames, evenly spaced (default 240)",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="record only the first N steps")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the env (default 0)")
    args = parser.parse(argv)
    video = args.video or args.run / "videos" / "policy.mp4"
    if video.suffix not in (".mp4", ".gif"):
        raise BadInput(f"--video is {str(video)!r}; it must end in .mp4 or .gif.")
    for flag, value in (("--frames", args.frames), ("--steps", args.steps)):
        if value is not None and value < 1:
            raise BadInput(f"{flag} is {value}; it must be at least 1.")
    from troop.api import load_policy
    from troop.envs import record_video, write_video

    policy = load_policy(args.run)
    episode = record_video(policy.env, policy.act, seed=args.seed, frames=args.frames, steps=args.steps)
    write_video(video, episode.frames, fps=30)
    frames, steps = len(episode.frames), episode.steps
    echo(f"{video}: {frames} frames of {steps} steps, return {episode.episode_return:.2f}")
    return 0
