"""Line: a socket between two processes on which a message arrives whole or not at all."""

from __future__ import annotations

import os
import socket
from collections import deque

ROOM = 1 << 20  # bytes the kernel should hold for a line, where it lets us
LARGEST = 96 << 10  # bytes of a message; more goes through shared memory
_EXTRA = socket.CMSG_SPACE(4 * 4)  # up to four descriptors a message


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends; sequenced packets, so a writer that is killed leaves no half message behind."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
    return ends


class Connection:
    """One end: sending never blocks (what the kernel does not take waits here), receiving neither."""

    def __init__(self, end: socket.socket, full: set[Connection] | None = None) -> None:
        end.setblocking(False)
        self._full = set() if full is None else full  # where it enters itself while messages wait
        self._end = end
        self._buffer = memoryview(bytearray(LARGEST + 4096))
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self.open = True

    def fileno(self) -> int:
        """For poll."""
        return self._end.fileno()

    @property
    def backlogged(self) -> bool:
        """Whether messages wait here because the kernel did not take them."""
        return bool(self._outbox) and self.open

    def send(self, message: bytes | bytearray, fds: tuple[int, ...] = ()) -> None:
        """Send whole, in order; descriptors travel along. Nothing happens on a closed line."""
        if len(message) > LARGEST:
            raise ValueError(f"a message of {len(message)} bytes is too long for a line")
        if self._outbox or not self._sent(message, fds):
            # Descriptors are copied, for the sender may close its own before the message leaves.
            self._outbox.append((bytes(message), tuple(os.dup(fd) for fd in fds)))
            self._full.add(self)

    def flush(self) -> None:
        """Try again to send what waits."""
        while self._outbox and self.open and self._sent(*self._outbox[0]):
            self._close_all(self._outbox.popleft()[1])
        if not self.backlogged:
            self._full.discard(self)

    def _sent(self, message: bytes | bytearray, fds: tuple[int, ...]) -> bool:
        if not self.open:
            return True
        try:
            if fds:
                socket.send_fds(self._end, [message], list(fds))
            else:
                self._end.send(message)
        except BlockingIOError:
            return False
        except OSError:  # the other end is gone
            self.open = False
        return True

    def receive(self) -> tuple[memoryview, list[int]] | None:
        """The next message, valid until the next call, and its descriptors; None if there is none now."""
        try:
            size, extra, _, _ = self._end.recvmsg_into([self._buffer], _EXTRA, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        except OSError:
            self.open = False
            return None
        if size == 0:
            self.open = False
            return None
        return self._buffer[:size], _descriptors(extra) if extra else []

    def close(self) -> None:
        """Hang up."""
        self.open = False
        self._full.discard(self)
        while self._outbox:
            self._close_all(self._outbox.popleft()[1])
        self._end.close()

    @staticmethod
    def _close_all(fds: tuple[int, ...]) -> None:
        for fd in fds:
            os.close(fd)


def _descriptors(extra: list[tuple[int, int, bytes]]) -> list[int]:
    fds: list[int] = []
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = content[: len(content) // 4 * 4]
            fds += [int.from_bytes(whole[i : i + 4], "little") for i in range(0, len(whole), 4)]
    return fds
