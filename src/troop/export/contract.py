"""The contract of an exported policy as JSON: what each input and output of the file means."""

from __future__ import annotations

from typing import Any

import torch

import troop
from troop.core.config_json import encode
from troop.core.env import Continuous
from troop.envs.actions import ActionBounds, DiscreteActions
from troop.export.interface_graph import TensorSpec
from troop.export.policy_graph import PolicyGraph
from troop.trained_policy import TrainedPolicy

FORMAT = 1  # raised when a reader of the older format could misunderstand a file
MEANINGS = {
    "observation": "as the env returns it",
    "action": "as the env takes it, without exploration",
    "started": "true where an episode begins: `state.*` of the row is not read then",
    "reward": "of the last action; not read where `started` is true",
    "state": "memory: feed `next_state.*` of the last step into `state.*`; zeros before the first step",
}


def describe(policy: TrainedPolicy, graph: PolicyGraph, any_rows: bool, opset: int) -> dict[str, Any]:
    """Return the contract without the checksum of the file."""
    frames = policy.interface.frames
    return {
        "format": FORMAT,
        "versions": {"troop": troop.__version__, "torch": str(torch.__version__), "opset": opset},
        "policy": type(policy.module).__name__,
        "checkpoint": policy.checkpoint,
        "env": encode(policy.env) | {"id": policy.env.id.rpartition("/")[2]},  # no folder of this machine
        "rows": "any" if any_rows else 1,
        "inputs": [_tensor(each) for each in graph.inputs],
        "outputs": [_tensor(each) for each in graph.outputs],
        "action": _action(policy),
        "action_repeat": frames.repeat,
        "in_model": {
            "normalization": getattr(policy.module, "normalizer", None) is not None,
            "gray": frames.gray,
            "shrink": frames.shrink,
            "frame_stack": frames.stack,
        },
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    dtype = str(spec.dtype).removeprefix("torch.")
    description = {"name": spec.name, "shape": ["rows", *spec.shape], "dtype": dtype, "kind": spec.kind}
    return description | {"meaning": MEANINGS[spec.kind]}


def _action(policy: TrainedPolicy) -> dict[str, Any]:
    actions, spec = policy.interface.actions, policy.spec.action
    if isinstance(actions, ActionBounds):
        return {"kind": "continuous", "low": actions.low.tolist(), "high": actions.high.tolist()}
    if isinstance(spec, Continuous):
        return {"kind": "continuous", "low": [-1.0] * spec.size, "high": [1.0] * spec.size}
    start = actions.start.tolist() if isinstance(actions, DiscreteActions) else 0
    factors = list(spec.factors) or None
    return {"kind": "discrete", "choices": spec.choices, "factors": factors, "start": start}
