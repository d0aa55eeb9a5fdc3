"""Accesses as parallel columns, and the cells (bytes or elements) that several parties touch."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.events import ATOMIC, GLOBAL, LOAD, SHARED, SITE_BITS, SPACE_SHIFT, STORE
from sim.observers.copies import LINE_SHIFT

FEW_ROWS = 64  # accesses of which it takes longer to leave some out than to keep all
ATOMIC_LOAD = 3  # the action of an atomic that only reads: a relaxed or acquiring load
MOST_CELLS = 512  # racy cells of one pattern that are looked at one by one; further ones are counted


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
    # LOAD, STORE, ATOMIC or ATOMIC_LOAD, as its site says; to other blocks an atomic for one block is plain
    action: np.ndarray

    @classmethod
    def of(cls, batch, written, block):
        """Accesses of `batch` to global memory, and those to `written` lines of shared memory."""
        space = batch.space
        keep = space == GLOBAL
        if len(written) and not keep.all():
            aligned = not (batch.address & (batch.size - 1)).any()
            keep |= (space == SHARED) & (np.isin(batch.address >> LINE_SHIFT, written) if aligned else True)
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

    def of_global_memory(self, once):
        """Accesses to global memory; `once`, if they are many: of several to one address from one site only
        the lowest thread's first and the highest's last, which stays."""
        chosen = np.flatnonzero(self.address >> SPACE_SHIFT == GLOBAL)
        if len(chosen) == len(self) <= FEW_ROWS:
            return self
        if once:
            chosen = chosen[np.argsort(self.thread[chosen].astype(np.int16), kind="stable")]
            key = self.address[chosen] << SITE_BITS | self.site[chosen]
            first, last = (np.unique(run, return_index=True)[1] for run in (key, key[::-1]))
            chosen = chosen[distinct(np.concatenate([first, len(key) - 1 - last]))]
        return self[chosen]


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
        chosen = (column[np.array(wanted, bool)] for column in (self.address, self.starts, self.ends))
        return Cells(self.rows, self.party, self.origin, *chosen)

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
        for one in distinct(pattern):
            alike = np.flatnonzero(pattern == one)
            yield alike[:MOST_CELLS].tolist(), max(0, len(alike) - MOST_CELLS)


def distinct(column):
    """np.unique of whole numbers, which takes three to ten times as long, by way of a hash table."""
    if len(column) and (column == column[0]).all():
        return column[:1]
    column = np.sort(column)
    return column[np.concatenate([column[:1] == column[:1], column[1:] != column[:-1]])]


def shared(cell, party):
    """Whether several parties touch one cell, or, where the numbers are too large to tell, may."""
    bits = int(party.max(initial=0)).bit_length()
    both = np.sort(cell << bits | party)  # what is too large for 64 bits makes cells alike
    return bool(((both[1:] != both[:-1]) & (both[1:] >> bits == both[:-1] >> bits)).any())


def racy_cells(rows, party):
    """Return the Cells that two parties touch, one of them writing and not both atomically."""
    cell, origin = rows.address, np.arange(len(rows.address))
    if len(distinct(rows.size)) > 1 or (rows.address % rows.size).any():  # per byte
        origin = np.repeat(origin, rows.size)
        begins = np.cumsum(rows.size) - rows.size
        cell = rows.address[origin] + np.arange(len(origin)) - begins[origin]
    action = rows.action[origin]
    keep = np.flatnonzero(np.isin(cell, cell[(action == STORE) | (action == ATOMIC)]))
    if not shared(cell[keep], party[origin[keep]]):
        return Cells(rows, party, origin[:0], cell[:0], origin[:0], origin[:0])
    keep = keep[np.lexsort((rows.thread[origin[keep]], party[origin[keep]], cell[keep]))]
    cell, origin, action = cell[keep], origin[keep], action[keep]
    starts = np.flatnonzero(np.concatenate([cell[:1] >= 0, cell[1:] != cell[:-1]]))
    ends = np.append(starts[1:], len(cell))
    parties = party[origin]
    several = np.minimum.reduceat(parties, starts) != np.maximum.reduceat(parties, starts)
    any_of = {k: np.logical_or.reduceat(action == k, starts) for k in (LOAD, STORE, ATOMIC)}
    # atomics of different widths are not atomic to each other
    element = rows.address[origin] << 4 | np.frexp(rows.size[origin])[1]
    mixed = np.minimum.reduceat(element, starts) != np.maximum.reduceat(element, starts)
    racy = several & (any_of[STORE] | any_of[ATOMIC] & (any_of[LOAD] | mixed))
    return Cells(rows, party, origin, cell[starts], starts, ends).those(racy)
