"""Shared memory without names: every block is a memfd, which the kernel frees with its last holder."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

from troop.engines.rpc.codec import Packed, address_of, pack
from troop.engines.rpc.decode import DecodePlan, decode_plan, unpack

MIN_SLOT_BYTES = 1 << 16
MAX_BUSY_SLOTS = 256  # of one client: each is an open file, and a process may have some thousand of them
MAX_FREE_SLOTS = 32  # kept by one sender
MAX_CACHED_VIEWS = 256  # messages whose views a receiver caches
# Words of FlowCounters.
SENT, SENT_BYTES, HANDLED, HANDLED_BYTES, CLIENT_WAITING, REPLY_COPIED, DECODED = range(7)
_META_SIZE = 8


def create_memfd(size: int) -> int:
    """Return the file descriptor of `size` bytes of anonymous memory."""
    fd = os.memfd_create("troop", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


class FlowCounters:
    """Seven counters in memory that client and server of an edge share; each has one writer.

    The client writes SENT (number of the newest message), SENT_BYTES (total), CLIENT_WAITING (1 while it is
    blocked by a full mailbox) and REPLY_COPIED (number of the newest reply it has copied). The server writes
    DECODED (number of the newest message it has decoded), HANDLED (number of the newest message whose memory
    is free again) and HANDLED_BYTES (total). Each counter is an aligned 64-bit word, so reads never see a
    partial write.
    """

    SIZE = 64

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, self.SIZE)
        os.close(fd)
        self.words = memoryview(self._map).cast("Q")

    def unhandled_messages(self) -> int:
        """Return the number of messages sent and not yet handled."""
        return max(0, self.words[SENT] - self.words[HANDLED])

    def unhandled_bytes(self) -> int:
        """Return the number of bytes sent and not yet handled."""
        return max(0, self.words[SENT_BYTES] - self.words[HANDLED_BYTES])


class Slot:
    """A block of shared memory that its sender fills with the arrays of one message after another."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size
        self.fd = create_memfd(size)
        self.block = memoryview(mmap.mmap(self.fd, size))
        self.address = address_of(self.block)
        self.busy = False

    def __del__(self) -> None:
        os.close(self.fd)


class SlotPool:
    """The slots of one sender. Sizes are powers of two, so messages of one shape reuse the same slots."""

    def __init__(self, max_free_bytes: int) -> None:
        self.max_free_bytes = max_free_bytes  # more free memory than this is given back
        self.retired: list[int] = []  # numbers of removed slots that receivers may unmap
        self._slots: list[Slot] = []
        self._created = 0

    def acquire(self, size: int, release_finished: Callable[[], None] = lambda: None) -> Slot:
        """Return a busy slot of at least `size` bytes.

        If none is free, `release_finished` is called to free some before a new slot is created.
        """
        slot_size = max(MIN_SLOT_BYTES, 1 << (size - 1).bit_length())
        slot = self._free_slot(slot_size)
        if slot is None:
            release_finished()
            slot = self._free_slot(slot_size)
        if slot is None:
            self._created += 1
            slot = Slot(self._created, slot_size)
            self._slots.append(slot)
            self._trim()
        slot.busy = True
        return slot

    @property
    def exhausted(self) -> bool:
        """Whether MAX_BUSY_SLOTS are busy; only a sender that checks it is limited."""
        return len(self._slots) >= MAX_BUSY_SLOTS and sum(x.busy for x in self._slots) >= MAX_BUSY_SLOTS

    def _free_slot(self, size: int) -> Slot | None:
        return next((slot for slot in self._slots if slot.size == size and not slot.busy), None)

    def _trim(self) -> None:
        free = [slot for slot in self._slots if not slot.busy][:-1]  # the last one is about to be used
        free_bytes, free_slots = sum(slot.size for slot in free), len(free)
        for slot in free:
            if free_bytes <= self.max_free_bytes and free_slots <= MAX_FREE_SLOTS:
                break
            free_bytes, free_slots = free_bytes - slot.size, free_slots - 1
            self._slots.remove(slot)
            self.retired.append(slot.number)


class MappedSlots:
    """The slots of a sender as mapped by a receiver."""

    def __init__(self) -> None:
        self._blocks: dict[int, memoryview] = {}
        self._views: dict[tuple[int, DecodePlan], list[Any]] = {}

    def map(self, number: int, fd: int) -> None:
        """Map a slot and close its file descriptor."""
        self.unmap(number)
        self._blocks[number] = memoryview(mmap.mmap(fd, os.fstat(fd).st_size))
        os.close(fd)

    def view(self, number: int, meta: bytes) -> Any:  # noqa: ANN401
        """Return the described value with arrays that are views of the slot.

        The sender must not reuse the slot until the receiver is done. The views are cached by slot and plan,
        since messages of one shape arrive in the same slots again.
        """
        plan, numbers = decode_plan(meta)
        views = self._views.get((number, plan))
        if views is None:
            views = plan.views(self._blocks[number])
            if plan.cached:
                if len(self._views) >= MAX_CACHED_VIEWS:
                    self._views.clear()
                self._views[(number, plan)] = views
        return plan.build([*numbers, *views])

    def copy(self, number: int, size: int) -> bytearray:
        """Return a copy of the first `size` bytes of a slot."""
        return bytearray(self._blocks[number][:size])

    def unmap(self, number: int) -> None:
        """Unmap a slot and drop its views."""
        self._blocks.pop(number, None)
        self._views = {key: views for key, views in self._views.items() if key[0] != number}


def to_memfd(value: Any) -> int:  # noqa: ANN401
    """Encode a value of any size into a new memfd and return its file descriptor."""
    packed: Packed = pack(value)
    start = _cache_line_offset(_META_SIZE + len(packed.meta))
    fd = create_memfd(start + packed.size)
    block = memoryview(mmap.mmap(fd, start + packed.size))
    block[:_META_SIZE] = len(packed.meta).to_bytes(_META_SIZE, "little")
    block[_META_SIZE : _META_SIZE + len(packed.meta)] = packed.meta
    packed.copy_to(address_of(block) + start)
    return fd


def from_memfd(fd: int) -> Any:  # noqa: ANN401
    """Decode the result of `to_memfd` and close the file descriptor.

    Arrays are views of the mapped memory, which stays mapped as long as one of them exists.
    """
    block = memoryview(mmap.mmap(fd, os.fstat(fd).st_size))
    os.close(fd)
    size = int.from_bytes(block[:_META_SIZE], "little")
    return unpack(block[_META_SIZE : _META_SIZE + size], block[_cache_line_offset(_META_SIZE + size) :])


def _cache_line_offset(size: int) -> int:
    return -(-size // 64) * 64
