"""Connection: a Unix socket between two processes that transfers whole messages and file descriptors."""

from __future__ import annotations

import os
import socket
from collections import deque

SEND_BUFFER_BYTES = 1 << 20  # requested of the kernel for each end
MAX_MESSAGE_BYTES = 96 << 10  # larger values go through shared memory
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * 4)  # up to four file descriptors per message


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets of sequenced packets: a killed sender leaves no partial message."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return ends


class Connection:
    """One end of a socket pair. Neither sending nor receiving blocks.

    Messages that the kernel does not accept wait in an outbox until `flush`. While messages wait, the
    connection is a member of the set `backlog`, if one is given.
    """

    def __init__(self, end: socket.socket, backlog: set[Connection] | None = None) -> None:
        end.setblocking(False)
        self._backlog = set() if backlog is None else backlog
        self._end = end
        self._buffer = memoryview(bytearray(MAX_MESSAGE_BYTES + 4096))
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self.open = True

    def fileno(self) -> int:
        """Return the file descriptor, for poll()."""
        return self._end.fileno()

    @property
    def backlogged(self) -> bool:
        """Whether messages wait in the outbox because the kernel has not accepted them."""
        return bool(self._outbox) and self.open

    def send(self, message: bytes | bytearray, fds: tuple[int, ...] = ()) -> None:
        """Send a message and file descriptors, after all earlier messages. A closed connection drops them.

        Raises ValueError if the message is longer than MAX_MESSAGE_BYTES.
        """
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(message)} bytes is longer than {MAX_MESSAGE_BYTES}")
        if self._outbox or not self._try_send(message, fds):
            # The caller may close its descriptors before the message leaves, so they are duplicated.
            self._outbox.append((bytes(message), tuple(os.dup(fd) for fd in fds)))
            self._backlog.add(self)

    def flush(self) -> None:
        """Try to send the messages in the outbox."""
        while self._outbox and self.open and self._try_send(*self._outbox[0]):
            self._close_all(self._outbox.popleft()[1])
        if not self.backlogged:
            self._backlog.discard(self)

    def _try_send(self, message: bytes | bytearray, fds: tuple[int, ...]) -> bool:
        if not self.open:
            return True
        try:
            if fds:
                socket.send_fds(self._end, [message], list(fds))
            else:
                self._end.send(message)
        except BlockingIOError:
            return False
        except OSError:  # the peer has closed its end
            self.open = False
        return True

    def receive(self) -> tuple[memoryview, list[int]] | None:
        """Return the next message, valid until the next call, and its file descriptors; None without one."""
        try:
            size, ancillary, _, _ = self._end.recvmsg_into(
                [self._buffer], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        except OSError:
            self.open = False
            return None
        if size == 0:
            self.open = False
            return None
        return self._buffer[:size], _file_descriptors(ancillary) if ancillary else []

    def close(self) -> None:
        """Close the socket and drop the outbox."""
        self.open = False
        self._backlog.discard(self)
        while self._outbox:
            self._close_all(self._outbox.popleft()[1])
        self._end.close()

    @staticmethod
    def _close_all(fds: tuple[int, ...]) -> None:
        for fd in fds:
            os.close(fd)


def _file_descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds: list[int] = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            words = content[: len(content) // 4 * 4]
            fds += [int.from_bytes(words[i : i + 4], "little") for i in range(0, len(words), 4)]
    return fds
