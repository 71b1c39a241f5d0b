"""troop export DIR --out FILE: write a trained policy as an ONNX file."""

from __future__ import annotations

from pathlib import Path

from troop.cli.parse import Parser, add_allow_flag, echo

DESCRIPTION = """\
Write the policy of the newest checkpoint of a run as an ONNX file, for programs without Troop or PyTorch.

The file takes observations as the env returns them and returns actions as the env takes them: normalization,
images and action bounds are part of it. A JSON file beside it describes every input and output. Before both
are written, the file is run and compared with the policy. Needs the extra `trooprl[export]`.
"""
EPILOG = """\
examples:
  troop export runs/first                            writes runs/first/policy.onnx and policy.json
  troop export runs/first --out robot/walk.onnx      writes robot/walk.onnx and robot/walk.json
  troop export runs/mine --allow my_package          a run whose env or algorithm is in my_package
"""


def run(argv: list[str]) -> int:
    """Export the policy and print the inputs and outputs of the file."""
    parser = Parser("export", DESCRIPTION, EPILOG)
    parser.add_argument("run", type=Path, metavar="DIR", help="directory of the run")
    parser.add_argument(
        "--out", metavar="FILE", help=".onnx file, or directory for policy.onnx (default DIR/policy.onnx)"
    )
    parser.add_argument(
        "--env", metavar="ID", help="env id as in `troop train`; the stored one keeps its settings"
    )
    add_allow_flag(parser)
    parser.add_argument(
        "--allow-older", action="store_true", help="use an older checkpoint if the newest is damaged"
    )
    args = parser.parse(argv)
    from troop.logs.status_line import StatusLine
    from troop.runs import files

    if args.out is None:
        files.reject_links(args.run)
    with StatusLine("loading libraries") as status:
        from troop.api import load_policy
        from troop.export.write import DEFAULT_NAME, output_path, write_policy

        path = output_path(args.out or args.run / DEFAULT_NAME)
        policy = load_policy(args.run, env=args.env, allow=args.allow, allow_older=args.allow_older)
        status.print(f"checkpoint {policy.checkpoint}")
        contract = write_policy(policy, path, status.update)
    for side in ("inputs", "outputs"):
        for each in contract[side]:
            shape = ", ".join(map(str, each["shape"]))
            echo(f"{side[:-1]:6} {each['name']} [{shape}] {each['dtype']}: {each['meaning']}")
    rows = "any number of rows" if contract["rows"] == "any" else "one row"
    echo(
        f"{path}: {contract['model']['bytes']:,} bytes, {rows} per call; {path.with_suffix('.json')} has all"
    )
    return 0
