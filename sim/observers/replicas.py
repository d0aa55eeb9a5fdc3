"""Loads of the same element by several threads of a Triton program, which do not race with a later store.

If a tile has fewer elements than a program has threads, or if a value is a scalar, Triton lets several
threads load each element, and lets one of these threads store it. In the order of the program, the store
comes after all of these loads. A thread that loads late receives the stored value, but this has no effect:
only the thread that stores uses its loaded value.
"""

import numpy as np

from sim.events import ATOMIC, GLOBAL, LOAD, SHARED, SPACE_SHIFT, STORE


def replicated_loads(rows):
    """Return a mask of the loads that race only with stores that follow the same load by their own thread.

    The k-th load of an element at a site by one thread corresponds to the k-th load by another thread there.

    rows: the accesses of a block between two barriers.
    """
    mask = np.zeros(len(rows), bool)
    of_global = np.flatnonzero(rows.address >> SPACE_SHIFT == GLOBAL)
    writes = np.isin(rows.action[of_global], (STORE, ATOMIC))
    if not writes.any() or writes.all():
        return mask
    # A cell is as wide as the narrowest access.
    shift = int(rows.size[of_global].min()).bit_length() - 1
    row, cell = expanded(rows, of_global, shift)
    is_load = rows.action[row] == LOAD
    shared = np.isin(cell, np.intersect1d(cell[is_load], cell[~is_load]))
    order = np.lexsort((rows.position[row[shared]], cell[shared]))
    row, cell = row[shared][order], cell[shared][order]
    excused, accused = [], []
    for members in np.split(row, np.flatnonzero(np.diff(cell)) + 1):
        for load, is_excused in judge(rows, members):
            (excused if is_excused else accused).append(load)
    mask[excused] = True
    mask[accused] = False
    return mask


def expanded(rows, chosen, shift):
    """Return (row, cell) for every cell of 1 << shift bytes that a chosen row accesses."""
    count = np.maximum(rows.size[chosen] >> shift, 1)
    row = np.repeat(chosen, count)
    begins = np.cumsum(count) - count
    return row, (rows.address[row] >> shift) + np.arange(len(row)) - np.repeat(begins, count)


def judge(rows, members):
    """Yield (row, whether no write races with it) for each load of a cell to which another thread writes.

    members: the accesses to the cell, in the order of execution.
    """
    threads, sites = rows.thread[members].tolist(), rows.site[members].tolist()
    actions = rows.action[members].tolist()
    loads, writes, turns = {}, [], []
    for at, (thread, site, action) in enumerate(zip(threads, sites, actions)):
        own = loads.setdefault((site, thread), [])
        turns.append(len(own))
        if action == LOAD:
            own.append(at)
        elif action in (STORE, ATOMIC):
            writes.append((thread, at))
    for at, (thread, site, action, turn) in enumerate(zip(threads, sites, actions, turns)):
        others = [write for write in writes if write[0] != thread] if action == LOAD else ()
        if others:
            same = ((loads.get((site, writer), ()), written) for writer, written in others)
            yield members[at], all(turn < len(own) and own[turn] < written for own, written in same)


def is_replicated_store(address, one, other):
    """Return whether two stores to shared memory at these sites write copies of the same sum. Triton's
    compiler generates such code.

    All lanes that hold a sum store it. If the last product is fused into the sum, the lanes' values can
    differ in their last bits.
    """
    return one == other and address >> SPACE_SHIFT == SHARED
