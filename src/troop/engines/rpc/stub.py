"""Stub: a peer on another host, as a role sees it."""

from __future__ import annotations

from typing import Any, Protocol

from troop.core.remote import Future, RemoteCallable


class CallChannel(Protocol):
    """The asker's end of the edge to one host, as a stub needs it."""

    name: str

    def call(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        """Send a call; its reply comes later."""
        ...

    def send(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send a letter that is not answered; waits while the mailbox is full."""
        ...


class RemoteMethod(RemoteCallable):
    """A method of a peer on another host; made once and kept by its stub."""

    __slots__ = ("_edge", "_name", "_node")

    def __init__(self, edge: CallChannel, node: str, name: str) -> None:
        self._edge, self._node, self._name = edge, node, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Ask and wait for the answer."""
        return self._edge.call(self._node, self._name, args, kwargs).result()

    def call_async(self, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        """Ask and go on."""
        return self._edge.call(self._node, self._name, args, kwargs)

    def send(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Inform and go on; waits while the peer's mailbox is full."""
        self._edge.send(self._node, self._name, args, kwargs)


class Stub:
    """Has every public method of its node; attributes that are no methods cannot be read across hosts."""

    def __init__(self, edge: CallChannel, node: str) -> None:
        self._edge, self._node = edge, node

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("_"):
            raise AttributeError(f"{name} of {self._node!r} cannot be reached from another host")
        method = self.__dict__[name] = RemoteMethod(self._edge, self._node, name)
        return method

    def __repr__(self) -> str:
        return f"<{self._node} on host {self._edge.name}>"
