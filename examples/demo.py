"""`make demo`: train FastTD3 on a control task, evaluate the policy and record a video of it."""

import sys
import time
from pathlib import Path

from troop.cli.main import run

RUN = Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
ENV, TARGET, MINUTES = "CartpoleSwingup-v1", "800", "3"


def main() -> int:
    """Run the three commands and print the paths of the results; return the first exit code that is not 0."""
    code = run(
        ["train", "fasttd3", "--env", ENV, "--target", TARGET, "--minutes", MINUTES, "--run", str(RUN)]
    )
    if code:
        return code
    run(["eval", str(RUN)])
    video = str(RUN / "videos" / "policy.mp4")
    code = run(["play", str(RUN), "--video", video])
    print(f"\nLearning curve  {RUN}/curve.png")
    print(f"Video           {'not recorded, see above' if code else video}")
    print(f"Checkpoint      {RUN}/checkpoints/")
    return code


if __name__ == "__main__":
    sys.exit(main())
