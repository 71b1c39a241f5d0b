"""DistributedGroup: a group whose members are processes that meet through torch.distributed."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore  # where torch.distributed has them from

from troop.core.errors import BadInput
from troop.core.program import GroupRef, Program, leaves
from troop.engines.rpc.codec import address_of, pack
from troop.engines.rpc.decode import unpack

CUDA = re.compile(r"cuda(:\d+)?")
SPIN_S = 0.002  # a member that waits for the others polls without a pause for this long


@dataclass(frozen=True)
class Rendezvous:
    """Where the members of one generation of a group find each other."""

    address: str
    port: int
    prefix: str  # of their keys; no secret, since a client of the store can list all keys
    limit_s: float  # for all members to arrive


class RendezvousServer:
    """The driver's store at which the members of groups find each other, on a port of `address`."""

    def __init__(self, address: str, limit_s: float) -> None:
        listener = socket.create_server((address, 0))
        self.address, self.port, self.limit_s = address, listener.getsockname()[1], limit_s
        self._run, self._generations = secrets.token_hex(8), dict[str, int]()
        self._store = TCPStore(
            address,
            self.port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),  # otherwise it listens on all interfaces
        )

    def rendezvous(self, group: str) -> Rendezvous:
        """Return where the current generation of the group meets."""
        generation = self._generations.get(group, 0)
        return Rendezvous(self.address, self.port, f"{self._run}/{group}/{generation}", self.limit_s)

    def renew(self, group: str) -> None:
        """Begin a new generation of the group, whose members do not meet those of the last one."""
        self._generations[group] = self._generations.get(group, 0) + 1


class GroupError(RuntimeError):
    """A collective failed because another member has died; the engine restarts the group."""


OnWait = Callable[[str, float], None]
"""Called with a reason and a start time while a member waits: pauses for less than a millisecond, and raises
if the member must not wait any longer."""


class DistributedGroup:
    """A member of a process group: gloo for tensors on the CPU, NCCL for those on CUDA devices."""

    def __init__(self, ref: GroupRef, rendezvous: Rendezvous, on_wait: OnWait) -> None:
        self.name, self.rank, self.size = ref.group, ref.rank, ref.size
        # Numbers of pauses: the newest requested of this member, agreed by all, and ended. A new member waits
        # for its start.
        self._requested, self._agreed, self._resumed = 0, 0, -1
        self._on_wait = on_wait
        # Without it gloo may choose an address that other machines, or none, can reach.
        os.environ["GLOO_SOCKET_IFNAME"] = interface_towards(rendezvous.address)
        limit = timedelta(seconds=rendezvous.limit_s)
        server = TCPStore(rendezvous.address, rendezvous.port, is_master=False, timeout=limit)
        self._store = PrefixStore(rendezvous.prefix, server)
        nccl = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if nccl else "gloo",
            store=PrefixStore("backend", self._store),
            rank=self.rank,
            world_size=self.size,
            timeout=limit,
        )

    def all_reduce(self, x: Tensor) -> Tensor:
        """Replace x by its sum over all members; gloo copies one member's sums, so that all are bit-equal."""
        self._wait(dist.all_reduce(x, async_op=True))
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Return the x of all members, by rank."""
        gathered = x.new_empty((self.size, *x.shape))
        self._wait(dist.all_gather(list(gathered.unbind(0)), x.contiguous(), async_op=True))
        return gathered

    def broadcast_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of rank 0; it travels in the format of the RPC layer, which executes nothing."""
        packed = pack(state)
        sizes = torch.tensor([len(packed.meta), packed.size])
        self._wait(dist.broadcast(sizes, 0, async_op=True))
        meta, payload = (bytearray(size) for size in sizes.tolist())
        if self.rank == 0:
            meta[:] = packed.meta
            if payload:
                packed.copy_to(address_of(payload))
        for block in (meta, payload):
            if block:
                self._wait(dist.broadcast(torch.frombuffer(block, dtype=torch.uint8), 0, async_op=True))
        if self.rank == 0:
            return state
        received: dict[str, Any] = unpack(meta, payload)
        return received

    @property
    def paused(self) -> bool:
        """Whether the members have agreed to a pause that has not ended: none of them begins a round."""
        return self._agreed > self._resumed

    @property
    def pause_requested(self) -> bool:
        """Whether the driver wants a pause to which the members have not agreed yet."""
        return self._requested > max(self._agreed, self._resumed)

    def end_round(self) -> None:
        """Agree to the newest pause that the driver has requested from any member."""
        self._agreed = int(self.all_gather(torch.tensor(self._requested)).max())

    def request_pause(self, number: int) -> None:
        """Let the members pause after their current round."""
        self._requested = number

    def resume(self, number: int) -> None:
        """End the pauses up to `number`, also those to which the members have not agreed yet."""
        self._requested = self._resumed = number

    def add_finished(self, number: int) -> None:
        """Increment the counter of the rollout in the store."""
        self._store.add(f"finished/{number}", 1)
        if self.rank == 0 and number:
            self._store.delete_key(f"finished/{number - 1}")

    def count_finished(self, number: int) -> int:
        """Read the counter of the rollout in the store."""
        return int(self._store.add(f"finished/{number}", 0))

    def _wait(self, work: Any) -> None:  # noqa: ANN401
        """Wait for a collective; send heartbeats meanwhile."""
        began = time.perf_counter()
        while not work.is_completed():
            if time.perf_counter() - began > SPIN_S:
                self._on_wait(f"the other members of {self.name}", began)
        try:
            work.wait()
        except RuntimeError as error:
            raise GroupError(f"another member of {self.name} left it: {error}") from None

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()


def interface_towards(address: str) -> str:
    """Return the network interface through which this machine reaches `address`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == own for entry in addresses):
            return str(name)
    return ""


def check_devices(program: Program) -> None:
    """Raise BadInput if two members of a group on this machine have the same CUDA device: NCCL refuses that.

    The devices of a member are those in its build. On Ray each member sees only its own GPUs, from cuda:0 on.
    """
    owners: dict[tuple[str, int], str] = {}
    for name, node in program.nodes.items():
        ref = node.group_ref
        if ref is None or ref.size == 1:
            continue
        for device in sorted({x for x in leaves(node.build) if isinstance(x, str) and CUDA.fullmatch(x)}):
            number = torch.device(device).index or 0
            if (other := owners.setdefault((ref.group, number), name)) != name:
                raise BadInput(
                    f"{other} and {name} are both on cuda:{number}, but the members of a group need a CUDA "
                    f"device each; use --system.devices {_example(program, ref.group)}, or fewer of them "
                    f"(torch sees {torch.cuda.device_count()} CUDA devices)."
                )


def _example(program: Program, group: str) -> str:
    """Return devices for the members of a group, at most eight, as --system.devices takes them."""
    refs = {name: node.group_ref for name, node in program.nodes.items()}
    members = [name for name, ref in refs.items() if ref is not None and ref.group == group]
    entries = [f"{name}=cuda:{number}" for number, name in enumerate(members[:8])]
    return ",".join(entries + ["..."] * (len(members) > 8))
