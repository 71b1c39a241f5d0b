"""write_policy: a trained policy as an ONNX file and its contract beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from troop.core.errors import BadInput
from troop.export import contract, onnx_file
from troop.export.policy_graph import PolicyGraph
from troop.runs import files
from troop.trained_policy import TrainedPolicy

SUFFIX, CONTRACT_SUFFIX = ".onnx", ".json"
DEFAULT_NAME = "policy.onnx"


def output_path(out: str | Path) -> Path:
    """Return the file that `out` names, or `policy.onnx` in this directory; BadInput for a link."""
    path = Path(out)
    path = path / DEFAULT_NAME if path.is_dir() or str(out).endswith("/") else path
    if path.suffix != SUFFIX:
        raise BadInput(f"--out is {str(out)!r}; it must be a directory or a file that ends in {SUFFIX}.")
    for each in (path, path.with_suffix(CONTRACT_SUFFIX)):
        if each.is_symlink():
            raise BadInput(f"{each} is a link; remove it or choose another --out.")
    return path


def write_policy(
    policy: TrainedPolicy, out: str | Path, on_stage: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Write the policy, which is on the CPU, as `output_path(out)` with its contract beside it.

    Returns the contract, which is also in the metadata of the file. Replaces existing files.
    Raises BadInput if the policy cannot be exported, SetupProblem if a library is missing or the disk fails.
    """
    path = output_path(out)
    graph = PolicyGraph(policy)
    on_stage("converting the policy")
    model = onnx_file.convert(graph)
    terms = contract.describe(policy, graph, model.any_rows, model.opset)
    content = model.content(json.dumps(terms))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.disk_problem("create", path.parent, error) from error
    files.replace_file(path, content)
    checksum = {"file": path.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    terms = {"model": checksum | {"max_difference": model.max_difference}} | terms
    files.write_json(path.with_suffix(CONTRACT_SUFFIX), terms)
    return terms
