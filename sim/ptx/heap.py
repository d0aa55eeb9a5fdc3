"""The device heap: `malloc` and `free`, and also `new` and `delete`, which compile to calls of `malloc` and
`free`.

Each allocation (a `Piece`) has an address range that is never reused, followed by guard bytes. An access
beyond the end of an allocation, or after `free`, therefore never reaches another allocation.

An allocation that has not been freed at the end of its launch persists if its address is in a `__device__`
variable, an argument, or another reachable allocation. Otherwise, it is reported as a leak. An allocation
whose address was in an argument of an earlier launch persists until it is freed, because that argument may
still contain the address.

Source: CUDA C++ Programming Guide, "Dynamic Global Memory Allocation and Operations".
"""

import re
from bisect import bisect_right
from collections import Counter, deque

import numpy as np

from sim.errors import LaunchError
from sim.events import ADDRESS_BITS, GLOBAL, SITE_SHIFT, SITES, SPACE_SHIFT, Finding
from sim.memory.spaces import Allocation, fresh_memory, round_up
from sim.ptx.heap_state import BASE, END, GUARD, HEAPS, UNIT, HeapSnapshot
from sim.ptx.origin import ITEMSIZES
from sim.ptx.regions import Region

FUNCTIONS = {"malloc": "malloc", "_Znwm": "malloc", "_Znam": "malloc"}  # PTX name -> method of Heap
FUNCTIONS |= dict.fromkeys(("free", "_ZdlPv", "_ZdaPv"), "free")
FUNCTIONS |= dict.fromkeys(("_ZdlPvm", "_ZdaPvm"), "free_sized")
MAX_STALE_BYTES = 1 << 26  # the maximum number of bytes of freed memory that keep their values
MAX_FREED_PIECES = 1 << 10  # the maximum number of freed allocations remembered for later launches
MAX_LOGGED_BYTES = 1 << 16  # the maximum number of bytes logged as stores when an allocation is freed
LOG_SHIFT = 4  # log2 of the bytes per logged store; freeing an allocation is logged as such stores
# Findings that end threads early. Memory not freed by these threads is not reported as a leak.
STOPPED = {"deadlock", "no-progress", "undecided", "barrier-divergence", "warp-divergence"}
# A source line that allocates memory. The groups are the variable, the type of a cast before malloc, and the
# type after new.
SOURCE = re.compile(
    r"(?:(\w+)\s*=\s*)?(?:\(\s*([\w ]+?)\s*\*\s*\)\s*malloc\b|new\s+(?:\([^)]*\)\s*)?(\w+)|malloc\b)"
)


class Piece(Region):
    """One heap allocation.

    site: the site that allocated it.
    freed: the Access that freed it, or None.
    suspects: reads of unwritten bytes, as (thread, epoch of the thread's block, address, size, Access).
    """

    __slots__ = ("freed", "nbytes", "site", "suspects")

    def __init__(self, allocation, site):
        super().__init__(allocation, allocation.root)
        self.nbytes, self.site, self.freed = allocation.root.size, site, None
        self.written, self.suspects = np.zeros(self.nbytes, bool), []

    def last(self, size):
        """Return -1, so that every access is checked: the allocation may have been freed."""
        return -1

    def copy(self):
        """Return a copy for another launch. A freed allocation keeps only its address range, to detect
        uses after free."""
        old = self.allocation
        root = np.broadcast_to(np.uint8(0), self.nbytes) if self.freed else old.root.copy()
        piece = Piece(Allocation(old.name, old.space, root, old.base, old.home), self.site)
        piece.written = None if self.freed else self.written.copy()
        piece.allocation.alignment, piece.freed = UNIT, self.freed
        return piece


class Heap:
    """The heap during one run of a launch."""

    def __init__(self, run, state):
        self.run, self.context, self.memory, self.state = run, run.context, run.memory, state
        self.start = state.at_start(run.launch)
        self.pieces = {}  # address -> Piece
        self.used, self.next, self.failed_allocations = 0, self.start.next, 0
        self.freed, self.stale = deque(), 0
        for piece in self.start.pieces:
            self.add(piece.copy())

    def add(self, piece):
        """Make an allocation addressable by the kernel."""
        self.pieces[piece.base] = piece
        self.used += 0 if piece.freed else round_up(piece.nbytes, UNIT)
        self.context.space.allocations.append(piece.allocation)
        at = bisect_right(self.memory.bases, piece.base)
        self.memory.bases.insert(at, piece.base)
        self.memory.fixed.insert(at, piece)

    # --- functions called by kernels ------------------------------------------------------------------------

    def malloc(self, site, nbytes):
        """Return the address of `nbytes` new bytes, or 0 if the heap is full."""
        if self.used + round_up(nbytes, UNIT) > self.context.spec.heap_bytes:
            self.failed_allocations += 1
            return 0
        base = self.next
        self.next = base + round_up(nbytes, UNIT) + GUARD
        # Addresses are never reused, so a long launch can exhaust the addresses although the heap is not
        # full.
        if self.next > self.start.end or self.context.space.next["global"] > BASE:
            raise LaunchError("no simulated addresses are left for the heap of this launch")
        name, itemsize = describe_piece(SITES[site], nbytes)
        home = 0, itemsize, (max(nbytes // itemsize, 1),), (itemsize,)
        root = fresh_memory(nbytes, None, self.context.poison)
        allocation = Allocation(name, "heap", root, base, home)
        allocation.alignment = UNIT
        self.add(Piece(allocation, site))
        return base

    def free(self, site, address):
        """Free the allocation at an address. Ignore a null pointer, and report an invalid pointer."""
        if address == 0:
            return
        # Only an address that malloc returned can be freed, not another address inside the allocation.
        piece = self.pieces.get(address)
        if piece is None or piece.freed:
            self.context.findings.append(self.invalid_free_finding(piece, site, address))
            return
        self.log_stores(piece, site)
        piece.freed = self.context.witness("freed", site)
        self.used -= round_up(piece.nbytes, UNIT)
        self.retire(piece)

    def retire(self, piece):
        """Keep the bytes of a freed allocation for some time, as a GPU does. Drop the oldest bytes if
        there are too many."""
        self.freed.append(piece)
        self.stale += piece.nbytes
        while self.stale > MAX_STALE_BYTES:
            old = self.freed.popleft()
            self.stale -= old.nbytes
            # All elements of this view are one byte, so it takes no memory.
            old.allocation.root = old.root = np.broadcast_to(np.uint8(0), old.nbytes)
            old.views, old.written = {}, None

    def free_sized(self, site, address, nbytes):
        """Free an allocation for the sized form of `operator delete`. The size is ignored."""
        self.free(site, address)

    def log_stores(self, piece, site):
        """Log the freeing as a store to the allocation, so that it races with unordered accesses. Log only
        the beginning of a large allocation."""
        if self.context.log is None:
            return
        end = piece.base + min(piece.nbytes, MAX_LOGGED_BYTES)
        # One log entry covers 16 bytes. The bytes after the last full entry are logged one by one.
        rest = end - (end - piece.base) % UNIT
        self.context.log.extend(
            [(site << SITE_SHIFT) + (LOG_SHIFT << ADDRESS_BITS) + at for at in range(piece.base, rest, UNIT)]
        )
        self.context.log.extend([(site << SITE_SHIFT) + at for at in range(rest, end)])
        self.context.values.extend([None] * ((rest - piece.base) // UNIT + end - rest))

    # --- accesses -------------------------------------------------------------------------------------------

    def find_elsewhere(self, address):
        """Return whether an address is in an allocation of another module."""
        others = (state.after.pieces for state in list(HEAPS) if state is not self.state)
        return any(piece.base <= address < piece.end for pieces in others for piece in pieces)

    def check_access(self, piece, address, size, site, what):
        """Return whether an access is allowed, and record the bytes that it writes."""
        if piece.freed:
            self.context.findings.append(self.use_after_free_finding(piece, address, site, what))
            return piece.written is not None
        begin = address - piece.base
        written = piece.written[begin : begin + size]
        thread = self.context.thread
        # An atomic reads the element, unless its new value is independent of the old one.
        reads = what == "read" or what == "changed" and site not in self.context.overwriting
        if reads and not written.all():
            access = self.context.witness(what, site)
            piece.suspects.append((thread, thread.block.epoch, address, size, access))
        if what != "read":
            written[:] = True
            if piece.suspects:
                piece.suspects = [s for s in piece.suspects if not is_race(s, thread, address, size)]
        return True

    # --- findings -------------------------------------------------------------------------------------------

    def use_after_free_finding(self, piece, address, site, what):
        """Return the finding for an access to freed memory."""
        element = self.context.space.element(address)
        return Finding(
            "use-after-free",
            "error",
            f"{element} is {what} after it was freed",
            (self.context.witness(what, site), piece.freed),
            *element,
            reason="A later malloc may already have returned this memory.",
            fix="free it after the last access, and after a cuda.syncthreads() if other threads of the block"
            " use it",
        )

    def invalid_free_finding(self, piece, site, address):
        """Return the finding for a pointer that cannot be freed."""
        here = self.context.witness("freed", site)
        if piece is not None:
            return Finding(
                "double-free",
                "error",
                f"{piece.allocation.name} is freed twice",
                (here, piece.freed),
                piece.allocation.name,
                reason="A later malloc may already have returned this memory, and the second free frees it.",
                fix="let one thread free it, once; and set pointers to it to nullptr",
            )
        region = self.memory.find(address)
        where = "which is in no array"
        if isinstance(region, Piece):
            where = f"which is {address - region.base} bytes after the start of {region.allocation.name}"
        elif region is not None:
            where = f"which is in {region.allocation.name} and was not returned by malloc"
        return Finding(
            "invalid-free",
            "error",
            f"free gets the address {address:#x}, {where}",
            (here,),
            reason="free takes only a pointer that malloc has returned.",
            fix="keep the pointer that malloc returned, and pass it to free",
        )

    def finish(self, context):
        """Keep the allocations that are reachable at the end of a run. Return one finding for each site
        whose allocations leak."""
        # A read is reported only now, because a racing store by another thread can turn it into a race
        # instead.
        for piece in self.pieces.values():
            for _, _, address, _, access in piece.suspects:
                context.announce("unwritten", access, address)
        live = [piece for piece in self.pieces.values() if not piece.freed]
        fixed = [
            a for a in context.space.allocations if a.base >> SPACE_SHIFT == GLOBAL and a.space == "global"
        ]
        held = [piece for piece in live if piece.base in self.start.from_arguments]
        reached = reachable_pieces(live, [a.root for a in fixed], held)
        arguments = reachable_pieces(live, [a.root for a in fixed if a.keep is not None])
        freed = [piece for piece in self.pieces.values() if piece.freed]
        left = HeapSnapshot(
            [*freed[-MAX_FREED_PIECES:], *reached],
            self.start.from_arguments | {p.base for p in arguments},
            self.next,
        )
        self.state.run_ended(self.run.launch, left)
        kept = set(map(id, reached))
        lost = [piece for piece in live if id(piece) not in kept]
        ended_early = context.ended_early or any(f.kind in STOPPED for f in context.findings)
        if ended_early or not context.listeners["access_refused"]:
            return []
        count, nbytes = Counter(p.site for p in lost), Counter()
        for piece in lost:
            nbytes[piece.site] += piece.nbytes
        first = {piece.site: piece for piece in reversed(lost)}
        return [self.leak_finding(first[site], times, nbytes[site]) for site, times in count.items()]

    def leak_finding(self, piece, times, nbytes):
        """Return the finding for a site that leaks memory.

        piece: one of the leaked allocations.
        times: the number of allocations.
        nbytes: their total size.
        """
        site = SITES[piece.site]
        what = f"{times:,} allocations, {nbytes:,} bytes, are" if times > 1 else f"{nbytes:,} bytes are"
        return Finding(
            "leak",
            "warning",
            f"{what} never freed: {site.function} line {site.line}  {site.source}",
            (),
            piece.allocation.name,
            reason="The launch has ended, and no __device__ variable, argument or reachable memory contains"
            f" the address. The heap has {self.context.spec.heap_bytes:,} bytes for all launches.",
            fix="free it, or keep its address in a __device__ variable for a later launch",
        )


def reachable_pieces(live, roots, held=()):
    """Return the allocations whose address is stored in memory, directly or in another reachable allocation.

    live: the allocations to consider.
    roots: the memory to search, as byte arrays.
    held: allocations that count as reachable without the search.
    """
    if not live:
        return []
    by_base, found = {piece.base: piece for piece in live}, {piece.base: piece for piece in held}
    bases, waiting = np.array(sorted(by_base), np.uint64), [*roots, *(piece.root for piece in held)]
    while waiting:
        root = waiting.pop()
        # The search is conservative: 8 aligned bytes count as a pointer to an allocation if their value is an
        # address within it.
        words = np.frombuffer(root.tobytes()[: root.size // 8 * 8], np.uint64)
        words = words[(words >= BASE) & (words < END)]
        at = np.searchsorted(bases, words, side="right") - 1
        for base in {int(bases[i]) for i in at.tolist() if i >= 0}:
            piece = by_base[base]
            inside = bool(((words >= base) & (words <= piece.end)).any())
            if inside and base not in found:
                found[base] = piece
                waiting.append(piece.root)
    return list(found.values())


def is_race(suspect, thread, address, size):
    """Return whether a store races with an earlier read of unwritten memory.

    They race if another thread performed the read and no barrier of the block separates them. In that case,
    the race is reported instead of the read.
    """
    reader, epoch, begin, nbytes, _ = suspect
    together = begin < address + size and address < begin + nbytes
    behind = reader.block is thread.block and thread.block.epoch > epoch
    return together and reader is not thread and not behind


def describe_piece(site, nbytes):
    """Return (name, bytes per element) of an allocation, according to the source line that allocates it."""
    found = SOURCE.search(site.source)
    name = (found and found[1]) or "heap memory"
    words = ((found and (found[2] or found[3])) or "").split()
    itemsize = next((ITEMSIZES[word] for word in reversed(words) if word in ITEMSIZES), 1)
    return name, itemsize if nbytes % itemsize == 0 else 1
