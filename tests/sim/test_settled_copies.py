"""Tests of the quick test that settles most accesses near asynchronous copies."""

import numpy as np
import pytest

from sim.events import LOAD, STORE, Copy, Moment
from sim.observers.cells import Rows
from sim.observers.copies import LINE_SHIFT, NEVER, ByteRange, Flight, Flights, Successive, copies_thread
from sim.observers.order import HappensBefore

THREADS, WORDS, STEPS = 4, 6, 300


def random_epoch(random):
    """Return (Rows, {(address, size): Successive}, HappensBefore) for random copies, waits and accesses of
    one block."""
    order, places, accesses, pending, phase = HappensBefore(), {}, [], {}, 0
    for segment in range(1, STEPS):
        thread, word = int(random.integers(THREADS)), int(random.integers(WORDS))
        at, event = Moment(0, 0, thread, segment), random.integers(8)
        size = int(random.choice([4, 16]))
        address = 4 * word & -size
        if event == 0:
            flight = Flight((0, 0, 0), Copy(address, size, 0), at)
            places.setdefault((address, size), Successive(ByteRange(address, size, True))).add(flight)
            pending.setdefault(thread, []).append(flight)
        elif event == 1:
            end = at if random.random() < 0.5 else Moment(0, NEVER, copies_thread(thread), segment)
            for flight in pending.get(thread, ()):
                flight.ends.append(end)
            if end is not at:
                order.track_copies(*at, (("barrier", 0, 0), phase))
        elif event == 2:
            order.arrive(*at, (("barrier", 0, 0), phase))
        elif event == 3:
            order.pass_barrier(*at, (("barrier", 0, 0), phase))
            phase += random.random() < 0.3
        else:
            accesses.append((0, 0, thread, segment, int(random.choice([LOAD, STORE])), 4 * word, 4, segment))
    columns = np.array(accesses).T
    return Rows(*columns, np.zeros(len(accesses), object), columns[4]), places, order


def conflicts(row, address, places, order):
    """Return the copies that an access of 4 bytes conflicts with."""
    return [
        flight
        for (begin, size), copies in places.items()
        for flight in copies.under_way(row, order, {})
        if begin < address + 4 and address < begin + size
    ]


@pytest.mark.parametrize("seed", range(6))
def test_an_access_that_conflicts_with_a_copy_is_not_settled(seed):
    rows, places, order = random_epoch(np.random.default_rng(seed))
    by_line = {}
    for copies in places.values():
        by_line.setdefault(copies.place.address >> LINE_SHIFT, []).append(copies)
    lines = rows.address >> LINE_SHIFT
    chosen = np.flatnonzero(np.isin(lines, [*by_line]))
    near = Flights.near_copies(rows, chosen, lines[chosen], by_line, order, {})
    wanted = [bool(conflicts(rows.row(i), int(rows.address[i]), places, order)) for i in chosen]
    assert np.all(near | ~np.array(wanted))
    assert any(wanted) and not near.all()


def test_ordered_reads_need_no_search(monkeypatch):
    """Let each thread copy one word in each of three rounds, and read its own word after its own wait, and
    the words of all threads in the phase that follows. Let it also read all words before the first copy."""
    order, places, segment = HappensBefore(), {}, THREADS
    accesses = [(thread, thread, other) for thread in range(THREADS) for other in range(THREADS)]
    for step in range(3):
        for thread in range(THREADS):
            segment += 3
            flight = Flight((0, 0, 0), Copy(4 * thread, 4, 0), Moment(0, 0, thread, segment - 2))
            places.setdefault(thread, Successive(ByteRange(4 * thread, 4, True))).add(flight)
            order.track_copies(0, 0, thread, segment - 1, (("full", 0, 0), step))
            flight.ends.append(Moment(0, NEVER, copies_thread(thread), segment - 1))
            flight.ends.append(Moment(0, 0, thread, segment - 1))
            accesses.append((thread, segment, thread))
        for thread in range(THREADS):
            segment += 2
            order.pass_barrier(0, 0, thread, segment - 1, (("full", 0, 0), step))
            order.arrive(0, 0, thread, segment, (("empty", 0, 0), step))
            accesses += [(thread, segment, other) for other in range(THREADS)]
        for thread in range(THREADS):
            segment += 1
            order.pass_barrier(0, 0, thread, segment, (("empty", 0, 0), step))
    thread, segment, word = np.array(accesses).T
    none, loads = 0 * word, np.full(len(word), LOAD)
    rows = Rows(none, none, thread, segment, loads, 4 * word, none + 4, segment, none.astype(object), loads)
    monkeypatch.setattr(Successive, "under_way", None)
    chosen = np.arange(len(accesses))
    assert not Flights.near_copies(rows, chosen, 0 * chosen, {0: [*places.values()]}, order, {}).any()


def test_copies_to_other_bytes_of_a_line_are_not_compared():
    """Let two threads copy one word each to one line, and let the second read its own word before a wait."""
    order, places = HappensBefore(), [Successive(ByteRange(4 * thread, 4, True)) for thread in range(2)]
    for thread, copies in enumerate(places):
        copies.add(Flight((0, 0, 0), Copy(4 * thread, 4, 0), Moment(0, 0, thread, thread)))
    places[0].under_way = None
    columns = np.array([[0, 0, 1, 2, LOAD, 4, 4, 2]]).T
    rows = Rows(*columns, np.zeros(1, object), columns[4])
    zeros = np.zeros(1, int)
    assert Flights.near_copies(rows, zeros, zeros, {0: places}, order, {}).tolist() == [True]
