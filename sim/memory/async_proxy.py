"""Operations of the async proxy: bulk copies (TMA) and wgmma. Each operation has an issue, and an end that
threads observe by a wait.

An operation accesses memory at an unspecified time between its issue and its end. The simulator reads the
sources at the issue, and writes the data when a thread observes the end, which is the latest time that the
hardware allows. The log records all accesses at the time of the issue, in a segment of their own. Observers
receive both events.

Source: PTX ISA 9.7.9.25.2, "Async Proxy"; 9.7.13.15.5, "Tracking asynchronous operations by the mbarrier
object"; 8.9.5, "Causality order".
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from sim.events import ADDRESS_BITS, SITE_SHIFT, AsyncOperation, Finding, Moment, index_text
from sim.isa.invalid import InvalidOperand
from sim.isa.tensor_map import NBYTES
from sim.memory.tensor_map import Located, Tile
from sim.nouns import joined, plural

PIECE = 16  # an operation is logged as aligned accesses of at most this many bytes each


def issue_async(context, kind, reads, writes, load_site, store_site, **more):
    """Log the accesses of an operation that the current thread issues, report it to the observers, and return
    the AsyncOperation.

    reads: (address, number of bytes) pairs.
    writes: (address, the written bytes) pairs. The bytes are a uint8 array, or None if they are unknown.
    more: the fields `through`, `barrier` and `doubts` of the AsyncOperation, and `element` as for
        AsyncProxyMemory.issue.
    """
    thread = context.thread
    context.begin_segment(thread)
    position, element = context.logged + len(context.log or ()), more.pop("element", PIECE)
    for address, size in reads:
        log_range(context, address, size, load_site, None, PIECE)
    for address, data in writes:
        log_range(context, address, len(data), store_site, data, element)
    issued = Moment(thread.block.index, thread.block.epoch, thread.linear, context.last_segment)
    context.async_segments.add(context.last_segment)
    operation = AsyncOperation(
        kind,
        site=store_site if writes else load_site,
        reads=tuple(reads),
        writes=tuple((address, len(data)) for address, data in writes),
        issued=issued,
        position=position,
        **{"through": "wgmma", **more},
    )
    context.announce("async_issued", operation)
    context.begin_segment(thread)
    return operation


def finish_async(context, operations, sources=False):
    """Report to the observers that the current thread has waited for asynchronous operations.

    sources: whether the thread has only waited until the operations have read their sources
        (wait_group.read).
    """
    if operations:
        context.announce_ordering("async_done", list(operations), sources)


def log_range(context, address, size, site, data, most):
    """Log an access to adjacent bytes as aligned accesses of at most `most` bytes each.

    data: the written bytes, or None for a read.
    """
    if context.log is None:
        return
    if address % most == size % most == 0:
        first = (site << SITE_SHIFT) + (most.bit_length() - 1 << ADDRESS_BITS) + address
        context.log.frombytes((first + np.arange(0, size, most, dtype=np.int64)).tobytes())
        if data is not None:
            text = bytes(data)
            context.values.extend(text[at : at + most] for at in range(0, size, most))
        return
    at = 0
    while at < size:
        part = min(most, (address + at) & -(address + at), 1 << (size - at).bit_length() - 1)
        context.log.append((site << SITE_SHIFT) + (part.bit_length() - 1 << ADDRESS_BITS) + address + at)
        if data is not None:
            context.values.append(bytes(data[at : at + part]))
        at += part


class Spot(NamedTuple):
    """Adjacent bytes: their address (None if the access was refused) and the memory itself (uint8)."""

    address: int | None
    memory: np.ndarray


class Target:
    """Bytes that an operation writes when it is complete: the memory and the data. For a reduction, also the
    function (old, data) that combines the old bytes with the data."""

    __slots__ = ("address", "memory", "data", "combine")

    def __init__(self, spot, data, combine=None):
        self.address, self.memory, self.data, self.combine = spot.address, spot.memory, data, combine

    def arrive(self):
        self.memory[:] = self.data if self.combine is None else self.combine(self.memory, self.data)


class Pending:
    """An operation whose end no thread has observed yet.

    nbytes: the bytes that an mbarrier counts.
    """

    def __init__(self, context, operation, targets, nbytes, barrier):
        self.context, self.operation, self.targets = context, operation, targets
        self.nbytes, self.barrier = nbytes, barrier
        self.witness = context.witness("sent", operation.site)

    def arrive(self):
        """Write the data, unless they have already been written."""
        targets, self.targets = self.targets, ()
        for target in targets:
            target.arrive()

    def finish(self, phase):
        """End the operation. An mbarrier counts its bytes in the given phase."""
        self.arrive()
        where = "mbarrier", self.barrier.address, self.barrier.block
        self.context.announce("async_tracked", self.operation, (where, phase))

    def report_early(self, barrier, phase, expected, brought):
        """Report that this operation completes a phase of an mbarrier that counts further operations.

        expected, brought: the values of sim.isa.mbarrier.Barrier for the phase.
        """
        element = self.context.space.element(barrier.address)
        parts = [*brought, *((pending.witness, pending.nbytes) for pending in barrier.bulk)]
        total = sum(size for _, size in parts)
        self.context.early_barriers.add((barrier.block, barrier.address))
        wanted = sum(size for _, size in expected)
        copies = dict.fromkeys(pending.witness for pending in (self, *barrier.bulk))
        # If blocks send different numbers of bytes, these bytes may belong to different phases, so their sum
        # is not the total of one phase.
        shares = Counter()
        for sender, size in parts:
            shares[sender.block] += size
        number = f", {bytes_by_block(parts)}," if len(set(shares.values())) == 1 else ""
        self.context.findings.append(
            Finding(
                "async-copy",
                "error",
                f"phase {phase} of the mbarrier {element} expects {plural(wanted, 'byte')} but its copies"
                f" deliver {total:,}: it is complete before all of them have arrived",
                (*(witness for witness, _ in expected[:1]), *copies),
                *element,
                reason="A phase is complete once the expected number of bytes has arrived, whichever copy"
                " delivers them.",
                fix=f"expect the bytes of all copies of the phase{number} or wait for the phase before the"
                " next copy",
            )
        )


class AsyncProxyMemory:
    """The part of sim.memory.transfer.Memory for operations of the async proxy."""

    def issue(self, kind, sources, targets, through, barrier=None, element=PIECE, nbytes=None):
        """Start an operation of the async proxy.

        sources: the Spots that it reads.
        targets: the Targets that it writes. A refused target has the address None.
        through: see AsyncOperation.
        barrier: the mbarrier that counts its bytes (sim.isa.mbarrier.Barrier), or None.
        element: the number of bytes of an element for a reduction, whose accesses are atomic.
        nbytes: the bytes that the mbarrier counts. By default, these are all bytes of the targets.
        """
        context = self.context
        nbytes = sum(len(target.data) for target in targets) if nbytes is None else nbytes
        if any(spot.address is None for spot in (*sources, *targets)):
            # The copy has already been reported. Count its bytes as arrived, so that no thread waits for them
            # forever.
            if barrier is not None:
                barrier.count_bytes(nbytes, self.witness("sent"))
            return None
        reads = merged((spot.address, len(spot.memory)) for spot in sources)
        reduces = any(target.combine for target in targets)
        operation = issue_async(
            context,
            kind,
            reads,
            [(target.address, target.data) for target in targets],
            self.site("load"),
            self.site("atomic" if reduces else "store"),
            through=through,
            barrier=barrier and barrier.address,
            element=element,
        )
        pending = Pending(context, operation, targets, nbytes, barrier)
        context.thread.block.in_flight.append(pending)
        if barrier is not None:
            barrier.suppliers[context.thread] = barrier.phase
            barrier.bulk.append(pending)
        else:
            context.thread.async_sent.append(pending)
        return pending

    def bulk_spot(self, where, index, size, multiple, action):
        """Return the Spot of a bulk copy's source or target. If the access is refused, its address is None
        and its memory is poison."""
        what = {"load": "read", "store": "written", "atomic": "changed"}[action]
        spot = self.range_spot(where, index, size, multiple, self.site(action), what)
        return spot or Spot(None, np.full(size, 0xFF, np.uint8))

    def range_spot(self, where, index, size, multiple, site, what):
        """Return the Spot of `size` bytes, which can extend over several rows of an array, or None."""
        return self.spot(where, index, size, multiple, site, what)

    def tensor_map(self, where, index, coordinates):
        """Return the Located tensor map at a location. Raise InvalidOperand if the numbers of dimensions of
        the map and of the instruction differ."""
        spot = self.range_spot(where, index, NBYTES, 64, self.site("load"), "read")
        if spot is None:
            raise InvalidOperand(
                f"{self.name} needs the address of a tensor map, but got an address without {NBYTES} bytes",
                f"A tensor map has {NBYTES} bytes at a multiple of 64.",
                "pass the map as a __grid_constant__ parameter, and give its address to the copy",
            )
        raw = spot.memory.tobytes()
        if raw not in self.context.tensor_maps:
            self.context.tensor_maps[raw] = Located(raw, self.context.space)
        located = self.context.tensor_maps[raw]
        dimensions = len(located.map.sizes)
        if dimensions != len(coordinates):
            raise InvalidOperand(
                f"{self.name} gives {plural(len(coordinates), 'coordinate')}, but its tensor map has"
                f" {plural(dimensions, 'dimension')}",
                "A copy gives one coordinate for each dimension of the map, the innermost first.",
                f"use the form .{dimensions}d with {plural(dimensions, 'coordinate')}, or make the map of an"
                f" array with {plural(len(coordinates), 'dimension')}",
            )
        self.check_column(located.map, coordinates)
        return located

    def check_column(self, kind, coordinates):
        """Report a box whose first column does not start at a multiple of 16 bytes."""
        begin = coordinates[0] * kind.itemsize
        if begin % PIECE == 0:
            return
        self.context.findings.append(
            Finding(
                "misaligned-address",
                "error",
                f"{self.name} begins {begin} bytes into the rows of a tensor, which is not a multiple of"
                f" {PIECE}",
                (self.witness("sent"),),
                reason="The GPU stops with an illegal instruction (measured on an H100).",
                fix=f"let the first coordinate be a multiple of {PIECE // kind.itemsize}",
            )
        )

    def tensor_spot(self, located, address, size, action):
        """Return the Spot of adjacent bytes of a tensor, which must lie inside its allocation."""
        begin, root = address - located.allocation.base, located.allocation.root
        if not 0 <= begin <= root.size - size:
            raise InvalidOperand(
                f"{self.name} accesses byte {begin:,} of {located.allocation.name}, which has"
                f" {root.size:,} bytes",
                "The tensor map describes more than the array, so its bounds do not protect this access.",
                "make the map with the sizes and strides of the array",
            )
        return Spot(address, root[begin : begin + size])

    def note_tile(self, address, kind, operation):
        """Record which tensor copy wrote a tile of shared memory last. Later checks read the tile's layout
        from it."""
        home, local = self.context.thread.block.home(address)
        pitch = kind.swizzle or kind.counts[0] * kind.itemsize
        home.tiles[local] = Tile(operation, local, kind.room, pitch, kind.swizzle, len(kind.counts) < 3)

    def target(self, spot, data, combine=None):
        return Target(spot, data, combine)

    def check_bulk_size(self, size, multiple, barrier=None):
        """Return whether the size of a bulk copy is a positive multiple of `multiple` bytes. Report any other
        size."""
        if size > 0 and size % multiple == 0:
            return True
        self.context.findings.append(
            Finding(
                "misaligned-address",
                "error",
                f"{self.name} copies {size} bytes, but the size of a bulk copy must be a positive multiple of"
                f" {multiple}",
                (self.witness("sent"),),
                reason="The behaviour of such a copy is undefined.",
                fix=f"round the size up to a multiple of {multiple}, and let both buffers have room for it",
            )
        )
        # Count the bytes as arrived, so that no thread waits for them forever.
        if barrier is not None:
            barrier.count_bytes(size, self.witness("sent"))
        return False

    def commit_bulk(self):
        """Commit all bulk operations since the last commit to a new bulk async-group."""
        thread = self.context.thread
        thread.async_groups.append(thread.async_sent)
        thread.async_sent = []

    def wait_bulk(self, groups, sources):
        """Wait until at most the newest `groups` bulk async-groups of the thread are pending.

        sources: whether to wait only until the operations have read their sources.
        """
        thread = self.context.thread
        over = thread.async_groups[: max(len(thread.async_groups) - groups, 0)]
        pending = [one for group in over for one in group]
        if not sources:
            thread.async_groups = thread.async_groups[len(over) :]
            for one in pending:
                one.arrive()
        finish_async(self.context, [one.operation for one in pending], sources)

    def witness(self, what):
        """Return the Access of the current thread at this instruction."""
        return self.context.witness(what, self.site("atomic"))

    def fence_proxy(self, spaces):
        """Order accesses of the generic proxy before the fence and accesses of the async proxy after it.

        spaces: the numbers of the state spaces.
        """
        self.context.announce_ordering("proxy_fenced", spaces)


def bytes_of_phase(barrier):
    """Return text about the number of bytes that copies deliver to an mbarrier per phase, and about their
    senders."""
    phases = max(barrier.expecting, 1)
    if any(nbytes % phases for nbytes in barrier.brought_by.values()):
        return bytes_by_block(barrier.brought)
    return bytes_by_block((block, nbytes // phases) for block, nbytes in barrier.brought_by.items())


def bytes_by_block(parts):
    """Return the total number of bytes as text. If several blocks send bytes, name the number for each block.

    parts: (index of a block, or an Access of its threads; number of bytes).
    """
    sent = Counter()
    for sender, nbytes in parts:
        sent[getattr(sender, "block", sender)] += nbytes
    texts = [
        f"{sent[block]:,} from block {index_text(block)}" for block in sorted(sent, key=lambda b: b[::-1])
    ]
    return f"{sum(sent.values()):,} ({joined(texts)})" if len(texts) > 1 else f"{sum(sent.values()):,}"


def merged(ranges):
    """Return (address, size) ranges in which adjacent ranges are joined."""
    joined = []
    for address, size in ranges:
        if joined and joined[-1][0] + joined[-1][1] == address:
            joined[-1] = joined[-1][0], joined[-1][1] + size
        else:
            joined.append((address, size))
    return joined
