"""Networks that a user's function builds, named as `package.module:make_net` or `file.py:make_net`.

    def make_net(shape: tuple[int, ...], outputs: int) -> nn.Module

The module maps [B, *shape] to [B, outputs]; images arrive in [0, 1], channels first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from troop.core.errors import BadInput
from troop.core.user_code import describe, is_fully_allowed, load, return_annotation


def unknown_network_reason(name: str, known: Sequence[str]) -> str | None:
    """Return why `name` is no network: it is neither known nor `module:function`; None if it is one."""
    if name in known or ":" in name:
        return None
    return f"net is {name!r}; it must be one of {', '.join(known)}, or your own module:function"


def check_stored_network(name: str, allow: Iterable[str]) -> None:
    """Raise BadInput unless a run directory may name the network `name`, whose module the user has allowed.

    It is called only if it is a subclass of torch.nn.Module, a function annotated to return one, or allowed
    by its full name: otherwise the file could call any function of the module.
    """
    made: object = load(name)
    if is_fully_allowed(name, allow):
        return
    if not isinstance(made, type):
        made = return_annotation(made)
    if not (isinstance(made, type) and issubclass(made, nn.Module)):
        raise BadInput(
            f"'{name}' is not annotated to return a torch.nn.Module; annotate it, or allow it by its full "
            f"name with --allow {name}."
        )


def build_outside(name: str, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Import the function `name`, call it and check its result; BadInput if the output has a wrong shape."""
    make = load(name)
    try:
        net = make(shape, outputs)
        with torch.no_grad():
            result = tuple(net(torch.zeros(2, *shape)).shape)
    except (Exception, SystemExit) as error:  # code of the user
        raise BadInput(f"The network {name} fails for inputs {shape}: {describe(error)}") from error
    if not isinstance(net, nn.Module):
        raise BadInput(f"{name} returns a {type(net).__name__}; it must return a torch.nn.Module.")
    if result != (2, outputs):
        raise BadInput(f"The network {name} maps [2, {shape}] to {list(result)}; it must be [2, {outputs}].")
    return net


class UserNetwork(nn.Module):
    """One network [B, *shape] -> [B, o], or `copies` independent ones [copies, B, i] -> [copies, B, o]."""

    def __init__(self, name: str, shape: tuple[int, ...], outputs: int, copies: int | None = None) -> None:
        super().__init__()
        self.copies = copies
        self.nets = nn.ModuleList(build_outside(name, shape, outputs) for _ in range(copies or 1))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network, or each network to its own part of `x`."""
        if self.copies is None:
            y: Tensor = self.nets[0](x)
            return y
        return torch.stack([net(part) for net, part in zip(self.nets, x, strict=True)])

    def init_output(self, std: float) -> None:
        """Do nothing: the function of the user initialises its weights."""

    def init_orthogonal(self, output_gain: float, gain: float = 1.0) -> None:
        """Do nothing: the function of the user initialises its weights."""

    def project(self) -> None:
        """Do nothing: the weights are unconstrained."""
