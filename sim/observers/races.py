"""races: two threads touch the same byte, at least one writes it, not both atomically, and nothing orders the two.

What orders two accesses: the same thread; a barrier of their block in between; a syncwarp in between whose mask holds both lanes; a grid barrier; or a write, a fence
and an atomic that the other thread's atomic on the same element has seen, carried on through each block's barriers. All that is decided from what happened, never
from the order in which the simulator ran the threads, so the findings are the same for every seed.

A simplification: on the reading side the atomic alone counts, as in the "last block" example of the CUDA C++ Programming Guide (Memory Fence Functions).
"""
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from sim.events import ATOMIC, GLOBAL, LOAD, SHARED, SITE_BITS, SITES, SPACE_SHIFT, STORE, Access, Batch, Finding, Observer

MOST_CELLS = 4096  # racy cells looked at one by one in an epoch; further ones are not counted
MOST_PAIRS = 4096  # pairs of accesses to a cell tried before the two sites count as ordered
LINE_SHIFT = 4  # the widest access has 16 bytes: aligned accesses to different lines of 16 bytes do not meet
WORDS = {LOAD: "read", STORE: "written", ATOMIC: "changed"}


class Races(Observer):
    """Findings `race-shared` and `race-global`. Writes of equal values are warnings, or nothing with `allow_equal_writes=True`."""

    def __init__(self, allow_equal_writes=False):
        self.allow_equal_writes = allow_equal_writes

    def launch_started(self, context):
        self.context, self.order = context, Order()
        self.epoch = {}  # block -> batches since its last barrier
        self.everywhere = []  # accesses to global memory since the last grid barrier

    def accesses(self, batch: Batch):
        self.epoch.setdefault(batch.block, []).append(batch)

    def barrier_opened(self, block, epoch):
        self.order.barrier(block, epoch)
        return self.epoch_ended(block)

    def block_ended(self, block, epoch):
        return self.epoch_ended(block)

    def grid_barrier_opened(self):
        return self.between_blocks()

    def launch_finished(self, context):
        return self.between_blocks()

    def fenced(self, block, epoch, thread, segment):
        self.order.fenced(block, epoch, thread, segment)

    def atomic_done(self, block, epoch, thread, segment, address):
        self.order.atomic(block, thread, segment, address)

    def warp_synchronized(self, block, threads, segment):
        self.order.warp(block, threads, segment)

    # --- when to look -----------------------------------------------------------------------------------------------------

    def epoch_ended(self, block):
        """Races within one block and epoch; what it did to global memory is kept for the comparison with other blocks."""
        batches = self.epoch.pop(block, ())
        lines = [batch.address[batch.kind != LOAD] >> LINE_SHIFT for batch in batches]
        written = np.unique(np.concatenate(lines)) if lines else ()
        rows = [Rows.of(batch, written) for batch in batches]
        if not sum(map(len, rows)):
            return []
        rows = Rows.joined(rows)
        self.everywhere.append(rows.of_global_memory(once=not self.order.active))
        return self.races(rows, rows.thread) if len(written) else []

    def between_blocks(self):
        rows = Rows.joined(self.everywhere) if self.everywhere else None
        self.everywhere = []
        if rows is None or not (rows.kind != LOAD).any():
            return []
        numbers = {block: number for number, block in enumerate(sorted(set(rows.block), key=lambda block: block[::-1]))}
        return self.races(rows, np.array([numbers[block] for block in rows.block]))

    # --- what is a race ---------------------------------------------------------------------------------------------------

    def races(self, rows, party):
        """Findings for all cells that two parties (threads of a block, or blocks) touch without order."""
        findings = []
        for address, members in racy_cells(rows, party):
            findings += self.races_at(address, rows[members], party[members])
        return findings

    def races_at(self, address, rows, party):
        """One finding for each pair of sites that race for one cell."""
        sites = {site: np.flatnonzero(rows.site == site) for site in np.unique(rows.site).tolist()}
        pairs = {}
        for one, other in combinations_with_replacement(sites, 2):
            if compete(rows[np.concatenate([sites[one], sites[other]])]):
                pair = self.unordered(rows, party, sites[one], sites[other])
                if pair is not None:
                    pairs[one, other] = pair
        colliding = any(one & 3 == other & 3 == STORE for one, other in pairs)
        # what is written may hang on what is read in a race, so only where nothing but writes race do their values count
        equal = all(one & 3 == other & 3 == STORE and alike(rows[np.concatenate([sites[one], sites[other]])]) for one, other in pairs)
        for pair in pairs.values():
            if not (equal and self.allow_equal_writes):
                yield self.finding(address, *(rows.row(position) for position in pair), equal, colliding)

    def unordered(self, rows, party, ones, others):
        """The first pair of accesses, lowest threads first, that belong to different parties and that nothing orders."""
        tried = 0
        for i in ones:
            for j in others:
                if party[i] != party[j]:
                    if not self.order.active or not self.order.between(rows.row(i), rows.row(j)):
                        return i, j
                    tried += 1
                    if tried > MOST_PAIRS:
                        return None
        return None

    def finding(self, address, a, b, equal, colliding):
        if b.site & 3 == STORE and a.site & 3 != STORE:  # the writer first
            a, b = b, a
        name, index = self.context.space.element(address)
        shared, same_kind = address >> SPACE_SHIFT == SHARED, a.site & 3 == b.site & 3
        done = f"{WORDS[a.site & 3]} by two threads" if same_kind else f"{WORDS[a.site & 3]} by one thread and {WORDS[b.site & 3]} by another"
        verdict = f"{name}[{', '.join(map(str, index))}] in {'shared' if shared else 'global'} memory is {done}, and nothing orders the two"
        return Finding("race-shared" if shared else "race-global", "warning" if equal else "error", verdict, (self.witness(a), self.witness(b)), name, index,
                       reason=reason(a, b, equal), fix=fix(a, b, equal, colliding))

    def witness(self, row):
        return Access(WORDS[row.site & 3], row.block, self.context.thread_index(row.thread), SITES[row.site], row.value)


def compete(rows):
    """Whether accesses to one byte may race, if nothing orders them: one writes, and they are not atomics on one and the same element."""
    kinds = set(rows.kind.tolist())
    return kinds != {LOAD} and (kinds != {ATOMIC} or not one_element(rows))


def alike(rows):
    """Whether all write the same value to the same element."""
    first = rows.value[0]
    return one_element(rows) and all(value == first or (value != value and first != first) for value in rows.value)


def one_element(rows):
    return len(set(rows.address.tolist())) == 1 and len(set(rows.size.tolist())) == 1


def reason(a, b, equal):
    if equal:
        return "Both write the same value, so the result is the same whichever comes last."
    if a.site & 3 == b.site & 3 == ATOMIC:
        return "Each is atomic, but their elements overlap without being the same, and such atomics are not atomic towards each other."
    return "Either may come first, and the result depends on which." if a.block == b.block else "Blocks run in any order and at the same time, so either may come first."


def fix(a, b, equal, colliding):
    """The likely remedy; `colliding` says that several threads write this element."""
    same_line = SITES[a.site].line == SITES[b.site].line and SITES[a.site].function == SITES[b.site].function
    if equal:
        return "let one thread write it; or, if it is meant, simulate with observers that include Races(allow_equal_writes=True)"
    if a.site & 3 == b.site & 3 == ATOMIC:
        return "let both work on one array of one dtype, or on bytes of their own"
    if colliding and same_line:
        return "cuda.atomic (cuda.atomic.add for +=), or let each thread write an element of its own, or let one thread do it for all"
    if a.block != b.block:
        return "let each block write elements of its own, combine them with cuda.atomic, or end the kernel and launch a second one for what comes after"
    between = "the passes over this line" if same_line else "the two lines"
    return f"cuda.syncthreads() between {between}, where every thread of the block reaches it"


# --- columns of accesses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One access."""

    block: tuple
    epoch: int
    thread: int
    segment: int
    site: int
    value: object


@dataclass(frozen=True)
class Rows:
    """Accesses to shared and global memory as parallel arrays; `block` and `value` hold objects (value: None for loads)."""

    block: np.ndarray
    epoch: np.ndarray
    thread: np.ndarray
    segment: np.ndarray
    site: np.ndarray
    address: np.ndarray
    size: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, batch, written):
        """All accesses of `batch` to global memory, and those to shared memory that touch one of the `written` lines of bytes."""
        space = batch.space
        keep = space == GLOBAL
        if len(written):
            aligned = not (batch.address & (batch.size - 1)).any()
            keep |= (space == SHARED) & (np.isin(batch.address >> LINE_SHIFT, written) if aligned else True)
        keep = np.flatnonzero(keep)
        block, value = np.empty(len(keep), object), np.empty(len(batch.address), object)
        block.fill(batch.block)
        value[np.flatnonzero(batch.kind != LOAD)] = batch.values
        return cls(block, np.full(len(keep), batch.epoch), *(getattr(batch, name)[keep] for name in ("thread", "segment", "site", "address", "size")), value[keep])

    def __len__(self):
        return len(self.address)

    @classmethod
    def joined(cls, parts):
        return parts[0] if len(parts) == 1 else cls(*(np.concatenate(columns) for columns in zip(*(vars(part).values() for part in parts))))

    def __getitem__(self, selection):
        return Rows(*(column[selection] for column in vars(self).values()))

    @property
    def kind(self):
        return self.site & 3

    def row(self, i):
        return Row(self.block[i], int(self.epoch[i]), int(self.thread[i]), int(self.segment[i]), int(self.site[i]), self.value[i])

    def of_global_memory(self, once):
        """Accesses to global memory; `once`: of several to one address from one site only the lowest thread's first and the highest's last, which stays."""
        rows = self[self.address >> SPACE_SHIFT == GLOBAL]
        if not once:
            return rows
        rows = rows[np.argsort(rows.thread.astype(np.int16), kind="stable")]
        key = rows.address << SITE_BITS | rows.site
        first, last = (np.unique(run, return_index=True)[1] for run in (key, key[::-1]))
        return rows[np.union1d(first, len(key) - 1 - last)]


def racy_cells(rows, party):
    """(address, positions) of every cell that two parties touch, one of them writing and not both atomically; positions with low threads first."""
    cell, origin = rows.address, np.arange(len(rows.address))
    if len(np.unique(rows.size)) > 1 or (rows.address % rows.size).any():  # per byte
        origin = np.repeat(origin, rows.size)
        cell = np.concatenate([np.arange(a, a + s) for a, s in zip(rows.address.tolist(), rows.size.tolist())])
    kind = rows.kind[origin]
    keep = np.flatnonzero(np.isin(cell, np.unique(cell[kind != LOAD])))
    keep = keep[np.lexsort((rows.thread[origin[keep]], party[origin[keep]], cell[keep]))]
    cell, origin, kind = cell[keep], origin[keep], kind[keep]
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    parties = party[origin]
    several = np.minimum.reduceat(parties, starts) != np.maximum.reduceat(parties, starts)
    any_of = {k: np.logical_or.reduceat(kind == k, starts) for k in (LOAD, STORE, ATOMIC)}
    element = rows.address[origin] << 4 | np.frexp(rows.size[origin])[1]  # atomics of different widths are not atomic to each other
    mixed = np.minimum.reduceat(element, starts) != np.maximum.reduceat(element, starts)
    racy = np.flatnonzero(several & (any_of[STORE] | any_of[ATOMIC] & (any_of[LOAD] | mixed)))
    ends = np.append(starts[1:], len(cell))
    for group in racy[:MOST_CELLS]:
        yield int(cell[starts[group]]), origin[starts[group]:ends[group]]


# --- what orders accesses of different threads, other than barriers ---------------------------------------------------------------


class Order:
    """Who knows of whose accesses. Knowledge is a dict: block -> all its accesses in epochs before that one; (block, thread) -> its accesses up to that segment.

    A fence makes what a thread knows, and what it did, ready to be seen; its next atomics, and after a barrier those of its whole block, hand that to whoever
    does an atomic on the same element later.
    """

    def __init__(self):
        self.active = False  # whether anything has happened that could order accesses
        self.known = {}  # (block, thread) -> knowledge
        self.released = {}  # block -> {thread: knowledge at its last fence; None: what all threads had released before the last barrier}
        self.handed = {}  # address -> what atomics have left there
        self.history = {}  # (block, thread) -> [(segment after which it held, knowledge)]
        self.of_block = {}  # block -> [(epoch after which all its threads knew, knowledge)]

    def fenced(self, block, epoch, thread, segment):
        self.active = True
        of_block = self.of_block.get(block, [(-1, {})])[-1][1]
        known = merged([of_block, self.known.get((block, thread), {}), {block: epoch, (block, thread): segment}])
        self.released.setdefault(block, {})[thread] = known

    def atomic(self, block, thread, segment, address):
        if not self.active:
            return
        released = self.released.get(block, {})
        handed, own = self.handed.get(address), [released[who] for who in (thread, None) if who in released]
        if handed:
            self.learn(block, thread, segment, handed)
        if own:
            self.handed[address] = merged([handed or {}, *own])

    def warp(self, block, threads, segment):
        self.active = True
        together = merged([{(block, thread): segment for thread in threads}, *(self.known.get((block, thread), {}) for thread in threads)])
        for thread in threads:
            self.learn(block, thread, segment, together)

    def barrier(self, block, epoch):
        """What any thread of the block knew, all know in the next epoch; what any thread has released by a fence, every thread's atomics hand on."""
        if block in self.released:
            self.released[block] = {None: merged(self.released[block].values())}
        known = [self.known.pop(key) for key in list(self.known) if key[0] == block]
        if known:
            before = self.of_block.setdefault(block, [(-1, {})])
            before.append((epoch, merged([before[-1][1], *known])))

    def learn(self, block, thread, segment, knowledge):
        known = self.known[block, thread] = merged([self.known.get((block, thread), {}), knowledge])
        self.history.setdefault((block, thread), []).append((segment, known))

    def between(self, a, b):
        """Whether one of two accesses (Rows) is known to have happened before the other began."""
        return self.covers(self.knowledge(b), a) or self.covers(self.knowledge(a), b)

    def knowledge(self, row):
        own = [known for segment, known in self.history.get((row.block, row.thread), ()) if segment < row.segment]
        shared = [known for epoch, known in self.of_block.get(row.block, ()) if epoch < row.epoch]
        return merged([*own[-1:], *shared[-1:]])

    @staticmethod
    def covers(knowledge, row):
        return row.epoch < knowledge.get(row.block, -1) or row.segment <= knowledge.get((row.block, row.thread), -1)


def merged(parts):
    """The union of several pieces of knowledge."""
    result = {}
    for part in {id(part): part for part in parts}.values():
        for key, bound in part.items():
            if bound > result.get(key, -1):
                result[key] = bound
    return result
