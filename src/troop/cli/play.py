"""troop play DIR --video FILE: record a video of a trained policy."""

from __future__ import annotations

from pathlib import Path

from troop.cli.parse import Parser, add_allow_flag, echo
from troop.core.errors import BadInput

DESCRIPTION = """\
Record a video of one episode of the policy in the newest checkpoint of a run, without exploration.

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
        "--env", metavar="ID", help="env id as in `troop train`; the stored one keeps its settings"
    )
    add_allow_flag(parser)
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
    parser.add_argument(
        "--allow-older", action="store_true", help="use an older checkpoint if the newest is damaged"
    )
    args = parser.parse(argv)
    video = args.video or args.run / "videos" / "policy.mp4"
    if video.suffix not in (".mp4", ".gif"):
        raise BadInput(f"--video is {str(video)!r}; it must end in .mp4 or .gif.")
    for flag, value in (("--frames", args.frames), ("--steps", args.steps)):
        if value is not None and value < 1:
            raise BadInput(f"{flag} is {value}; it must be at least 1.")
    from troop.logs.status_line import StatusLine
    from troop.runs import files
    from troop.runs.directory import VIDEOS

    if args.video is None:
        files.reject_links(args.run, VIDEOS)
    with StatusLine("loading libraries") as status:
        from troop.api import load_policy
        from troop.envs import record_video, write_video

        def show(frame: int, step: int) -> None:
            status.update(f"{frame} of at most {args.frames} frames, step {step:,}")

        policy = load_policy(args.run, env=args.env, allow=args.allow, allow_older=args.allow_older)
        status.print(f"checkpoint {policy.checkpoint}")
        episode = record_video(
            policy.env, policy.act, seed=args.seed, frames=args.frames, steps=args.steps, on_frame=show
        )
        status.update(f"encoding {len(episode.frames)} frames")
        write_video(video, episode.frames, fps=30)
    frames, steps = len(episode.frames), episode.steps
    echo(f"{video}: {frames} frames of {steps} steps, return {episode.episode_return:.2f}")
    if episode.stride > 1:
        echo(
            f"The video shows one of {episode.stride} steps and is {episode.stride} times faster than with "
            f"every step; --frames {args.frames * episode.stride} renders all."
        )
    return 0
