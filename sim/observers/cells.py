"""Accesses as parallel columns, and as cells. A cell is a byte or element accessed by several parties
(threads or blocks)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.events import ATOMIC, GLOBAL, LOAD, SHARED, SITE_BITS, SPACE_SHIFT, STORE
from sim.observers.copies import LINE_SHIFT

FEW_ROWS = 64  # up to this number of accesses, a filter costs more time than it saves
ATOMIC_LOAD = 3  # the action of an atomic that only reads: a relaxed or acquire load
MAX_CELLS = 64  # the maximum number of racy cells examined per pattern; further ones are only counted


class Row(NamedTuple):
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
    """Accesses to shared and global memory, as parallel arrays.

    block: the number of the block.
    position: the rank of the access among all accesses of the launch.
    value: the written value, as an object, or None for a load.
    action: LOAD, STORE, ATOMIC or ATOMIC_LOAD. Between blocks, an atomic of block scope counts as a plain
        access.
    """

    block: np.ndarray
    epoch: np.ndarray
    thread: np.ndarray
    segment: np.ndarray
    site: np.ndarray
    address: np.ndarray
    size: np.ndarray
    position: np.ndarray
    value: np.ndarray
    action: np.ndarray

    @classmethod
    def of(cls, batch, written, block):
        """Return the Rows of a batch: all of its accesses to global memory, and its accesses to the given
        lines of shared memory.

        written: the numbers of the 16-byte lines of shared memory.
        block: the number of the block.
        """
        space = batch.space
        keep = space == GLOBAL
        if len(written) and not keep.all():
            # An unaligned access can extend over two lines, so the line of its first byte does not suffice.
            aligned = not (batch.address & (batch.size - 1)).any()
            keep |= (space == SHARED) & (is_among(batch.address >> LINE_SHIFT, written) if aligned else True)
        keep = slice(None) if keep.all() else np.flatnonzero(keep)
        value = np.empty(len(batch.address), object)
        value[np.flatnonzero(batch.action != LOAD)] = batch.values
        thread = batch.thread[keep]
        return cls(
            np.full(len(thread), block),
            np.full(len(thread), batch.epoch),
            thread,
            *(getattr(batch, name)[keep] for name in ("segment", "site", "address", "size", "position")),
            value[keep],
            batch.action[keep],
        )

    def __len__(self):
        return len(self.address)

    @classmethod
    def joined(cls, parts):
        columns = zip(*(vars(part).values() for part in parts))
        return parts[0] if len(parts) == 1 else cls(*map(np.concatenate, columns))

    def __getitem__(self, selection):
        return Rows(*(column[selection] for column in vars(self).values()))

    def row(self, i):
        columns = self.block, self.epoch, self.thread, self.segment, self.site, self.position
        return Row(*(int(column[i]) for column in columns), self.value[i])

    def listed(self, positions):
        """Return a list of the Rows at several positions."""
        columns = self.block, self.epoch, self.thread, self.segment, self.site, self.position, self.value
        return list(map(Row._make, zip(*(column[positions].tolist() for column in columns))))

    def of_global_memory(self, once):
        """Return the accesses to global memory.

        once: whether to keep only two accesses per address and site: the first access of the lowest thread,
            and the last access of the highest thread, which determines the final value.
        """
        chosen = np.flatnonzero(self.address >> SPACE_SHIFT == GLOBAL)
        if len(chosen) == len(self) <= FEW_ROWS:
            return self
        if once:
            chosen = chosen[np.argsort(self.thread[chosen].astype(np.int16), kind="stable")]
            key = self.address[chosen] << SITE_BITS | self.site[chosen]
            first, last = (np.unique(run, return_index=True)[1] for run in (key, key[::-1]))
            chosen = chosen[sorted_distinct(np.concatenate([first, len(key) - 1 - last]))]
        return self[chosen]


@dataclass(frozen=True)
class Cells:
    """Cells, and the accesses to each of them. A cell is a byte, or an element if every access covers a whole
    element.

    The rows `origin[starts[c]:ends[c]]` access cell c. They are sorted by party and then by thread.

    are_bytes: whether a cell is a byte.
    """

    rows: Rows
    party: np.ndarray  # the party of each row
    origin: np.ndarray
    address: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    are_bytes: bool

    def members(self, cell):
        return self.origin[self.starts[cell] : self.ends[cell]]

    def in_order(self):
        """Return (rows, bounds): the rows `rows[bounds[c]:bounds[c + 1]]` access cell c, sorted by
        position."""
        cell, row = self.flat()
        bounds = np.cumsum(self.ends - self.starts).tolist()
        return row[np.lexsort((self.rows.position[row], cell))], [0, *bounds]

    def flat(self):
        """Return (number of the cell, row) for each access to each cell, in the order of the cells."""
        lengths = self.ends - self.starts
        cell = np.repeat(np.arange(len(lengths)), lengths)
        return cell, self.origin[np.repeat(self.ends - np.cumsum(lengths), lengths) + np.arange(len(cell))]

    def any_access(self, mask):
        """Return a mask of the cells with an access in `mask`, a mask of the rows."""
        cell, row = self.flat()
        return np.bincount(cell[mask[row]], minlength=len(self.address)) > 0

    def distinct(self):
        """Return (Cells, numbers): the Cells without duplicates, and the index of each cell's representative
        in them. A duplicate has exactly the same accesses as the cell before it. An example is the second
        byte of an element."""
        (cell, row), lengths = self.flat(), self.ends - self.starts
        longer = np.diff(lengths, prepend=-1) != 0
        before = np.arange(len(row)) - lengths[cell]
        differs = longer[cell] | (row != row[before])
        new = np.logical_or.reduceat(differs, np.cumsum(lengths) - lengths)
        return self.select(new), (np.cumsum(new) - 1).tolist()

    def select(self, wanted):
        """Return the Cells for which the boolean mask `wanted` is True."""
        chosen = (column[np.array(wanted, bool)] for column in (self.address, self.starts, self.ends))
        return Cells(self.rows, self.party, self.origin, *chosen, self.are_bytes)

    def patterns(self, always=False):
        """Yield (hash of the access pattern, cells with this pattern) for each pattern.

        Two cells have the same pattern if three sets of sites are equal for them: the sites that access the
        cell, the sites at which several parties access it, and the sites at which the lowest party does.

        always: whether to distinguish patterns even for a small number of cells. Otherwise, these form one
            group, with the hash None.
        """
        if not len(self.address):
            return
        if len(self.address) <= MAX_CELLS and not always:
            yield None, range(len(self.address))
            return
        cell, row = self.flat()
        order = np.lexsort((self.rows.site[row], cell))
        cell, site, party = cell[order], self.rows.site[row[order]], self.party[row[order]]
        firsts = np.flatnonzero(np.diff(cell, prepend=-1) | np.diff(site, prepend=-1))
        low, high = np.minimum.reduceat(party, firsts), np.maximum.reduceat(party, firsts)
        of_cell = np.flatnonzero(np.diff(cell[firsts], prepend=-1))
        lowest = np.repeat(np.minimum.reduceat(low, of_cell), np.diff(of_cell, append=len(firsts)))
        # Sum, over the sites of the cell, a multiplicative hash of (site, whether several parties access it,
        # lowest party), so that the order of the sites does not matter.
        mark = (
            site[firsts].astype(np.uint64) << np.uint64(2)
            | (low != high).astype(np.uint64) << np.uint64(1)
            | (low == lowest).astype(np.uint64)
        ) * np.uint64(0x9E3779B97F4A7C15)
        pattern = np.add.reduceat(mark ^ mark >> np.uint64(29), of_cell)
        for one in sorted_distinct(pattern):
            yield int(one), np.flatnonzero(pattern == one).tolist()


def pick_evenly(cells, most):
    """Return up to `most` of these cells: the first cells, and others at regular intervals."""
    if len(cells) <= most:
        return cells
    first = -(-most // 2)
    return [*cells[:first], *(cells[i] for i in np.linspace(first, len(cells) - 1, most - first).astype(int))]


def sorted_distinct(column):
    """Return the sorted distinct values of an integer array.

    np.unique uses a hash table, and takes three to ten times as long.
    """
    if len(column) and np.count_nonzero(column == column[0]) == len(column):
        return column[:1]
    column = np.sort(column)
    first = np.ones(len(column), bool)
    np.not_equal(column[1:], column[:-1], first[1:])
    return column[first]


def is_among(column, numbers):
    """Return a mask of the entries of an integer array that occur in `numbers`, a sorted array that is not
    empty.

    np.isin takes several times as long for the few accesses of an epoch.
    """
    return numbers[np.minimum(numbers.searchsorted(column), len(numbers) - 1)] == column


def has_shared_cell(cell, party):
    """Return whether several parties access one cell.

    If the packed numbers do not fit into 64 bits, the result can be True by mistake, but never False by
    mistake.
    """
    if not len(cell):
        return False
    bits = int(party.max()).bit_length()
    # If the highest bits are lost, numbers of different cells can become equal, but equal numbers stay equal.
    both = cell << bits | party
    both.sort()
    # The exclusive or of equal neighbours is 0, and 0 - 1 is the largest unsigned number.
    unlike = (both[1:] ^ both[:-1]) - 1
    return np.count_nonzero(unlike.view(np.uint64) < (1 << bits) - 1) > 0


def only_atomic(rows):
    """Return a mask of the 8-byte atomics on bytes that only such atomics access. They cannot race. The bytes
    of an mbarrier are an example."""
    atomic = (rows.action == ATOMIC) | (rows.action == ATOMIC_LOAD)
    atomic &= (rows.size == 8) & (rows.address & 7 == 0)
    if not atomic.any():
        return atomic
    begin = rows.address[~atomic]
    others = sorted_distinct(np.concatenate([begin >> 3, begin + rows.size[~atomic] - 1 >> 3]))
    return atomic & ~is_among(rows.address >> 3, others) if len(others) else atomic


def near_writes(rows):
    """Return a mask of the accesses to 16-byte lines that a store or an atomic also accesses. The other
    accesses are loads that cannot race.

    A kernel that searches a long table makes millions of loads, and almost none of them accesses such a line.
    An access of up to 16 bytes touches at most two lines. If there are larger accesses, the mask contains all
    accesses.
    """
    if (rows.size > 16).any():
        return np.ones(len(rows.size), bool)
    first, last = rows.address >> 4, rows.address + rows.size - 1 >> 4
    writes = np.flatnonzero((rows.action == STORE) | (rows.action == ATOMIC))
    written = sorted_distinct(np.concatenate([first[writes], last[writes]]))
    if not len(written):
        return np.zeros(len(first), bool)
    return is_among(first, written) | is_among(last, written)


def racy_cells(rows, party):
    """Return the Cells that two parties access, if at least one of the accesses is a write and not all of
    them are atomic."""
    origin = np.flatnonzero(~only_atomic(rows))
    cell, size = rows.address[origin], rows.size[origin]
    # For accesses of mixed sizes, or unaligned ones, a cell is a byte.
    are_bytes = len(sorted_distinct(rows.size)) > 1 or bool((rows.address & rows.size - 1).any())
    if are_bytes:
        origin = origin[near_writes(rows)[origin]]
        cell, size = rows.address[origin], rows.size[origin]
        origin = np.repeat(origin, size)
        cell = np.repeat(cell - np.cumsum(size) + size, size) + np.arange(len(origin))
    action = rows.action[origin]
    written = sorted_distinct(cell[(action == STORE) | (action == ATOMIC)])
    keep = np.flatnonzero(is_among(cell, written)) if len(written) else origin[:0]
    # Try a cheap test first: in most epochs, no cell is accessed by two parties.
    if not has_shared_cell(cell[keep], party[origin[keep]]):
        return Cells(rows, party, origin[:0], cell[:0], origin[:0], origin[:0], are_bytes)
    keep = keep[np.lexsort((rows.thread[origin[keep]], party[origin[keep]], cell[keep]))]
    cell, origin, action = cell[keep], origin[keep], action[keep]
    starts = np.flatnonzero(np.concatenate([cell[:1] >= 0, cell[1:] != cell[:-1]]))
    ends = np.append(starts[1:], len(cell))
    parties = party[origin]
    several = np.minimum.reduceat(parties, starts) != np.maximum.reduceat(parties, starts)
    any_of = {k: np.logical_or.reduceat(action == k, starts) for k in (LOAD, STORE, ATOMIC)}
    # Atomics of different widths are not atomic with respect to each other.
    element = rows.address[origin] << 4 | np.frexp(rows.size[origin])[1]
    mixed = np.minimum.reduceat(element, starts) != np.maximum.reduceat(element, starts)
    racy = several & (any_of[STORE] | any_of[ATOMIC] & (any_of[LOAD] | mixed))
    return Cells(rows, party, origin, cell[starts], starts, ends, are_bytes).select(racy)
