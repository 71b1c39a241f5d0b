"""Message: the layout of calls, one-way sends and replies; README.md describes the protocol."""

from __future__ import annotations

import struct
from ctypes import string_at
from typing import Any

from troop.engines.rpc.codec import ALIGNMENT, Packed
from troop.engines.rpc.decode import unpack
from troop.engines.rpc.shared_memory import MappedSlots, Slot

CALL, SEND, REPLY, WAKE, UNMAP = range(5)  # kinds of messages
MAX_INLINE = 8 << 10  # bytes of arrays sent in the message, which the kernel copies twice; more use a slot
MAX_META = 48 << 10  # bytes of a description sent in the message; longer ones are stored in the slot
# Kind, whether the description is in the slot, slot number, bytes of the description, bytes of the arrays,
# message number, number of the call that a reply answers.
HEADER = struct.Struct("<BxHIIQQQ")
PADDING = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]  # after an array, by size modulo ALIGNMENT


def encode(kind: int, packed: Packed, number: int, reply_to: int, slot: Slot | None) -> bytes:
    """Return the message; copies the arrays into it or, if there is one, into the slot."""
    meta, size = packed.meta, packed.size
    if slot is None:
        parts: list[Any] = [HEADER.pack(kind, 0, 0, len(meta), size, number, reply_to), meta]
        for _, source, length in packed.buffers:
            data = string_at(source, length) if type(source) is int else source
            parts += (data, PADDING[length % ALIGNMENT])
        return b"".join(parts)
    packed.copy_to(slot.address)
    if len(meta) <= MAX_META:
        return HEADER.pack(kind, 0, slot.number, len(meta), size, number, reply_to) + meta
    slot.block[size : size + len(meta)] = meta
    return HEADER.pack(kind, 1, slot.number, len(meta), size, number, reply_to)


def slot_bytes(packed: Packed) -> int:
    """Return the bytes of slot that a message needs; 0 if everything fits into the message itself."""
    if len(packed.meta) > MAX_META:
        return packed.size + len(packed.meta)
    return packed.size if packed.size > MAX_INLINE else 0


class Message:
    """A received message; `decode` copies its content or returns views of its slot."""

    __slots__ = (
        "_arrays",
        "_mapped_slots",
        "_meta",
        "kind",
        "number",
        "reply_to",
        "size",
        "slot",
        "total_bytes",
        "viewed_generation",
    )

    def __init__(self, raw: memoryview, mapped_slots: MappedSlots, fds: list[int]) -> None:
        (self.kind, meta_in_slot, self.slot, meta_size, self.size, self.number, self.reply_to) = (
            HEADER.unpack_from(raw)
        )
        self.total_bytes = self.size + meta_size  # as flow control counts them
        self._mapped_slots, end = mapped_slots, HEADER.size + meta_size
        self.viewed_generation = 0  # of the client whose slot `decode` returned views of; 0: copied
        self._meta = None if meta_in_slot else bytes(raw[HEADER.size : end])
        self._arrays = bytearray(raw[end:]) if self.size and not self.slot else b""
        for fd in fds:
            mapped_slots.map(self.slot, fd)

    def decode(self, zero_copy_prefixes: tuple[bytes, ...] = (), generation: int = 1) -> Any:  # noqa: ANN401
        """Return the value.

        If the message has a slot and its description starts with one of the prefixes, arrays are views of
        the slot and `viewed_generation` is set to `generation`; otherwise they are copies.
        """
        if self.slot and self._meta is not None and self._meta.startswith(zero_copy_prefixes):
            self.viewed_generation = generation
            return self._mapped_slots.view(self.slot, self._meta)
        if self._meta is None:
            block = self._mapped_slots.copy(self.slot, self.total_bytes)
            return unpack(bytes(memoryview(block)[self.size :]), block)
        return unpack(
            self._meta, self._mapped_slots.copy(self.slot, self.size) if self.slot else self._arrays
        )


def encode_unmap(slot: int) -> bytes:
    """Return a message that tells the receiver to unmap a slot because it will not be used again."""
    return HEADER.pack(UNMAP, 0, slot, 0, 0, 0, 0)


def encode_wake() -> bytes:
    """Return a message that wakes a client which is blocked because its mailbox was full."""
    return HEADER.pack(WAKE, 0, 0, 0, 0, 0, 0)
