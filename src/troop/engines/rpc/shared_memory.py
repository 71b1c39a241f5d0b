"""Shared memory that nobody has to clean up: every piece is an anonymous file, gone with its last holder."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

from troop.engines.rpc.codec import Packed, address_of, pack
from troop.engines.rpc.decode import DecodePlan, decode_plan, unpack

SMALLEST = 1 << 16  # bytes of the smallest slot
KEPT = 256  # letters whose views of their slots a receiver keeps
SENT, SENT_BYTES, HANDLED, HANDLED_BYTES, CLIENT_WAITING, REPLY_COPIED, DECODED = range(7)
_META_SIZE = 8


def create_memfd(size: int) -> int:
    """A file descriptor of `size` bytes of memory without a name."""
    fd = os.memfd_create("troop", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


class FlowCounters:
    """Seven numbers that the two ends of an edge share; each is written by one end only.

    The asker writes SENT and SENT_BYTES (the last letter and all bytes so far), WAITING and TAKEN (the last
    answer it has copied); the server writes OPENED, HANDLED and HANDLED_BYTES (whose memory is free again). A
    number is one aligned word, so a reader sees an old or a new one, never half of each.
    """

    SIZE = 64

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, self.SIZE)
        os.close(fd)
        self.words = memoryview(self._map).cast("Q")

    def messages(self) -> int:
        """Letters sent and not yet handled."""
        return max(0, self.words[SENT] - self.words[HANDLED])

    def bytes(self) -> int:
        """Bytes sent and not yet handled."""
        return max(0, self.words[SENT_BYTES] - self.words[HANDLED_BYTES])


class Slot:
    """A piece of memory that its owner fills again and again."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size
        self.fd = create_memfd(size)
        self.block = memoryview(mmap.mmap(self.fd, size))
        self.address = address_of(self.block)
        self.busy = False

    def __del__(self) -> None:
        os.close(self.fd)


class SlotPool:
    """The slots of one sender; sizes are powers of two, so chunks of one shape find their slot again."""

    def __init__(self, max_free_bytes: int) -> None:
        self.max_free_bytes = max_free_bytes  # bytes of free slots worth keeping
        self._slots: list[Slot] = []
        self._made = 0
        self.retired: list[int] = []  # numbers that receivers may unmap

    def take(self, size: int, renew: Callable[[], None] = lambda: None) -> Slot:
        """A slot of at least `size` bytes, marked busy; `renew` may free some before one is made."""
        wanted = max(SMALLEST, 1 << (size - 1).bit_length())
        slot = self._free(wanted)
        if slot is None:
            renew()
            slot = self._free(wanted)
        if slot is None:
            self._made += 1
            slot = Slot(self._made, wanted)
            self._slots.append(slot)
            self._trim()
        slot.busy = True
        return slot

    def _free(self, size: int) -> Slot | None:
        return next((slot for slot in self._slots if slot.size == size and not slot.busy), None)

    def _trim(self) -> None:
        free = [slot for slot in self._slots if not slot.busy][:-1]  # the last is about to be used
        kept = sum(slot.size for slot in free)
        for slot in free:
            if kept <= self.max_free_bytes:
                break
            kept -= slot.size
            self._slots.remove(slot)
            self.retired.append(slot.number)


class MappedSlots:
    """A sender's slots as its receiver sees them."""

    def __init__(self) -> None:
        self._blocks: dict[int, memoryview] = {}
        self._views: dict[tuple[int, DecodePlan], list[Any]] = {}  # of what was lent before

    def add(self, number: int, fd: int) -> None:
        """Map a slot; the descriptor is closed."""
        self.unmap(number)
        self._blocks[number] = memoryview(mmap.mmap(fd, os.fstat(fd).st_size))
        os.close(fd)

    def view(self, number: int, meta: bytes) -> Any:  # noqa: ANN401
        """What is described, its arrays being the slot itself: its owner's, who waits for their release.

        Chunks of one shape come again in the same slots, and are then the same views of the same memory.
        """
        plan, numbers = decode_plan(meta)
        views = self._views.get((number, plan))
        if views is None:
            views = plan.views(self._blocks[number])
            if plan.kept:
                if len(self._views) >= KEPT:
                    self._views.clear()
                self._views[(number, plan)] = views
        return plan.build([*numbers, *views])

    def copy(self, number: int, size: int) -> bytearray:
        """The first `size` bytes of a slot, in memory of one's own."""
        return bytearray(self._blocks[number][:size])

    def unmap(self, number: int) -> None:
        """Unmap a slot that will not be used again."""
        self._blocks.pop(number, None)
        self._views = {key: views for key, views in self._views.items() if key[0] != number}


def to_memfd(value: Any) -> int:  # noqa: ANN401
    """A value of any size in anonymous memory; its descriptor can be handed to another process."""
    packed: Packed = pack(value)
    start = _aligned(_META_SIZE + len(packed.meta))
    fd = create_memfd(start + packed.size)
    block = memoryview(mmap.mmap(fd, start + packed.size))
    block[:_META_SIZE] = len(packed.meta).to_bytes(_META_SIZE, "little")
    block[_META_SIZE : _META_SIZE + len(packed.meta)] = packed.meta
    packed.copy_to(address_of(block) + start)
    return fd


def from_memfd(fd: int) -> Any:  # noqa: ANN401
    """What `parcel` was given; its tensors are views of that memory, which lives as long as they do."""
    block = memoryview(mmap.mmap(fd, os.fstat(fd).st_size))
    os.close(fd)
    size = int.from_bytes(block[:_META_SIZE], "little")
    return unpack(block[_META_SIZE : _META_SIZE + size], block[_aligned(_META_SIZE + size) :])


def _aligned(size: int) -> int:
    return -(-size // 64) * 64
