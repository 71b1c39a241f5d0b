"""Lazy `numba.njit`: numba is imported at the first call, since a launcher imports replays but runs none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

F = TypeVar("F")


class LazyJit:
    """A function that numba compiles at its first call; such functions may call each other."""

    def __init__(self, function: FunctionType) -> None:
        assert not function.__defaults__ and not function.__closure__, "the copy below would lose them"
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401
        """Call the compiled function."""
        return self.dispatcher(*args)

    @functools.cached_property
    def dispatcher(self) -> Callable[..., Any]:
        """The numba dispatcher; numba caches the machine code on disk."""
        from numba import njit

        function = self._function
        names = {name: function.__globals__.get(name) for name in function.__code__.co_names}
        callees = {name: value.dispatcher for name, value in names.items() if isinstance(value, LazyJit)}
        # A copy of the function in which the names of other lazy functions refer to their dispatchers.
        namespace = function.__globals__ | callees
        copy = functools.update_wrapper(
            FunctionType(function.__code__, namespace, function.__name__), function
        )
        del copy.__wrapped__
        dispatcher: Callable[..., Any] = njit(cache=True, nogil=True)(copy)
        return dispatcher


if TYPE_CHECKING:

    def njit_lazy(function: F) -> F:
        """Keep the type of the function."""
        return function
else:
    njit_lazy = LazyJit
