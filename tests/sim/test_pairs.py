"""Tests of the search for pairs of accesses that nothing orders."""

import numpy as np
import pytest

from sim.events import ATOMIC, LOAD
from sim.observers import pairs
from sim.observers.cells import Rows, racy_cells
from sim.observers.order import HappensBefore

BLOCKS = 4


@pytest.mark.parametrize("acquired", [BLOCKS, 2])
def test_two_accesses_of_which_one_is_atomic(acquired, monkeypatch):
    """Let each block store an element by an atomic, execute a fence and increment a counter. A last block
    loads all elements, but has read the counter when only some of the blocks had incremented it."""
    order, accesses, searched = HappensBefore(), [], []
    for block in range(BLOCKS):
        accesses.append((block, 0, 0, 4 * block, ATOMIC, 16 * block, 4, block, ATOMIC))
        order.release(block, 0, 0, 4 * block + 1, "grid")
        order.perform_atomic(block, 0, 0, 4 * block + 2, 1024, True, "grid")
        if block == acquired - 1:
            order.perform_atomic(BLOCKS, 0, 0, 4 * block + 3, 1024, True, "grid")
    for block in range(BLOCKS):
        accesses.append((BLOCKS, 0, 0, 4 * BLOCKS, LOAD, 16 * block, 4, BLOCKS + block, LOAD))
    *columns, action = np.array(accesses).T
    rows = Rows(*columns, np.zeros(len(accesses), object), action)
    search = pairs.pairs_with_atomics
    monkeypatch.setattr(pairs, "pairs_with_atomics", lambda *given: searched.append(given) or search(*given))
    found = pairs.unordered_pairs(racy_cells(rows, rows.block), order)
    wanted = [None if block < acquired else (block, BLOCKS + block) for block in range(BLOCKS)]
    assert found == wanted and len(searched) == BLOCKS - acquired
