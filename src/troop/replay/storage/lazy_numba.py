"""Loops compiled by numba, which is imported at the first call: a launcher makes no replay and needs none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

F = TypeVar("F")


class Compiled:
    """A function that is compiled when it is called first; compiled functions may call each other."""

    def __init__(self, function: FunctionType) -> None:
        assert not function.__defaults__ and not function.__closure__, "would be lost"
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401
        """Call it."""
        return self.dispatcher(*args)

    @functools.cached_property
    def dispatcher(self) -> Callable[..., Any]:
        """Numba's, kept on disk from run to run."""
        from numba import njit

        plain = self._function
        others = {name: plain.__globals__.get(name) for name in plain.__code__.co_names}
        called = {name: other.dispatcher for name, other in others.items() if isinstance(other, Compiled)}
        known = plain.__globals__ | called
        again = functools.update_wrapper(FunctionType(plain.__code__, known, plain.__name__), plain)
        del again.__wrapped__
        compiled: Callable[..., Any] = njit(cache=True, nogil=True)(again)
        return compiled


if TYPE_CHECKING:

    def compiled(function: F) -> F:
        """What it does as far as types go."""
        return function
else:
    compiled = Compiled
