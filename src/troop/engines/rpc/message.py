"""Letters: how calls, tells and answers look on a line."""

from __future__ import annotations

import struct
from ctypes import string_at
from typing import Any

from troop.engines.rpc.codec import ALIGNMENT, Packed
from troop.engines.rpc.decode import unpack
from troop.engines.rpc.shared_memory import MappedSlots, Slot

CALL, SEND, REPLY, WAKE, UNMAP = range(5)
INLINE = 8 << 10  # bytes of arrays that go with the message: the kernel copies them twice, a slot not at all
# Kind, whether the description is in the slot too, slot, bytes of the description and of the arrays, number,
# number of the question it answers.
HEADER = struct.Struct("<BxHIIQQQ")
LONGEST_META = 48 << 10
GAPS = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]  # between one array and the next


def encode(kind: int, packed: Packed, number: int, reply_to: int, slot: Slot | None) -> bytes:
    """A message; arrays are copied, into the slot if there is one."""
    meta, size = packed.meta, packed.size
    if slot is None:
        parts: list[bytes | bytearray] = [HEADER.pack(kind, 0, 0, len(meta), size, number, reply_to), meta]
        for _, source, length in packed.buffers:
            parts += (string_at(source, length), GAPS[length % ALIGNMENT])
        return b"".join(parts)
    packed.copy_to(slot.address)
    if len(meta) <= LONGEST_META:
        return HEADER.pack(kind, 0, slot.number, len(meta), size, number, reply_to) + meta
    slot.block[size : size + len(meta)] = meta
    return HEADER.pack(kind, 1, slot.number, len(meta), size, number, reply_to)


def slot_bytes(packed: Packed) -> int:
    """Bytes of slot that a message needs, 0 if it travels by itself."""
    if len(packed.meta) > LONGEST_META:
        return packed.size + len(packed.meta)
    return packed.size if packed.size > INLINE else 0


class Message:
    """A message that came; its content is copied out or lent once, when `open` is called."""

    __slots__ = (
        "_arrays",
        "_mapped",
        "_meta",
        "kind",
        "lent",
        "number",
        "reply_to",
        "size",
        "slot",
        "weight",
    )

    def __init__(self, message: memoryview, mapped: MappedSlots, fds: list[int]) -> None:
        (self.kind, long, self.slot, meta, self.size, self.number, self.reply_to) = HEADER.unpack_from(
            message
        )
        self.weight = self.size + meta  # its bytes, as mailboxes count them
        self._mapped, end, self.lent = mapped, HEADER.size + meta, 0
        self._meta = None if long else bytes(message[HEADER.size : end])  # None: it is in the slot too
        self._arrays = bytearray(message[end:]) if self.size and not self.slot else b""
        for fd in fds:
            mapped.add(self.slot, fd)

    def decode(self, zero_copy: tuple[bytes, ...] = (), generation: int = 1) -> Any:  # noqa: ANN401
        """The value; not copied but `lent`, in this life of the asker, if it begins so and is in a slot."""
        if self.slot and self._meta is not None and self._meta.startswith(zero_copy):
            self.lent = generation
            return self._mapped.view(self.slot, self._meta)
        if self._meta is None:
            block = self._mapped.copy(self.slot, self.weight)
            return unpack(bytes(memoryview(block)[self.size :]), block)
        return unpack(self._meta, self._mapped.copy(self.slot, self.size) if self.slot else self._arrays)


def encode_unmap(slot: int) -> bytes:
    """A message: this slot will not be used again."""
    return HEADER.pack(UNMAP, 0, slot, 0, 0, 0, 0)


def encode_wake() -> bytes:
    """A message: there is room again."""
    return HEADER.pack(WAKE, 0, 0, 0, 0, 0, 0)
