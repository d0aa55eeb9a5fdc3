"""Pairs of accesses to the same bytes: which pairs race, and which pair a finding names."""

from itertools import combinations

import numpy as np

from sim.events import ATOMIC, LOAD, STORE
from sim.observers.cells import ATOMIC_LOAD, distinct

# Pairs of accesses to try in search of the lowest racing threads. After that, any racing pair will do.
MOST_PAIRS = 4096
WARP_SHIFT = 5
ATOMICS = ATOMIC, ATOMIC_LOAD  # the actions of atomic accesses


def near(a, b):
    """Return 0 for threads in different blocks, 1 for different warps of a block, and 2 for the same warp."""
    return 0 if a.block != b.block else 1 if a.thread >> WARP_SHIFT != b.thread >> WARP_SHIFT else 2


def colliding(pairs):
    """Return whether two racing sites both store."""
    return any(one & 3 == other & 3 == STORE for one, other in pairs)


def replaced(rows, row):
    """Return whether a store's thread stores to the cell again later."""
    own = (rows.thread == row.thread) & (rows.block == row.block)
    return row.site & 3 == STORE and bool(
        (own & (rows.position > row.position) & (rows.action == STORE)).any()
    )


def compete(rows):
    """Return whether accesses to one byte may race: at least one writes, and they are not all atomics on one
    element."""
    actions = set(rows.action.tolist())
    if actions.isdisjoint({STORE, ATOMIC}):
        return False
    return not actions <= {ATOMIC, ATOMIC_LOAD} or not one_element(rows)


def alike(rows, party, chosen, order):
    """Return whether all chosen accesses write the same value to the same element, or are ordered where they
    differ."""
    positions = np.flatnonzero(chosen)
    if all(same(rows, positions[0], i) for i in positions):
        return True
    unlike = ((i, j) for i, j in combinations(positions, 2) if party[i] != party[j] and not same(rows, i, j))
    return order is not None and all(
        tried < MOST_PAIRS and in_order(rows, i, j, order) for tried, (i, j) in enumerate(unlike)
    )


def same(rows, i, j):
    """Return whether two writes store the same value to the same element."""
    a, b = rows.value[i], rows.value[j]
    where = rows.address[i] == rows.address[j] and rows.size[i] == rows.size[j]
    return where and (a == b or (a != a and b != b))


def atomic(rows):
    """Return a mask of the atomic accesses."""
    return (rows.action == ATOMICS[0]) | (rows.action == ATOMICS[1])


def one_element(rows):
    return len(set(rows.address.tolist())) == 1 and len(set(rows.size.tolist())) == 1


def first_pair(rows, party, ones, others, order):
    """Return the first unordered pair of accesses by different parties, lowest threads first, or None.

    A pair from different warps is preferred.
    """
    if order is None:  # Without an order, all accesses of a thread are equivalent: keep one of each.
        ones, others = (
            positions[np.unique(rows.thread[positions] + (party[positions] << 12), return_index=True)[1]]
            for positions in (ones, others)
        )
    # One number per warp of the grid: a block has at most 1024 threads.
    home = rows.block << 12 | rows.thread >> WARP_SHIFT
    far, tried = len(distinct(home[np.concatenate([ones, others])])) > 1, 0
    for wants_far in (True, False) if far else (False,):
        for i in ones:
            for j in others[(party[others] != party[i]) & ((home[others] != home[i]) | (not wants_far))]:
                if order is None or not in_order(rows, i, j, order):
                    return i, j
                tried += 1
                if tried > MOST_PAIRS:
                    return None
    return None


# --- ordering by the program --------------------------------------------------------------------------------


def in_order(rows, i, j, order):
    """Return whether the program orders the accesses at i and j, rather than merely this run's schedule.

    rows: all accesses to the cell.
    """
    if rows.position[i] > rows.position[j]:
        i, j = j, i
    if rows.action[i] in ATOMICS and rows.action[j] not in ATOMICS and follows_atomic(rows, i, j):
        return True
    return order.before(rows.row(i), rows.row(j))


def follows_atomic(rows, i, j):
    """Return whether a later atomic orders the access j after the atomic i.

    The later atomic must be executed before j by j's own thread, or by another thread before a barrier that
    precedes j. It observed the effect of i.
    """
    element = (rows.address == rows.address[i]) & (rows.size == rows.size[i])
    mine = element & atomic(rows) & (rows.block == rows.block[j])
    mine &= rows.position > rows.position[i]
    own = (rows.thread == rows.thread[j]) & (rows.position < rows.position[j])
    return bool((mine & (own | (rows.epoch < rows.epoch[j]))).any())


def unordered_pairs(cells, order):
    """Return, for each cell, an unordered pair of accesses (Rows), or None."""
    rows, cache = cells.rows, {}

    # The order only depends on the segments, so cache it per pair of segments.
    def ordered(i, j):
        pair = int(rows.segment[i]), int(rows.segment[j])
        if pair not in cache:
            cache[pair] = order.before(rows.row(i), rows.row(j))
        return cache[pair]

    found = []
    for cell in range(len(cells.address)):
        members = cells.members(cell)
        members = members[np.argsort(rows.position[members], kind="stable")]
        pairs = (
            successive(rows, cells.party, members.tolist())
            if not atomic(rows)[members].any()
            else with_atomics(rows, cells.party, members)
        )
        found.append(next(((rows.row(i), rows.row(j)) for i, j in pairs if not ordered(i, j)), None))
    return found


def successive(rows, party, members):
    """Yield pairs of plain accesses to a cell.

    It suffices to compare each access with the last write, and each write with the reads since then, because
    the order is transitive.
    """
    write, reads = None, []
    for i in members:
        if write is not None and party[write] != party[i]:
            yield write, i
        if rows.action[i] == LOAD:
            reads.append(i)
        else:
            yield from ((read, i) for read in reads if party[read] != party[i])
            write, reads = i, []


def with_atomics(rows, party, members):
    """Yield the pairs of accesses to a cell that must be ordered, if some accesses are atomic."""
    here = rows[members]
    changing, plain = here.action == ATOMIC, np.flatnonzero(~atomic(here)).tolist()
    yield from successive(rows, party, members[plain].tolist())
    who = here.block.astype(np.int64) << 12 | here.thread
    for j in plain:
        competing = changing if here.action[j] == LOAD else atomic(here)
        atomics = np.flatnonzero(competing & (party[members] != party[members[j]]))
        earlier, later = atomics[atomics < j], atomics[atomics > j]
        # Per thread, only the last atomic before the access and the first one after it need a check.
        last = earlier[len(earlier) - 1 - np.unique(who[earlier][::-1], return_index=True)[1]]
        first = later[np.unique(who[later], return_index=True)[1]]
        yield from ((members[i], members[j]) for i in last if not follows_atomic(here, i, j))
        yield from ((members[j], members[i]) for i in first)
    if not one_element(here):
        yield from overlapping_atomics(here, party, members)


def overlapping_atomics(here, party, members):
    """Yield pairs of atomics on elements that overlap but are not equal. Such atomics are not atomic with
    respect to each other.

    For each atomic, the last earlier one by each other thread is sufficient.
    """
    who = here.block.astype(np.int64) << 12 | here.thread
    for j in np.flatnonzero(atomic(here)).tolist():
        other = (here.address[:j] != here.address[j]) | (here.size[:j] != here.size[j])
        competing = atomic(here) if here.action[j] == ATOMIC else here.action == ATOMIC
        before = np.flatnonzero(competing[:j] & other & (party[members[:j]] != party[members[j]]))
        last = before[len(before) - 1 - np.unique(who[before][::-1], return_index=True)[1]]
        yield from ((members[i], members[j]) for i in last)
