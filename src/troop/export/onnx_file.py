"""Conversion of a PolicyGraph to the bytes of one ONNX file, and their comparison with the policy."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from troop.core.env import ACTION_MASK
from troop.core.errors import BadInput, SetupProblem
from troop.export.interface_graph import TensorSpec
from troop.export.policy_graph import PolicyGraph

ROWS = "rows"  # name of the axis of rows
DOMAINS = {"", "ai.onnx", "ai.onnx.ml"}  # operators that every runtime has
CHECKED_ROWS = 64  # in all
CHECK_ROWS = 16  # at a time
TOLERANCE = 1e-3  # of actions, relative to the largest one
LIBRARIES = ("onnx", "onnxruntime", "onnxscript")
METADATA_KEY = "troop"


@dataclass(frozen=True)
class OnnxModel:
    """A converted policy; `any_rows` is False if it takes only one row per call."""

    proto: Any  # an onnx.ModelProto
    any_rows: bool
    max_difference: float  # of its actions from those of the policy

    @property
    def opset(self) -> int:
        """Version of the operators."""
        return next(int(each.version) for each in self.proto.opset_import if each.domain in ("", "ai.onnx"))

    def content(self, contract: str) -> bytes:
        """Return the bytes of the file, with the contract in its metadata."""
        from onnx import helper

        helper.set_model_props(self.proto, {METADATA_KEY: contract})
        content: bytes = self.proto.SerializeToString(deterministic=True)
        return content


def convert(graph: PolicyGraph) -> OnnxModel:
    """Convert the graph for any number of rows; if its code depends on their number, for one row per call.

    The result has no external data, no operators but those of every runtime, and no names of source files.
    Raises BadInput if the policy cannot be converted or the result differs from it, SetupProblem if a library
    is missing.
    """
    if missing := [name for name in LIBRARIES if importlib.util.find_spec(name) is None]:
        raise SetupProblem(f"Exporting needs {', '.join(missing)}; try: pip install 'trooprl[export]'.")
    with torch.no_grad():
        try:
            return _convert(graph, any_rows=True)
        except BadInput:
            return _convert(graph, any_rows=False)


def _convert(graph: PolicyGraph, any_rows: bool) -> OnnxModel:
    example = tuple(random_input(each, 2 if any_rows else 1) for each in graph.inputs)
    rows, name = torch.export.Dim(ROWS), type(graph.policy).__name__
    try:
        with _quiet():
            program = torch.onnx.export(
                graph,
                example,
                input_names=[each.name for each in graph.inputs],
                output_names=[each.name for each in graph.outputs],
                dynamic_shapes=(tuple({0: rows} for _ in example),) if any_rows else None,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # torch raises many types, also those of the user's own policy
        raise BadInput(f"The policy {name} cannot be exported: {_one_line(error)}") from error
    assert program is not None
    proto = program.model_proto
    _remove_traces(proto)
    foreign = sorted(
        {f"{node.domain}.{node.op_type}" for node in proto.graph.node if node.domain not in DOMAINS}
    )
    if foreign or proto.functions:
        raise BadInput(f"The policy {name} cannot be exported: runtimes lack its {', '.join(foreign)}.")
    try:
        difference = _compare(graph, proto.SerializeToString(), CHECK_ROWS if any_rows else 1)
    except Exception as error:  # also those of the runtime
        raise BadInput(f"The policy {name} cannot be exported: {_one_line(error)}") from error
    return OnnxModel(proto, any_rows, difference)


def _remove_traces(proto: Any) -> None:  # noqa: ANN401 - an onnx.ModelProto
    """Remove what the converter notes about source files of this machine."""
    graph = proto.graph
    del graph.metadata_props[:], proto.metadata_props[:], graph.value_info[:]
    for item in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        del item.metadata_props[:]
        item.doc_string = ""
    for value in (*graph.input, *graph.output):
        axis = value.type.tensor_type.shape.dim[0]
        if axis.dim_param:
            axis.dim_param = ROWS


def random_input(spec: TensorSpec, rows: int) -> Tensor:
    """Return a value of an input: normal numbers, all integers between its bounds, a memory of zeros."""
    shape = (rows, *spec.shape)
    if spec.kind == "started":
        return torch.ones(shape, dtype=torch.bool)
    if spec.kind == "state":
        return torch.zeros(shape, dtype=spec.dtype)
    if spec.name.rpartition(".")[2] == ACTION_MASK:
        return torch.ones(shape, dtype=spec.dtype)
    if spec.dtype.is_floating_point:
        return torch.randn(shape, dtype=spec.dtype)
    return torch.randint(spec.low, spec.high + 1, shape).to(spec.dtype)


def _compare(graph: PolicyGraph, content: bytes, rows: int) -> float:
    """Run both for a few steps of an episode and return the largest difference of their actions.

    Raises ValueError if it is more than rounding: of continuous actions `TOLERANCE` of the largest one, of
    discrete actions, where two may be almost equally good, another choice in more than a tenth of the rows.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    values = {each.name: random_input(each, rows) for each in graph.inputs}
    wanted, actions = [], []
    for _ in range(CHECKED_ROWS // rows):
        expected = _act(graph, values, rows)
        wanted.append(expected[0].double().numpy().reshape(rows, -1))
        actions.append(session.run(None, {name: x.numpy() for name, x in values.items()})[0])
        memory = zip(graph.outputs[1:], expected[1:], strict=True)
        values |= {each.name.removeprefix("next_"): x for each, x in memory}
        values |= {each.name: random_input(each, rows) for each in graph.inputs if each.kind == "observation"}
        values |= {"started": torch.zeros(rows, dtype=torch.bool)} if "started" in values else {}
    errors = np.abs(np.subtract(wanted, np.reshape(actions, np.shape(wanted))))
    if graph.outputs[0].dtype.is_floating_point:
        is_equal = errors.max() <= TOLERANCE * max(1.0, float(np.abs(wanted).max()))
    else:
        is_equal = errors.any(-1).mean() <= 0.1
    if not is_equal:
        raise ValueError(f"the actions of the file differ by {errors.max():.3g}")
    return float(errors.max())


def _act(graph: PolicyGraph, values: dict[str, Tensor], rows: int) -> list[Tensor]:
    """Return the outputs of the graph, computed row by row: some policies take no more."""
    each_row = [graph(*(x[row : row + 1] for x in values.values())) for row in range(rows)]
    return [torch.cat(parts) for parts in zip(*each_row, strict=True)]


def _one_line(error: BaseException) -> str:
    """Return the first line of the error that the policy itself caused, if any, with its type."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = (str(cause).strip().splitlines() or [""])[0].rstrip(".")
    return f"{type(cause).__name__}: {text}."


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warnings and logs of the converter, which are about its own internals."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
