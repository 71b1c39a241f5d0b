"""Stub: stands in for a role on another host."""

from __future__ import annotations

from typing import Any, Protocol

from troop.core.remote import Future, RemoteCallable


class CallChannel(Protocol):
    """Sends calls to one host; implemented by the clients of the engines."""

    name: str

    def call(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        """Send a call and return a future of its reply; blocks while the mailbox of the server is full."""
        ...

    def send(self, node: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send a call without a reply; blocks while the mailbox of the server is full."""
        ...


class RemoteMethod(RemoteCallable):
    """A method of a role on another host; created once and cached by its stub."""

    __slots__ = ("_channel", "_name", "_node")

    def __init__(self, channel: CallChannel, node: str, name: str) -> None:
        self._channel, self._node, self._name = channel, node, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Call the method and block until its reply arrives."""
        return self._channel.call(self._node, self._name, args, kwargs).result()

    def call_async(self, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        """Call the method and return a future of its reply."""
        return self._channel.call(self._node, self._name, args, kwargs)

    def send(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Call the method without a reply; blocks while the mailbox of the server is full (back-pressure)."""
        self._channel.send(self._node, self._name, args, kwargs)


class Stub:
    """Has every public method of its node; attributes that are not methods cannot be read across hosts."""

    def __init__(self, channel: CallChannel, node: str) -> None:
        self._channel, self._node = channel, node

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("_"):
            raise AttributeError(
                f"{name} of {self._node!r} is private and cannot be called from another host"
            )
        method = self.__dict__[name] = RemoteMethod(self._channel, self._node, name)
        return method

    def __repr__(self) -> str:
        return f"<{self._node} on host {self._channel.name}>"
