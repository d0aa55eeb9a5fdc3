"""races: two threads touch the same byte, at least one writes it, not both atomically, and nothing orders the
two.

What orders two accesses: the same thread; a barrier of their block in between; a syncwarp in between whose
    mask holds both lanes; a grid barrier; release and acquire (sim.observers.order); and, for one element
    alone, an atomic of the later thread between an earlier atomic and its own access. Which threads run first
    decides none of these; what they see may, so a launch whose threads act on what atomics gave them is
    judged under several schedules (sim.engine.schedules).
"""

from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement

import numpy as np

from sim.events import (
    ATOMIC,
    GLOBAL,
    LOAD,
    SHARED,
    SITE_BITS,
    SITES,
    SPACE_SHIFT,
    STORE,
    Access,
    Batch,
    Finding,
    Observer,
    alias,
)
from sim.observers import advice
from sim.observers.copies import LINE_SHIFT, WORDS, Flights
from sim.observers.order import Order

MOST_CELLS = 512  # racy cells of one pattern that are looked at one by one; further ones are counted
# pairs of accesses tried for the lowest threads that race; then any pair of the cell will do
MOST_PAIRS = 4096
MOST_EVENTS = 1 << 12  # events kept to find out whether a fence is missing
WARP_SHIFT = 5


class Races(Observer):
    """Findings `race-shared` and `race-global`. Writes of equal values are warnings, or nothing with
    `allow_equal_writes=True`."""

    local = False

    def __init__(self, allow_equal_writes=False):
        self.allow_equal_writes = allow_equal_writes

    def launch_started(self, context):
        self.context, self.order, self.flights = context, Order(), Flights(context)
        # what has told `order` something; an order in which every atomic has a fence, after so many events
        self.events, self.generous = [], (0, Order(generous=True))
        self.barriers = {}  # function -> lines on which barriers have opened
        self.blocks, self.names = {}, []  # block -> its number; the reverse
        self.epoch = {}  # block -> batches since its last barrier
        self.everywhere = []  # accesses to global memory since the last grid barrier

    def accesses(self, batch: Batch):
        self.epoch.setdefault(batch.block, []).append(batch)

    def barrier_opened(self, block, epoch):
        self.heard("barrier", block, epoch)
        return self.epoch_ended(block)

    def block_ended(self, block, epoch):
        return self.epoch_ended(block)

    def grid_barrier_opened(self):
        return self.between_blocks()

    def launch_finished(self, context):
        return self.between_blocks()

    def collective(self, name, block, site):
        if name.startswith("syncthreads"):
            self.barriers.setdefault(SITES[site].function, set()).add(SITES[site].line)

    def fenced(self, at, reach):
        self.heard("fenced", *at, reach)

    def atomic_done(self, at, address, wrote):
        self.heard("atomic", *at, address, wrote)

    def warp_synchronized(self, block, threads, segment):
        self.heard("warp", block, threads, segment)

    def arrived(self, at, phase):
        self.heard("arrived", *at, phase)

    def passed(self, at, phase):
        self.heard("passed", *at, phase)

    def copy_sent(self, at, copy):
        self.flights.sent(at, self.number(at.block), copy)

    def copies_received(self, at, copies):
        self.flights.received(at, self.number(at.block), copies)

    def heard(self, name, block, *facts):
        getattr(self.order, name)(self.number(block), *facts)
        if len(self.events) < MOST_EVENTS:
            self.events.append((name, self.number(block), *facts))

    def number(self, block):
        """A number for a block, from 0."""
        if block not in self.blocks:
            self.blocks[block] = len(self.names)
            self.names.append(block)
        return self.blocks[block]

    # --- when to look ---------------------------------------------------------------------------------------

    def epoch_ended(self, block):
        """Races within one block and epoch; what it did to global memory is kept for the comparison with
        other blocks."""
        batches = self.epoch.pop(block, ())
        lines = [batch.address[batch.kind != LOAD] >> LINE_SHIFT for batch in batches]
        lines.append(self.flights.lines(self.number(block)))
        written = np.unique(np.concatenate(lines))
        rows = [Rows.of(batch, written, self.number(block)) for batch in batches]
        rows = Rows.joined(rows) if sum(map(len, rows)) else None
        findings = self.flights.epoch_ended(self.number(block), rows, self.order)
        if rows is None:
            return findings
        self.everywhere.append(rows.of_global_memory(once=not self.matters))
        return findings + self.races(rows, rows.thread) if len(written) else findings

    def between_blocks(self):
        rows = Rows.joined(self.everywhere) if self.everywhere else None
        self.everywhere = []
        if rows is None or not (rows.kind != LOAD).any():
            return []
        ranks = np.empty(len(self.names), np.int64)
        ranks[sorted(range(len(ranks)), key=lambda number: self.names[number][::-1])] = np.arange(len(ranks))
        return self.races(rows, ranks[rows.block])

    @property
    def matters(self):
        """Whether it matters in which order things were done."""
        return self.order.active or self.context.synchronizes

    # --- what is a race -------------------------------------------------------------------------------------

    def races(self, rows, party):
        """Findings for all cells that two parties (threads of a block, or blocks) touch without order."""
        cells = racy_cells(rows, party)
        known = [None] * len(cells.address)
        if self.matters:
            known = unordered_pairs(cells, self.order)
            cells, known = (
                cells.those([pair is not None for pair in known]),
                [pair for pair in known if pair is not None],
            )
        findings = []
        for chosen, more in cells.patterns():
            for cell in chosen:
                members = cells.members(cell)
                found = list(
                    self.races_at(int(cells.address[cell]), rows[members], party[members], known[cell])
                )
                findings += found
            findings += [finding.again(more) for finding in found if more]
        return findings

    def races_at(self, address, rows, party, known):
        """One finding for each pair of sites that race for one cell; `known` is a pair of its accesses (Rows)
        that do."""
        sites = {site: np.flatnonzero(rows.site == site) for site in np.unique(rows.site).tolist()}
        order, pairs = self.order if self.matters else None, {}
        for one, other in combinations_with_replacement(sites, 2):
            if compete(rows[np.concatenate([sites[one], sites[other]])]):
                pair = first_pair(rows, party, sites[one], sites[other], order)
                if pair is not None:
                    pairs[one, other] = tuple(map(rows.row, pair))
        if not pairs and known:
            pairs[known[0].site, known[1].site] = known
        colliding = any(one & 3 == other & 3 == STORE for one, other in pairs)
        # what is written may hang on what is read in a race, so only where nothing but writes race do their
        # values count
        equal = all(
            one & 3 == other & 3 == STORE
            and alike(rows, party, (rows.site == one) | (rows.site == other), order)
            for one, other in pairs
        )
        for pair in pairs.values():
            if not (equal and self.allow_equal_writes):
                yield self.finding(address, *pair, rows, equal, colliding)

    # --- in words -------------------------------------------------------------------------------------------

    def finding(self, address, a, b, rows, equal, colliding):
        if b.site & 3 == STORE and a.site & 3 != STORE:  # the writer first
            a, b = b, a
        name, index = self.context.space.element(address)
        shared, same_kind = address >> SPACE_SHIFT == SHARED, a.site & 3 == b.site & 3
        done = (
            f"{WORDS[a.site & 3]} by two threads"
            if same_kind
            else f"{WORDS[a.site & 3]} by one thread and {WORDS[b.site & 3]} by another"
        )
        witnesses = self.witness(a), self.witness(b)
        verdict = (
            f"{name}[{', '.join(map(str, index))}]{alias(witnesses[0], name)} in"
            f" {'shared' if shared else 'global'} memory is {done}, and nothing orders the two"
        )
        near = 0 if a.block != b.block else 1 if a.thread >> WARP_SHIFT != b.thread >> WARP_SHIFT else 2
        return Finding(
            "race-shared" if shared else "race-global",
            "warning" if equal else "error",
            verdict,
            witnesses,
            name,
            index,
            reason=advice.reason(a, b, equal, replaced(rows, a) or replaced(rows, b)),
            fix=advice.fix(
                a, b, equal, colliding, self.lacks_fence(a, b), self.context.synchronizes, self.barriers
            ),
            near=near,
        )

    def witness(self, row):
        return Access(
            WORDS[row.site & 3],
            self.names[row.block],
            self.context.thread_index(row.thread),
            SITES[row.site],
            row.value,
        )

    def lacks_fence(self, a, b):
        """Whether a fence before every atomic would order the two, where threads act on atomics."""
        if len(self.events) == MOST_EVENTS or not self.context.synchronizes:
            return False
        told, order = self.generous
        for name, *facts in self.events[told:]:
            getattr(order, name)(*facts)
        self.generous = len(self.events), order
        return order.before(*sorted((a, b), key=lambda row: row.position))


def replaced(rows, row):
    """Whether a store is followed by another of its thread."""
    return row.site & 3 == STORE and bool(
        (
            (rows.thread == row.thread)
            & (rows.block == row.block)
            & (rows.position > row.position)
            & (rows.kind == STORE)
        ).any()
    )


def compete(rows):
    """Whether accesses to one byte may race, if nothing orders them: one writes, and they are not atomics on
    one and the same element."""
    kinds = set(rows.kind.tolist())
    return kinds != {LOAD} and (kinds != {ATOMIC} or not one_element(rows))


def alike(rows, party, chosen, order):
    """Whether all the chosen write the same value to the same element, or are in order where they do not."""
    those = np.flatnonzero(chosen)
    if all(same(rows, those[0], i) for i in those):
        return True
    unlike = ((i, j) for i, j in combinations(those, 2) if party[i] != party[j] and not same(rows, i, j))
    return order is not None and all(
        tried < MOST_PAIRS and in_order(rows, i, j, order) for tried, (i, j) in enumerate(unlike)
    )


def same(rows, i, j):
    """Whether two writes are of the same value to the same element."""
    a, b = rows.value[i], rows.value[j]
    where = rows.address[i] == rows.address[j] and rows.size[i] == rows.size[j]
    return where and (a == b or (a != a and b != b))


def one_element(rows):
    return len(set(rows.address.tolist())) == 1 and len(set(rows.size.tolist())) == 1


def first_pair(rows, party, ones, others, order):
    """The first pair of accesses, lowest threads first, that belong to different parties and that nothing
    orders; of different warps, if there is one."""
    if order is None:  # one access of a thread is like another
        ones, others = (
            positions[np.unique(rows.thread[positions] + (party[positions] << 12), return_index=True)[1]]
            for positions in (ones, others)
        )
    home = rows.block << 12 | rows.thread >> WARP_SHIFT
    far, tried = len(np.unique(home[np.concatenate([ones, others])])) > 1, 0
    for wants_far in (True, False) if far else (False,):
        for i in ones:
            for j in others[(party[others] != party[i]) & ((home[others] != home[i]) | (not wants_far))]:
                if order is None or not in_order(rows, i, j, order):
                    return i, j
                tried += 1
                if tried > MOST_PAIRS:
                    return None
    return None


# --- which accesses the program puts in order ---------------------------------------------------------------


def in_order(rows, i, j, order):
    """Whether nothing but the order in which things happened to be done puts the accesses at i and j to one
    cell (Rows, all of its accesses) in order."""
    if rows.position[i] > rows.position[j]:
        i, j = j, i
    if rows.kind[i] == ATOMIC and rows.kind[j] != ATOMIC and follows_atomic(rows, i, j):
        return True
    return order.before(rows.row(i), rows.row(j))


def follows_atomic(rows, i, j):
    """Whether between an atomic i and an access j there is an atomic that j's thread did, or knows of by a
    barrier: that one saw what i had done."""
    mine = (rows.kind == ATOMIC) & (rows.block == rows.block[j]) & (rows.position > rows.position[i])
    return bool(
        (
            mine
            & (
                (rows.thread == rows.thread[j]) & (rows.position < rows.position[j])
                | (rows.epoch < rows.epoch[j])
            )
        ).any()
    )


def unordered_pairs(cells, order):
    """For each cell a pair of accesses (Row) that nothing orders, or None."""
    rows, known = cells.rows, {}

    def ordered(i, j):
        pair = int(rows.segment[i]), int(rows.segment[j])
        if pair not in known:
            known[pair] = order.before(rows.row(i), rows.row(j))
        return known[pair]

    found = []
    for cell in range(len(cells.address)):
        members = cells.members(cell)
        members = members[np.argsort(rows.position[members], kind="stable")]
        pairs = (
            successive(rows, cells.party, members.tolist())
            if (rows.kind[members] != ATOMIC).all()
            else with_atomics(rows, cells.party, members)
        )
        found.append(next(((rows.row(i), rows.row(j)) for i, j in pairs if not ordered(i, j)), None))
    return found


def successive(rows, party, members):
    """Pairs of plain accesses to one cell which all have to be in order for all of them to be so: order is
    transitive."""
    write, reads = None, []
    for i in members:
        if write is not None and party[write] != party[i]:
            yield write, i
        if rows.site[i] & 3 == LOAD:
            reads.append(i)
        else:
            yield from ((read, i) for read in reads if party[read] != party[i])
            write, reads = i, []


def with_atomics(rows, party, members):
    """Pairs of accesses to one cell, one of them an atomic, that have to be in order: two atomics need not
    be."""
    here, plain = rows[members], [i for i in range(len(members)) if rows.site[members[i]] & 3 != ATOMIC]
    yield from successive(rows, party, members[plain].tolist())
    who = here.block.astype(np.int64) << 12 | here.thread
    for j in plain:
        atomics = np.flatnonzero((here.kind == ATOMIC) & (party[members] != party[members[j]]))
        before, behind = atomics[atomics < j], atomics[atomics > j]
        last, first = (
            before[len(before) - 1 - np.unique(who[before][::-1], return_index=True)[1]],
            behind[np.unique(who[behind], return_index=True)[1]],
        )
        yield from ((members[i], members[j]) for i in last if not follows_atomic(here, i, j))
        yield from ((members[j], members[i]) for i in first)


# --- columns of accesses ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One access."""

    block: int
    epoch: int
    thread: int
    segment: int
    site: int
    position: int
    value: object


@dataclass(frozen=True)
class Rows:
    """Accesses to shared and global memory as parallel arrays; `block` is a number, `position` counts
    accesses through the launch, `value` holds objects (None for loads)."""

    block: np.ndarray
    epoch: np.ndarray
    thread: np.ndarray
    segment: np.ndarray
    site: np.ndarray
    address: np.ndarray
    size: np.ndarray
    position: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, batch, written, block):
        """All accesses of `batch` to global memory, and those to shared memory that touch one of the
        `written` lines of bytes."""
        space = batch.space
        keep = space == GLOBAL
        if len(written):
            aligned = not (batch.address & (batch.size - 1)).any()
            keep |= (space == SHARED) & (np.isin(batch.address >> LINE_SHIFT, written) if aligned else True)
        keep = np.flatnonzero(keep)
        value = np.empty(len(batch.address), object)
        value[np.flatnonzero(batch.kind != LOAD)] = batch.values
        return cls(
            np.full(len(keep), block),
            np.full(len(keep), batch.epoch),
            *(getattr(batch, name)[keep] for name in ("thread", "segment", "site", "address", "size")),
            batch.position[keep],
            value[keep],
        )

    def __len__(self):
        return len(self.address)

    @classmethod
    def joined(cls, parts):
        return (
            parts[0]
            if len(parts) == 1
            else cls(*(np.concatenate(columns) for columns in zip(*(vars(part).values() for part in parts))))
        )

    def __getitem__(self, selection):
        return Rows(*(column[selection] for column in vars(self).values()))

    @property
    def kind(self):
        return self.site & 3

    def row(self, i):
        return Row(
            int(self.block[i]),
            int(self.epoch[i]),
            int(self.thread[i]),
            int(self.segment[i]),
            int(self.site[i]),
            int(self.position[i]),
            self.value[i],
        )

    def of_global_memory(self, once):
        """Accesses to global memory; `once`: of several to one address from one site only the lowest thread's
        first and the highest's last, which stays."""
        rows = self[self.address >> SPACE_SHIFT == GLOBAL]
        if not once:
            return rows
        rows = rows[np.argsort(rows.thread.astype(np.int16), kind="stable")]
        key = rows.address << SITE_BITS | rows.site
        first, last = (np.unique(run, return_index=True)[1] for run in (key, key[::-1]))
        return rows[np.union1d(first, len(key) - 1 - last)]


@dataclass(frozen=True)
class Cells:
    """Cells (bytes, or elements where all accesses are to whole ones) and who touched them: those at
    `origin[starts:ends]` among `rows`, low parties and threads first."""

    rows: Rows
    party: np.ndarray  # of each row
    origin: np.ndarray
    address: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def members(self, cell):
        return self.origin[self.starts[cell] : self.ends[cell]]

    def those(self, wanted):
        wanted = np.array(wanted, bool)
        return Cells(
            self.rows, self.party, self.origin, self.address[wanted], self.starts[wanted], self.ends[wanted]
        )

    def patterns(self):
        """(cells to look at, number of further ones) for each set of sites that touch a cell, told by which
        of them several parties do, and the lowest."""
        if len(self.address) <= MOST_CELLS:
            if len(self.address):
                yield range(len(self.address)), 0
            return
        lengths = self.ends - self.starts
        cell = np.repeat(np.arange(len(lengths)), lengths)
        row = self.origin[np.repeat(self.ends - np.cumsum(lengths), lengths) + np.arange(len(cell))]
        order = np.lexsort((self.rows.site[row], cell))
        cell, site, party = cell[order], self.rows.site[row[order]], self.party[row[order]]
        firsts = np.flatnonzero(np.diff(cell, prepend=-1) | np.diff(site, prepend=-1))
        low, high = np.minimum.reduceat(party, firsts), np.maximum.reduceat(party, firsts)
        of_cell = np.flatnonzero(np.diff(cell[firsts], prepend=-1))
        lowest = np.repeat(np.minimum.reduceat(low, of_cell), np.diff(of_cell, append=len(firsts)))
        mark = (
            site[firsts].astype(np.uint64) << np.uint64(2)
            | (low != high).astype(np.uint64) << np.uint64(1)
            | (low == lowest).astype(np.uint64)
        ) * np.uint64(0x9E3779B97F4A7C15)
        pattern = np.add.reduceat(mark ^ mark >> np.uint64(29), of_cell)
        for one in np.unique(pattern):
            alike = np.flatnonzero(pattern == one)
            yield alike[:MOST_CELLS].tolist(), max(0, len(alike) - MOST_CELLS)


def racy_cells(rows, party):
    """The Cells that two parties touch, one of them writing and not both atomically."""
    cell, origin = rows.address, np.arange(len(rows.address))
    if len(np.unique(rows.size)) > 1 or (rows.address % rows.size).any():  # per byte
        origin = np.repeat(origin, rows.size)
        cell = np.concatenate(
            [np.arange(a, a + s) for a, s in zip(rows.address.tolist(), rows.size.tolist())]
        )
    kind = rows.kind[origin]
    keep = np.flatnonzero(np.isin(cell, np.unique(cell[kind != LOAD])))
    keep = keep[np.lexsort((rows.thread[origin[keep]], party[origin[keep]], cell[keep]))]
    cell, origin, kind = cell[keep], origin[keep], kind[keep]
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    ends = np.append(starts[1:], len(cell))
    parties = party[origin]
    several = np.minimum.reduceat(parties, starts) != np.maximum.reduceat(parties, starts)
    any_of = {k: np.logical_or.reduceat(kind == k, starts) for k in (LOAD, STORE, ATOMIC)}
    # atomics of different widths are not atomic to each other
    element = rows.address[origin] << 4 | np.frexp(rows.size[origin])[1]
    mixed = np.minimum.reduceat(element, starts) != np.maximum.reduceat(element, starts)
    racy = several & (any_of[STORE] | any_of[ATOMIC] & (any_of[LOAD] | mixed))
    return Cells(rows, party, origin, cell[starts], starts, ends).those(racy)
