"""Pairs of accesses to the same bytes: which pairs race, and which pair a finding describes."""

from itertools import combinations

import numpy as np

from sim.events import ATOMIC, LOAD, STORE
from sim.observers.cells import ATOMIC_LOAD, sorted_distinct

# The maximum number of pairs in which the lowest racing threads are searched. After that, any racing pair is
# used.
MAX_PAIRS = 4096
WARP_SHIFT = 5
WORD = 4  # size in bytes of the word on which libcu++ emulates smaller atomics
ATOMICS = ATOMIC, ATOMIC_LOAD  # the values of Rows.action for atomic accesses


def closeness(a, b):
    """Return 0 for threads in different blocks, 1 for different warps of a block, and 2 for the same warp."""
    return 0 if a.block != b.block else 1 if a.thread >> WARP_SHIFT != b.thread >> WARP_SHIFT else 2


def both_store(pairs):
    """Return whether some racing pair consists of two stores."""
    return any(one & 3 == other & 3 == STORE for one, other in pairs)


def stores_again(rows, row):
    """Return whether the thread that made a store later stores to the same cell again."""
    own = (rows.thread == row.thread) & (rows.block == row.block)
    return row.site & 3 == STORE and bool(
        (own & (rows.position > row.position) & (rows.action == STORE)).any()
    )


def may_race(rows):
    """Return whether accesses to one byte can race: at least one of them writes, and they are not all atomics
    on one element."""
    actions = set(rows.action.tolist())
    if actions.isdisjoint({STORE, ATOMIC}):
        return False
    return not actions <= {ATOMIC, ATOMIC_LOAD} or not one_element(rows[~narrow_load(rows)])


def write_equal_values(rows, party, chosen, order):
    """Return whether all chosen accesses write the same value to the same element. Two accesses that write
    different values are permitted if the program orders them."""
    positions = np.flatnonzero(chosen)
    if all(stores_same_value(rows, positions[0], i) for i in positions):
        return True
    unlike = (
        (i, j)
        for i, j in combinations(positions, 2)
        if party[i] != party[j] and not stores_same_value(rows, i, j)
    )
    return order is not None and all(
        tried < MAX_PAIRS and in_order(rows, i, j, order) for tried, (i, j) in enumerate(unlike)
    )


def stores_same_value(rows, i, j):
    """Return whether two writes store the same value to the same element. NaN equals NaN here."""
    a, b = rows.value[i], rows.value[j]
    where = rows.address[i] == rows.address[j] and rows.size[i] == rows.size[j]
    return where and (a == b or (a != a and b != b))


def atomic_mask(rows):
    """Return a mask of the atomic accesses."""
    return (rows.action == ATOMICS[0]) | (rows.action == ATOMICS[1])


def narrow_load(rows):
    """Return a mask of the atomic loads narrower than a word.

    libcu++ implements atomics on 8 and 16 bits by such loads and by compare-and-swap on the surrounding word.
    The compare-and-swap changes all loaded bytes at once, so a load sees either none or all of the change.
    """
    return (rows.action == ATOMIC_LOAD) & (rows.size < WORD)


def one_element(rows):
    return len(set(rows.address.tolist())) == 1 and len(set(rows.size.tolist())) == 1


def first_pair(rows, party, ones, others, order):
    """Return the first unordered pair of accesses by different parties, or None.

    Pairs of low threads come first, and a pair from different warps is preferred.

    ones, others: the positions of the candidate accesses for the two members of the pair.
    order: the HappensBefore, or None if nothing can be ordered.
    """
    if order is None:  # without an order, all accesses of a thread are equivalent, so keep one per thread
        ones, others = (
            positions[np.unique(rows.thread[positions] + (party[positions] << 12), return_index=True)[1]]
            for positions in (ones, others)
        )
    # Number the warps of the grid. A block has at most 1024 threads.
    home = rows.block << 12 | rows.thread >> WARP_SHIFT
    far, tried = len(sorted_distinct(home[np.concatenate([ones, others])])) > 1, 0
    for wants_far in (True, False) if far else (False,):
        for i in ones:
            for j in others[(party[others] != party[i]) & ((home[others] != home[i]) | (not wants_far))]:
                if order is None or not in_order(rows, i, j, order):
                    return i, j
                tried += 1
                if tried > MAX_PAIRS:
                    return None
    return None


# --- ordering by the program --------------------------------------------------------------------------------


def in_order(rows, i, j, order):
    """Return whether the program orders the accesses at i and j. The schedule of this run alone does not
    count.

    rows: all accesses to the cell.
    """
    if rows.position[i] > rows.position[j]:
        i, j = j, i
    after_atomic = order.atomics_order and rows.action[i] in ATOMICS and rows.action[j] not in ATOMICS
    if after_atomic and follows_atomic(rows, np.array([i]), j)[0]:
        return True
    return order.before(rows.row(i), rows.row(j))


def follows_atomic(rows, atomics, j):
    """Return a mask of the `atomics` that a later atomic orders before the access j.

    The later atomic must have read the effect of the earlier atomic. It must be executed by j's own thread
    before j, or by another thread of the block before a barrier that precedes j.
    """
    own = (rows.thread == rows.thread[j]) & (rows.position < rows.position[j])
    mine = atomic_mask(rows) & (rows.block == rows.block[j]) & (own | (rows.epoch < rows.epoch[j]))
    last = {}  # element -> the position of the last such atomic on it
    columns = rows.address[mine], rows.size[mine], rows.position[mine]
    for address, size, position in zip(*(column.tolist() for column in columns)):
        last[address, size] = max(position, last.get((address, size), -1))
    columns = rows.address[atomics], rows.size[atomics], rows.position[atomics]
    later = [last.get((a, s), -1) > p for a, s, p in zip(*(column.tolist() for column in columns))]
    return np.array(later, bool)


def unordered_pairs(cells, order):
    """Return a list with one entry per cell: the positions of two accesses that nothing orders, or None."""
    if not len(cells.address):
        return []
    cells, numbers = cells.distinct()
    pairs = pairs_of_distinct(cells, order)
    return [pairs[number] for number in numbers]


def pairs_of_distinct(cells, order):
    """Return the list of `unordered_pairs` for Cells in which no cell has the same accesses as the cell
    before it."""
    rows, party = cells.rows, cells.party
    row, bounds = cells.in_order()
    # Most cells have no such pair. Only the cells that may have one are searched for their first pair.
    has_atomics = np.logical_or.reduceat(atomic_mask(rows)[row], bounds[:-1])
    simple = ~has_atomics | (np.diff(bounds) == 2)
    suspect = ~simple | has_unordered(rows, party, row, bounds, simple, order)
    # Thousands of cells of an array often have the same sequence of plain accesses. Only these columns
    # determine the result, so each sequence is examined once. `judged` maps a sequence to the positions of
    # its unordered pair, or to None.
    columns, judged, found = np.column_stack([rows.segment[row], rows.action[row], party[row]]), {}, []
    cache = {}

    # The order depends only on the segments of the accesses, so cache it for each pair of segments.
    def ordered(i, j):
        pair = int(rows.segment[i]), int(rows.segment[j])
        if pair not in cache:
            cache[pair] = order.before(rows.row(i), rows.row(j))
        return cache[pair]

    for first, last, mixed, searched in zip(bounds, bounds[1:], has_atomics.tolist(), suspect.tolist()):
        if not searched:
            found.append(None)
            continue
        members, sequence = row[first:last], columns[first:last].tobytes()
        if mixed or sequence not in judged:
            if mixed:
                pairs = pairs_with_atomics(rows, party, members, order.atomics_order)
            else:
                members = members.tolist()  # single elements of a numpy array are slow to read
                pairs = successive_pairs(rows, party, members)
            racing = (pair for pair in pairs if not ordered(*pair))
            pair = next(racing, None)
            if not mixed:
                judged[sequence] = pair and [members.index(i) for i in pair]
        else:
            pair = judged[sequence] and tuple(members[place] for place in judged[sequence])
        found.append(pair)
    return found


def has_unordered(rows, party, row, bounds, simple, order):
    """Return a mask of the simple cells that have an unordered pair.

    row, bounds: the result of Cells.in_order.
    simple: a mask of the cells for which `successive_pairs` suffice, because a cell has no atomic accesses or
        only two accesses.
    """
    lengths, at = np.diff(bounds), np.arange(len(row))
    cell, writes = np.repeat(np.arange(len(lengths)), lengths), rows.action[row] != LOAD
    # the last write before each access, and the first write at or after it
    before = np.concatenate([[-1], np.maximum.accumulate(np.where(writes, at, -1))[:-1]])
    after = np.minimum.accumulate(np.where(writes, at, len(row))[::-1])[::-1]
    follows = at[before >= np.array(bounds[:-1])[cell]]
    precedes = at[~writes & (after < np.array(bounds[1:])[cell])]
    one, other = np.concatenate([before[follows], precedes]), np.concatenate([follows, after[precedes]])
    keep = (party[row[one]] != party[row[other]]) & simple[cell[one]]
    cell, one, other = cell[one[keep]], row[one[keep]], row[other[keep]]
    key = rows.segment[one] << 32 | rows.segment[other]
    _, chosen, back = np.unique(key, return_index=True, return_inverse=True)
    ordered = map(order.before, rows.listed(one[chosen]), rows.listed(other[chosen]))
    result = np.zeros(len(lengths), bool)
    result[cell[~np.fromiter(ordered, bool, len(chosen))[back]]] = True
    return result


def successive_pairs(rows, party, members):
    """Yield pairs of plain accesses to a cell.

    The order is transitive. It therefore suffices to compare each access with the last write, and each write
    with the reads since then.
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


def pairs_with_atomics(rows, party, members, atomics_order):
    """Yield the pairs of accesses that must be ordered, for a cell with some atomic accesses.

    atomics_order: the value of HappensBefore.atomics_order.
    """
    here = rows[members]
    changing, plain = here.action == ATOMIC, np.flatnonzero(~atomic_mask(here)).tolist()
    yield from successive_pairs(rows, party, members[plain].tolist())
    who = here.block.astype(np.int64) << 12 | here.thread
    for j in plain:
        competing = changing if here.action[j] == LOAD else atomic_mask(here)
        atomics = np.flatnonzero(competing & (party[members] != party[members[j]]))
        earlier, later = atomics[atomics < j], atomics[atomics > j]
        # For each thread, check only its last atomic before the access and its first atomic after it.
        last = earlier[len(earlier) - 1 - np.unique(who[earlier][::-1], return_index=True)[1]]
        first = later[np.unique(who[later], return_index=True)[1]]
        if atomics_order:
            last = last[~follows_atomic(here, last, j)]
        yield from ((members[i], members[j]) for i in last)
        yield from ((members[j], members[i]) for i in first)
    if not one_element(here):
        yield from overlapping_atomic_pairs(here, party, members)


def overlapping_atomic_pairs(here, party, members):
    """Yield pairs of atomics on different but overlapping elements. They are not atomic with respect to each
    other.

    For each atomic, it suffices to examine the last earlier atomic of each other thread.
    """
    who, elements = here.block.astype(np.int64) << 12 | here.thread, atomic_mask(here) & ~narrow_load(here)
    for j in np.flatnonzero(elements).tolist():
        other = (here.address[:j] != here.address[j]) | (here.size[:j] != here.size[j])
        competing = elements if here.action[j] == ATOMIC else here.action == ATOMIC
        before = np.flatnonzero(competing[:j] & other & (party[members[:j]] != party[members[j]]))
        last = before[len(before) - 1 - np.unique(who[before][::-1], return_index=True)[1]]
        yield from ((members[i], members[j]) for i in last)


def common_barrier(calls, block, a, b):
    """Return (number, count) of a named barrier that the threads of two accesses call, or None.

    calls: {(block, thread): set of such pairs}.
    block: the index of the block of `a`.
    """
    both = [calls.get((block, row.thread), set()) for row in (a, b)] if a.block == b.block else [set()]
    return min(set.intersection(*both), default=None)
