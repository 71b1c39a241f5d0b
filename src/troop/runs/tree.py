"""Lossless conversion of nested state to JSON plus named tensors, and back.

Dicts with plain string keys are JSON objects; values without a JSON form have a tag: `$tensor`, `$tuple`,
`$float` (NaN and infinities) and `$dict` (other keys). Ints, floats, bools, None and tuples keep their type;
instances of subclasses (OrderedDict, torch.Size, NumPy floats, nn.Parameter) become their base class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TAG = "$"
ReadTensor = Callable[[str, str, list[int]], Tensor]
"""Returns the tensor stored under a name, which must have this dtype and shape."""


def encode(value: object, tensors: dict[str, Tensor], path: str = "") -> Any:  # noqa: ANN401 - JSON
    """Return `value` as JSON; add its tensors to `tensors`, named by their dotted keys."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, Tensor):
        return _encode_tensor(value, tensors, path)
    if isinstance(value, dict):
        return _encode_dict(value, tensors, path)
    if isinstance(value, list | tuple):
        items = [encode(item, tensors, _join(path, i)) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    raise TypeError(f"A checkpoint cannot hold {path or 'this'}: it is a {type(value).__name__}.")


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _encode_tensor(value: Tensor, tensors: dict[str, Tensor], path: str) -> Any:  # noqa: ANN401
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise TypeError(f"A checkpoint cannot hold {path or 'this'}: it is not a plain dense tensor.")
    # The format reserves one name and needs valid Unicode; two paths may also give the same name.
    name = path.encode("utf-8", "backslashreplace").decode() or "value"
    while name in tensors or name == "__metadata__":
        name += "'"
    tensors[name] = value.detach()
    return {"$tensor": [name, str(value.dtype).removeprefix("torch."), list(value.shape)]}


def _encode_dict(value: dict[Any, Any], tensors: dict[str, Tensor], path: str) -> Any:  # noqa: ANN401
    if all(type(key) is str and not key.startswith(TAG) for key in value):
        return {key: encode(item, tensors, _join(path, key)) for key, item in value.items()}
    for key in value:
        if not isinstance(key, str | int) or isinstance(key, bool):  # optimizer states have integer keys
            raise TypeError(
                f"A checkpoint cannot hold {path or 'this'}: its key {key!r} is neither str nor int."
            )
    return {"$dict": [[key, encode(item, tensors, _join(path, key))] for key, item in value.items()]}


def decode(node: Any, read_tensor: ReadTensor) -> object:  # noqa: ANN401 - JSON from a file
    """Inverse of `encode`; `read_tensor` returns the tensors. ValueError or TypeError if malformed."""
    if isinstance(node, list):
        return [decode(item, read_tensor) for item in node]
    if not isinstance(node, dict):
        return node
    tag = next(iter(node), "")
    if not tag.startswith(TAG):
        return {key: decode(item, read_tensor) for key, item in node.items()}
    content = node[tag]
    if tag == "$float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if tag == "$tuple":
        return tuple(decode(item, read_tensor) for item in content)
    if tag == "$dict":
        return {_key(key): decode(item, read_tensor) for key, item in content}
    if tag == "$tensor":
        name, dtype, shape = content
        if not (isinstance(name, str) and isinstance(dtype, str) and isinstance(shape, list)):
            raise ValueError("a tensor entry is malformed")
        return read_tensor(name, dtype, shape)
    raise ValueError(f"unknown entry {tag[:20]!r}")


def _key(key: object) -> str | int:
    if not isinstance(key, str | int):
        raise ValueError("a key is neither str nor int")
    return key
