"""`make demo`: train FastTD3 on a real control task, then look at its curve and its film."""

import sys
import time
from pathlib import Path

from troop.cli.main import run

HERE = Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
ENV, TARGET, MINUTES = "CartpoleSwingup-v1", "800", "3"


def main() -> int:
    """Train, evaluate, film; say where everything is."""
    where = str(HERE)
    code = run(["train", "fasttd3", "--env", ENV, "--target", TARGET, "--minutes", MINUTES, "--run", where])
    if code:
        return code
    run(["eval", where])
    video = str(HERE / "videos" / "policy.mp4")
    filmed = run(["play", where, "--video", video])
    print(f"\nLearning curve  {where}/curve.png")
    print(f"Film            {'none: see above' if filmed else video}")
    print(f"Checkpoint      {where}/checkpoints/")
    return filmed


if __name__ == "__main__":
    sys.exit(main())
