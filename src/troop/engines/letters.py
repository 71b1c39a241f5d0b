"""Letters: how calls, tells and answers look on a line."""

from __future__ import annotations

import struct
from typing import Any

from troop.engines.codec import Packed, address_of, aligned
from troop.engines.shared import Mapped, Slot
from troop.engines.unpacking import unpack

CALL, TELL, ANSWER, WAKE, FORGET = range(5)
INLINE = 32 << 10  # bytes of arrays that go with the message instead of into a slot: two short copies less
# Kind, whether the description is in the slot too, slot, bytes of the description and of the arrays, number,
# number of the question it answers.
HEAD = struct.Struct("<BxHIIQQQ")
LONGEST_META = 48 << 10


def compose(kind: int, packed: Packed, number: int, reply_to: int, slot: Slot | None) -> bytearray:
    """A message; arrays are copied, into the slot if there is one."""
    meta, long = packed.meta, len(packed.meta) > LONGEST_META
    if slot is None:
        message = bytearray(HEAD.size + (start := aligned(len(meta))) + packed.size)
        if packed.size:
            packed.lay(address_of(message) + HEAD.size + start)
    else:
        message = bytearray(HEAD.size + (0 if long else len(meta)))
        packed.lay(slot.address)
        if long:
            slot.block[packed.size : packed.size + len(meta)] = meta
    if not long:
        message[HEAD.size : HEAD.size + len(meta)] = meta
    number_of_slot = 0 if slot is None else slot.number
    HEAD.pack_into(message, 0, kind, long, number_of_slot, len(meta), packed.size, number, reply_to)
    return message


def needs(packed: Packed) -> int:
    """Bytes of slot that a message needs, 0 if it travels by itself."""
    if len(packed.meta) > LONGEST_META:
        return packed.size + len(packed.meta)
    return packed.size if packed.size > INLINE else 0


class Letter:
    """A message that came; its content is copied out once, when `open` is called."""

    __slots__ = ("_body", "_long", "_mapped", "_meta", "kind", "number", "reply_to", "size", "slot")

    def __init__(self, message: memoryview, mapped: Mapped, fds: list[int]) -> None:
        (self.kind, self._long, self.slot, self._meta, self.size, self.number, self.reply_to) = (
            HEAD.unpack_from(message)
        )
        self._body, self._mapped = bytearray(message[HEAD.size :]), mapped
        for fd in fds:
            mapped.add(self.slot, fd)

    def open(self) -> Any:  # noqa: ANN401
        """The value."""
        if not self.slot:
            return unpack(self._body[: self._meta], self._body, aligned(self._meta))
        if not self._long:
            return unpack(self._body, self._mapped.copy(self.slot, self.size))
        block = self._mapped.copy(self.slot, self.size + self._meta)
        return unpack(memoryview(block)[self.size :], block)

    @property
    def weight(self) -> int:
        """Its bytes, as mailboxes count them."""
        return int(self.size + self._meta)


def forgotten(slot: int) -> bytes:
    """A message: this slot will not be used again."""
    return HEAD.pack(FORGET, 0, slot, 0, 0, 0, 0)


def wake() -> bytes:
    """A message: there is room again."""
    return HEAD.pack(WAKE, 0, 0, 0, 0, 0, 0)
