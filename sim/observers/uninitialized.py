"""uninitialized: loads of bytes never written, in shared memory, local memory and arrays from `sim.empty`.

In local memory, only stores by the current thread count. In other memory, a load is uninitialized if no
earlier epoch wrote the byte, the thread itself has not written it before, and no other thread writes it in
the same epoch. A write by another thread does not count if it is ordered after the load. An unordered write
is reported as a race. The findings therefore do not depend on the schedule.

An atomic other than exch also loads the element that it changes. Atomics by other threads in the same epoch
do not initialise the element for it.
"""

import numpy as np

from sim.error_limit import UNSET
from sim.events import (
    ATOMIC,
    CONST,
    GLOBAL,
    LOAD,
    LOCAL,
    SHARED,
    SITES,
    SPACE_SHIFT,
    STORE,
    Access,
    Finding,
    Moment,
    index_text,
)
from sim.observers.batches import chosen, remote
from sim.observers.ordering import OrderingObserver
from sim.observers.padding import Padding
from sim.observers.poison import poison_at
from sim.observers.quick_test import joined_columns
from sim.observers.remote_reads import RemoteReads
from sim.observers.words import LOCAL_VARIABLE
from sim.observers.written import EpochPart, all_written, loads_with_equal_store, mark_written, stores_by_byte
from sim.sites import cluster_rank

# An epoch with at most this number of accesses is checked without numpy.
FEW = 64
MAX_READS = 256  # the maximum number of loads reported per site and epoch; further ones are only counted

MEMORY = {
    GLOBAL: "An array without initial values",
    CONST: "The rest of this constant memory",
    SHARED: "Fresh shared memory",
    LOCAL: "Fresh local memory",
}
FIRST = "write every element before the first load"
FIX = {
    GLOBAL: FIRST,
    CONST: "set all of it before the launch: kernels.constant[name] = array",
    LOCAL: f"{FIRST}; each call of the function that declares the array starts with undefined elements",
    SHARED: f"{FIRST}, and put cuda.syncthreads() between the two if another thread of the block writes it",
}

FIX_REMOTE = f"{FIRST}, and put cluster.sync() (barrier.cluster.arrive and .wait) between the two"
FIX_VARIABLE = (
    "initialise the variable where it is declared; or, if a function does not always set it, let this"
    " function report whether it has set it, and use the variable only then"
)


class Uninitialized(OrderingObserver):
    """An observer that reports `uninitialized-read`.

    Reads of local memory are reported one by one, through `unwritten`.
    """

    shares_order = True

    def launch_started(self, context):
        super().launch_started(context)
        # block -> mask of the bytes of shared memory that were written in earlier epochs; for an array from
        # sim.empty, the key is (block, base of the array)
        self.on_chip = {}
        self.layout = (0, (), ())  # see `shared_layout`
        # (site, array) -> (the lowest read as (position, access, address, use), the number of reads)
        self.local_reads = {}
        # (block, site) -> the number of its unwritten loads so far, for blocks that have not ended
        self.reported = {}
        self.empty = [a for a in context.space.allocations if a.unwritten is not None]
        # For arrays from sim.empty: (address, site) -> [(block, thread)] of the loads of elements that the
        # loading block had not written before.
        self.suspects = {}
        self.writers = {}  # address -> the blocks that write to it
        self.setters = {}  # address -> the blocks that write to it without reading it
        self.padding = Padding(context)
        self.remote_reads = RemoteReads(self)

    def accesses(self, batch):
        """Pass the accesses to other blocks' shared memory to RemoteReads, and keep the others."""
        if self.context.clustered and (far := remote(batch)).any():
            self.remote_reads.add(chosen(batch, far))
            batch = chosen(batch, ~far)
        super().accesses(batch)

    def block_ended(self, block, epoch):
        self.remote_reads.decide_stored(block, self.epoch.get(block, ()))
        if self.loads_follow_stores(self.epoch.get(block, ())):
            self.epoch.pop(block, None)
        findings = super().block_ended(block, epoch)
        self.on_chip.pop(block, None)
        self.remote_reads.ended.add(block)
        self.reported = {key: count for key, count in self.reported.items() if key[0] != block}
        return findings

    def unwritten(self, access, address, use=None):
        """Count a read of unwritten local memory. For each site and array, keep the lowest element, block and
        thread."""
        # If the use is on the line of the read, naming it adds no information.
        if use is not None and line_of(use) == line_of(access):
            use = None
        array, index = (None, ()) if address is None else self.context.space.element(address)
        place = index, access.block[::-1], access.thread[::-1]
        key = access.site, array
        read = place, access, address, use
        if not self.local_reads and address is not None:  # a rerun may find that the register has no effect
            self.context.error_limit.expect_error()
        lowest, count = self.local_reads.get(key, (read, 0))
        self.local_reads[key] = min(lowest, read, key=lambda read: read[0]), count + 1

    def epoch_ended(self, block):
        batches = self.epoch.pop(block, ())
        self.remote_reads.decide_stored(block, batches)
        findings = self.findings_of_epoch(block, batches)
        self.remote_reads.mark_stored(block)
        return findings

    def findings_of_epoch(self, block, batches):
        """Return the findings for the accesses of a block in an epoch, and mark the bytes that it stored."""
        if not batches or not (self.empty or self.has_shared() or self.context.copied_loads):
            return []
        names = "thread", "site", "address", "size", "segment", "position"
        columns = joined_columns(batches, names)
        address, epoch = columns[2], batches[0].epoch
        parts, inside = [], np.flatnonzero(address >> SPACE_SHIFT == SHARED)
        if len(inside):
            columns_inside = columns if len(inside) == len(address) else [c[inside] for c in columns]
            parts.append((self.shared_epoch, self.shared_part(block, epoch, *columns_inside)))
        for allocation in self.empty:
            base = allocation.base
            inside = np.flatnonzero((address >= base) & (address < base + allocation.root.size))
            if len(inside):
                written = self.on_chip.setdefault((block, base), ~allocation.unwritten)
                part = EpochPart(block, epoch, written, address[inside] - base, *(c[inside] for c in columns))
                parts.append((self.global_epoch, part))
        if self.context.copied_loads and parts:
            self.follow_copies([part for _, part in parts], columns[-1], address)
        findings = [finding for judge, part in parts for finding in judge(part) or ()]
        if self.context.copied_loads:
            self.padding.forget_epoch(columns[-1])
        return findings

    def loads_follow_stores(self, batches):
        """Return whether the last epoch of a block has few accesses, and each load from shared memory follows
        stores to all of its bytes. False if any other memory may be unwritten.

        A grid can have thousands of small blocks. This test takes a tenth of the time of `shared_epoch`.
        """
        if self.empty or self.context.copied_loads or sum(len(batch.address) for batch in batches) > FEW:
            return False
        stored = set()
        for batch in batches:
            for address, size, site in zip(batch.address.tolist(), batch.size.tolist(), batch.site.tolist()):
                if address >> SPACE_SHIFT == SHARED:
                    if site & 3 != STORE and not stored.issuperset(range(address, address + size)):
                        return False
                    if site & 3 != LOAD:
                        stored.update(range(address, address + size))
        return True

    def has_shared(self):
        """Return whether the launch has allocated shared memory."""
        if self.layout[0] != len(self.context.space.allocations):
            self.layout = self.shared_layout()
        return len(self.layout[1]) > 0

    def follow_copies(self, parts, position, address):
        """Find the loads that copy padding, and the stores that write the copied padding elsewhere.

        position, address: the columns of all accesses of the epoch.
        """
        changed = True
        while changed:
            changed = False
            for part in parts:
                for i, is_set in self.unwritten_loads(part):
                    begin, where = int(part.offset[i]), int(part.position[i])
                    is_unwritten = lambda byte, i=i, is_set=is_set, begin=begin: not is_set(i, begin + byte)  # noqa: E731
                    changed |= self.padding.add_load(where, int(part.size[i]), is_unwritten)
            self.padding.follow(position, address)
        for part in parts:
            self.padding.refuse_members(part.position, part.size)

    def shared_part(self, block, epoch, thread, site, address, *rest):
        """Return the EpochPart for the accesses of a block to shared memory."""
        offset = self.shared_offsets(address)
        written = self.window(block, int((offset + rest[0]).max()))
        return EpochPart(block, epoch, written, offset, thread, site, address, *rest)

    def shared_epoch(self, part):
        """Return the findings for the accesses of a block to shared memory in one epoch."""
        suspects = () if self.loads_written(part) else self.unstored(part)
        self.mark_written(part)
        return self.findings(part.block, part.thread, part.site, part.address, suspects)

    def loads_written(self, part):
        """Return True only if earlier epochs wrote all bytes that are loaded, which is the usual case."""
        width = int(part.size[0])
        if self.context.copied_loads or np.count_nonzero(part.size != width):
            return False
        loads = (part.site & 3 != STORE).nonzero()
        return np.count_nonzero(all_written(part.written, part.offset[loads], width)) == len(loads[0])

    def mark_written(self, part):
        """Mark the bytes stored in an epoch as written, except for copied unwritten bytes."""
        stores, holes = (part.site & 3 != LOAD).nonzero()[0], self.padding.holes
        mark_written(part.written, part.offset[stores], part.size[stores])
        if not holes:
            return
        # Repeat the stores in order, from the first one that copies unwritten bytes.
        hole_of = [holes.get(where, ()) for where in part.position[stores].tolist()]
        first = next((at for at, hole in enumerate(hole_of) if hole), len(stores))
        for i, hole in zip(stores[first:].tolist(), hole_of[first:]):
            begin = int(part.offset[i])
            part.written[begin : begin + int(part.size[i])] = True
            part.written[[begin + byte for byte in hole]] = False

    def findings(self, block, thread, site, address, suspects):
        """Yield findings for the loads at these positions.

        There are at most MAX_READS findings per site, and the last one counts the other loads. Once a block
        has that many loads at a site, there is one finding for each further epoch and array: it names the
        load with the lowest address and counts all loads.
        """
        places = {}
        for i in suspects:
            places.setdefault(int(site[i]), []).append(i)
        for number, positions in places.items():
            before = self.reported.get((block, number), 0)
            self.reported[block, number] = before + len(positions)
            if before >= MAX_READS:
                ordered = sorted(positions, key=lambda i: (address[i], thread[i]))
                first, last = ordered[0], ordered[-1]
                one, other = (self.context.space.element(int(address[i])).array for i in (first, last))
                if one == other:  # a report counts the reads of each array separately
                    read = self.read(block, int(thread[first]), number, int(address[first]))
                    yield read.with_cases(len(positions))
                    continue
            found = [
                self.read(block, int(thread[i]), int(site[i]), int(address[i])) for i in positions[:MAX_READS]
            ]
            yield from found
            if len(positions) > MAX_READS:
                yield found[-1].with_cases(len(positions) - MAX_READS)

    def shared_offsets(self, address):
        """Convert shared addresses to offsets in a block's mask of written bytes.

        The mask contains the allocations one after another. Their addresses can be far apart, so a mask of
        the whole address range would need too much memory.
        """
        if self.layout[0] != len(self.context.space.allocations):
            self.layout = self.shared_layout()
        _, base, shift = self.layout
        if len(base) == 1:
            return address - base[0]
        return address + shift[np.searchsorted(base, address, "right") - 1]

    def shared_layout(self):
        """Return the number of all allocations, the first address of each shared one, and the differences
        between offsets and addresses in each."""
        allocations = [a for a in self.context.space.allocations if a.space == "shared"]
        base = np.array([a.base for a in allocations])
        ends = np.cumsum([0, *(-(-a.root.size // 16) * 16 for a in allocations)])
        return len(self.context.space.allocations), base, ends[:-1] - base

    def window(self, block, size):
        """Return the mask of written bytes in the shared memory of a block, extended to `size` bytes."""
        written = self.on_chip.get(block, np.zeros(0, bool))
        if len(written) < size:
            written = np.concatenate([written, np.zeros(-(-size // 16) * 16 - len(written), bool)])
        self.on_chip[block] = written
        return written

    def global_epoch(self, part):
        """Process the accesses of a block to an array from sim.empty in one epoch.

        Loads not preceded by a write of the block are kept until the launch ends. If another block writes the
        byte, Races decides whether this is a fault.
        """
        block, site, address = part.block, part.site, part.address
        for i in self.unstored(part):
            # A copy of a structure can begin with padding, which no block writes.
            copies = int(part.position[i]) in self.context.copied_loads
            key = int(address[i]), int(site[i]), int(part.size[i]) if copies else 1
            if not self.suspects and not copies and self.is_certain(part, i):
                self.context.error_limit.expect_error()
            self.suspects.setdefault(key, []).append((block, int(part.thread[i])))
        self.mark_written(part)
        sets = self.sets(site)
        for i in np.flatnonzero(site & 3 != LOAD):
            self.writers.setdefault(int(address[i]), set()).add(block)
            if sets[i]:
                self.setters.setdefault(int(address[i]), set()).add(block)

    def is_certain(self, part, i):
        """Return whether the load at index i is certainly an error. Its own block has not written the bytes
        before.

        If nothing orders the blocks, a write by another block would be a race, so it cannot justify the load.
        """
        context, address = self.context, int(part.address[i])
        ordered = context.synchronizes or context.cooperative or context.clustered or len(context.live) > 1
        return not ordered and not any(address + byte in self.writers for byte in range(int(part.size[i])))

    def launch_finished(self, context):
        for block, batches in self.epoch.items():  # after a deadlock, some blocks have not ended
            self.remote_reads.decide_stored(block, batches)
        for read in self.remote_reads.unset():
            yield self.read(read.block, read.thread, read.site, read.address)
        for (_, access, address, use), count in self.local_reads.values():
            finding = unset_register(access, use) if address is None else self.finding(access, address, use)
            yield finding.with_cases(count)
        for (address, site, nbytes), loads in self.suspects.items():
            writers = self.setters if site & 3 == ATOMIC else self.writers
            writing = set().union(*(writers.get(address + byte, ()) for byte in range(nbytes)))
            for block, thread in loads:
                if not writing - {block}:
                    yield self.read(block, thread, site, address)

    def unstored(self, part):
        """Return the indices of the uninitialized loads, except for loads that copy padding."""
        allowed = self.padding.allowed
        return [i for i, _ in self.unwritten_loads(part) if int(part.position[i]) not in allowed]

    def unwritten_loads(self, part):
        """Return pairs (index of an uninitialized load, function that returns whether a byte is set for the
        load).

        The bytes of such a load are not in `written`, and its own thread has not stored them before. No other
        thread stores them in this epoch, except by a store ordered after the load. The arguments of the
        function are the index and the offset of the byte.
        """
        offset, size, site, thread = part.offset, part.size, part.site, part.thread
        sets = self.sets(site)
        suspects = part.loads_of_unwritten_bytes(~sets)
        if not len(suspects):
            return []
        holes = self.padding.holes
        whole = np.ones(len(site), bool) if not holes else ~np.isin(part.position, list(holes))
        stored_once = loads_with_equal_store(
            suspects, offset, size, np.where(whole, site, LOAD), thread, self.order.active
        )
        suspects = suspects[~stored_once]
        if not len(suspects):
            return []
        stores = stores_by_byte(offset, size, site, set(offset[suspects].tolist()))
        for j in np.flatnonzero(~whole).tolist():
            for byte in holes[int(part.position[j])]:
                if j in stores.get(int(offset[j]) + byte, ()):
                    stores[int(offset[j]) + byte].remove(j)
        is_set = self.test_of_bytes(part, sets, stores)

        def covered(i):
            return all(is_set(i, byte) for byte in range(int(offset[i]), int(offset[i]) + int(size[i])))

        return [(i, is_set) for i in suspects.tolist() if not covered(i)]

    def test_of_bytes(self, part, sets, stores):
        """Return a function of (index of a load, offset of a byte) that returns whether the byte is set for
        the load.

        stores: {offset of a byte: indices of the accesses that store it}.
        """
        written, site, thread = part.written, part.site, part.thread
        writes, is_atomic = site & 3 != LOAD, site & 3 == ATOMIC

        def moment(i):
            block = self.orderer.number(part.block)
            return Moment(block, part.epoch, int(thread[i]), int(part.segment[i]))

        def stored(i, byte):
            """Return whether a byte is stored before the load i.

            The store is either an earlier store by the same thread, or a store in this epoch by another
            thread that is not ordered after the load. Two atomics do not race, so an atomic store by another
            thread counts only if it is ordered before an atomic load.
            """
            counts = sets if site[i] & 3 == ATOMIC else writes
            return any(
                j < i
                if thread[j] == thread[i]
                else counts[j] and (is_before(j, i) if is_atomic[i] and is_atomic[j] else not is_before(i, j))
                for j in stores.get(byte, ())
            )

        def is_before(i, j):
            return i < j and self.order.active and self.order.before(moment(i), moment(j))

        is_shared = bool(len(site)) and int(part.address[0]) >> SPACE_SHIFT == SHARED
        by_others = self.remote_reads.stores.get(part.block) if is_shared else None

        def stored_by_other(i, byte):
            return bool(by_others) and self.remote_reads.has_stored(part.block, byte, moment(i))

        def is_set(i, byte):
            is_written = 0 <= byte < len(written) and bool(written[byte])
            return is_written or stored(i, byte) or stored_by_other(i, byte)

        return is_set

    def sets(self, site):
        """Return a mask of the accesses that do not use the old value: stores, and the atomics in
        Context.overwriting."""
        stores, others = site & 3 == STORE, list(self.context.overwriting)
        return stores | np.isin(site, others) if others else stores

    def read(self, block, thread, site, address):
        what = "changed" if site & 3 == ATOMIC else "read"
        return self.finding(Access(what, block, self.context.thread_index(thread), SITES[site]), address)

    def finding(self, access, address, use=None):
        element = self.context.space.element(address)
        memory, fix = MEMORY[address >> SPACE_SHIFT], FIX[address >> SPACE_SHIFT]
        subject = str(element)
        rank = cluster_rank(address) if self.context.clustered else None
        if rank is not None:
            subject += f" of block {index_text(self.context.cluster_blocks(access.block)[rank])}"
            fix = FIX_REMOTE
        if element.array == LOCAL_VARIABLE:
            subject, fix = f"a {LOCAL_VARIABLE}", FIX_VARIABLE
        if self.context.space.find(address).space == "heap":
            memory = "Memory from malloc"
        return Finding(
            "uninitialized-read",
            "error",
            f"{subject} is read, but no thread has written it",
            (access,) if use is None else (access, use),
            *element,
            reason=f"{memory} holds whatever was there before.",
            fix=fix,
            undefined=True,
            poison=poison_at(self.context, address),
        )


def unset_register(access, use):
    """Return the finding for the use of a register that no instruction has set."""
    return Finding(
        "uninitialized-read",
        "error",
        "a variable without a value is used",
        (access,) if use is None else (access, use),
        reason=f"{UNSET} the variable, so its register can contain anything.",
        fix="initialise it where it is declared, for example an accumulator with 0",
        undefined=True,
    )


def line_of(access):
    return access.site.function, access.site.line
