"""uninitialized: loads of bytes that nobody has written: shared and local memory, and global arrays made by `sim.empty`.

A load counts as uninitialized if no earlier epoch wrote the byte, the thread itself has not written it before, and no other thread writes it in the same epoch (one that
does without order is a race, and reported as that). So the findings do not depend on the schedule. An atomic, other than exch, loads what it changes; other threads'
atomics do not count as writing it before.
"""
import numpy as np

from sim.events import ATOMIC, GLOBAL, LOAD, LOCAL, SHARED, SITES, SPACE_SHIFT, STORE, Access, Finding, Observer

MOST = 4096  # loads looked at one by one in an epoch; further ones are not counted

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Uninitialized(Observer):
    """Finding `uninitialized-read`."""

    def launch_started(self, context):
        self.context = context
        self.on_chip = {}  # (block, space) -> bool for each byte of the space's window: written in an earlier epoch
        self.epoch = {}  # block -> batches since its last barrier
        self.empty = [a for a in context.space.allocations if a.uninitialized]
        self.suspects = {}  # for sim.empty(): (address, site) -> loads that no earlier write of their block covers
        self.writers, self.setters = {}, {}  # address -> blocks that write it; that write it without reading it in the same breath

    def accesses(self, batch):
        self.epoch.setdefault(batch.block, []).append(batch)

    def barrier_opened(self, block, epoch):
        return self.epoch_ended(block)

    def block_ended(self, block, epoch):
        findings = self.epoch_ended(block)
        for space in (SHARED, LOCAL):
            self.on_chip.pop((block, space), None)
        return findings

    def epoch_ended(self, block):
        batches = self.epoch.pop(block, ())
        if not batches:
            return []
        columns = [np.concatenate([getattr(batch, name) for batch in batches]) for name in ("thread", "site", "address", "size")]
        space = columns[2] >> SPACE_SHIFT
        findings = []
        for of in (SHARED, LOCAL):
            inside = np.flatnonzero(space == of)
            if len(inside):
                findings += self.on_chip_epoch(block, of, *(column[inside] for column in columns))
        for allocation in self.empty:
            inside = np.flatnonzero((columns[2] >= allocation.base) & (columns[2] < allocation.base + allocation.root.size))
            if len(inside):
                self.global_epoch(block, allocation, *(column[inside] for column in columns))
        return findings

    def on_chip_epoch(self, block, space, thread, site, address, size):
        """One block's accesses of one epoch to its shared or local memory."""
        first = space << SPACE_SHIFT
        written = self.window(block, space, int((address + size).max()) - first)
        suspects = self.unwritten(written, address - first, size, site, thread)
        stores = site & 3 != LOAD
        mark(written, address[stores] - first, size[stores])
        return [self.finding(block, int(thread[i]), int(site[i]), int(address[i])) for i in suspects[:MOST]]

    def window(self, block, space, size):
        """The written bytes of a block's window, grown to `size`."""
        written = self.on_chip.get((block, space), np.zeros(0, bool))
        if len(written) < size:
            written = np.concatenate([written, np.zeros(-(-size // 16) * 16 - len(written), bool)])
        self.on_chip[block, space] = written
        return written

    def global_epoch(self, block, allocation, thread, site, address, size):
        """One block's accesses of one epoch to an array of sim.empty(). Another block's write, whenever it comes, is a matter of races."""
        key = block, allocation.base
        written = self.on_chip.setdefault(key, np.zeros(allocation.root.size, bool))
        for i in self.unwritten(written, address - allocation.base, size, site, thread)[:MOST]:
            self.suspects.setdefault((int(address[i]), int(site[i])), []).append((block, int(thread[i])))
        stores = np.flatnonzero(site & 3 != LOAD)
        mark(written, address[stores] - allocation.base, size[stores])
        sets = self.sets(site)
        for i in stores:
            self.writers.setdefault(int(address[i]), set()).add(block)
            if sets[i]:
                self.setters.setdefault(int(address[i]), set()).add(block)

    def launch_finished(self, context):
        for (address, site), loads in self.suspects.items():
            writers = self.setters if site & 3 == ATOMIC else self.writers
            for block, thread in loads:
                if not writers.get(address, set()) - {block}:
                    yield self.finding(block, thread, site, address)

    def unwritten(self, written, offset, size, site, thread):
        """Positions of the loads of bytes that are not `written`, that their own thread has not stored before, and that no other thread stores at all."""
        sets = self.sets(site)
        loads = np.flatnonzero(~sets)
        missing = np.zeros(len(loads), bool)
        for width in np.unique(size[loads]):
            these = size[loads] == width
            missing[these] = ~all_set(written, offset[loads[these]], width)
        suspects = loads[missing]
        suspects = suspects[~stored_whole(suspects, offset, size, site, thread)]
        if not len(suspects):
            return []
        stores = stores_by_byte(offset, size, site, set(offset[suspects].tolist()))
        return [i for i in suspects.tolist() if not covered(i, written, offset, size, thread, stores, sets if site[i] & 3 == ATOMIC else site & 3 != LOAD)]

    def sets(self, site):
        """Whether each access writes without reading first: stores, and the atomic exch."""
        return (site & 3 == STORE) | (site & 3 == ATOMIC) & np.isin(site, list(self.context.overwriting))

    def finding(self, block, thread, site, address):
        name, index = self.context.space.element(address)
        memory = {GLOBAL: "An array made by sim.empty", SHARED: "Fresh shared memory", LOCAL: "Fresh local memory"}[address >> SPACE_SHIFT]
        return Finding("uninitialized-read", "error", f"{name}[{', '.join(map(str, index))}] is read and nobody has written it",
                       (Access("changed" if site & 3 == ATOMIC else "read", block, self.context.thread_index(thread), SITES[site]),), name, index,
                       reason=f"{memory} holds whatever was there before.",
                       fix="write every element before the first load, and put cuda.syncthreads() between the two if another thread writes it")


def all_set(written, offset, width):
    """Whether all `width` bytes at each `offset` are set."""
    word = WORDS.get(width)
    if word is None or len(written) % width or (offset % width).any():
        return written[offset[:, None] + np.arange(width)].all(1)
    return written.view(word)[offset // width] == np.ones(width, bool).view(word)[0]  # a whole element at a time


def mark(written, offset, size):
    """Set `size` bytes at each `offset`."""
    for width in np.unique(size):
        at = offset[size == width]
        written[(at[:, None] + np.arange(width)).ravel()] = True


def stored_whole(loads, offset, size, site, thread):
    """For each of `loads`: whether the first plain store to exactly those bytes came before it, or is another thread's. Most loads are settled by this."""
    stores = np.flatnonzero(site & 3 == STORE)
    if not len(stores):
        return np.zeros(len(loads), bool)
    bytes_of = offset << 5 | size
    place, first = np.unique(bytes_of[stores], return_index=True)
    at = np.searchsorted(place, bytes_of[loads]).clip(max=len(place) - 1)
    store = stores[first[at]]
    return (place[at] == bytes_of[loads]) & ((store < loads) | (thread[store] != thread[loads]))


def stores_by_byte(offset, size, site, near):
    """{byte: [positions of stores to it]} for stores that begin within 16 bytes of one of `near`."""
    wanted = {byte + shift for byte in near for shift in range(-16, 17)}
    stores = {}
    for i in np.flatnonzero(site & 3 != LOAD).tolist():
        begin = int(offset[i])
        if begin in wanted:
            for byte in range(begin, begin + int(size[i])):
                stores.setdefault(byte, []).append(i)
    return stores


def covered(i, written, offset, size, thread, stores, counts):
    """Whether every byte of load `i` has been stored: in an earlier epoch, by its thread before, or by another thread in this epoch where that `counts`."""
    def stored(byte):
        return any(j < i if thread[j] == thread[i] else counts[j] for j in stores.get(byte, ()))
    return all(written[byte] or stored(byte) for byte in range(int(offset[i]), int(offset[i]) + int(size[i])))
