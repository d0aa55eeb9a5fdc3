"""Asynchronous copies under way: an access that comes behind the issue of a copy to the same bytes, but not
behind the wait for it, may meet either what was there or what arrives; and a write to what is copied may come
before or after the copy's reading.

Whether it comes behind is judged as for races: by the thread's own order, barriers, and what
sim.observers.order knows. An access that nothing orders with the issue is a race.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.events import ATOMIC, LOAD, SITES, STORE, Access, Copy, Finding, Moment, alias

# the widest access has 16 bytes: aligned accesses to different lines of 16 bytes do not meet
LINE_SHIFT = 4
WORDS = {LOAD: "read", STORE: "written", ATOMIC: "changed"}


@dataclass(eq=False)
class Flight:
    """A copy under way: of the block with this index, from one Moment to another, if that has come; of
    a Moment the block is a number."""

    index: tuple[int, int, int]
    copy: Copy
    begin: Moment
    end: Moment | None = None

    def places(self):
        """The bytes that it writes, and those that it reads, if any."""
        yield Place(self.copy.address, self.copy.size, True)
        if self.copy.source is not None:
            yield Place(self.copy.source, self.copy.read, False)

    def is_under_way(self, row, order):
        """Whether an access comes surely behind the issue, and not surely behind the wait."""
        return precedes(self.begin, row, order) and not (self.end and precedes(self.end, row, order))


def precedes(at, row, order):
    """Whether an access of the same block (a Row) is surely behind a Moment."""
    if row.thread == at.thread:
        return row.segment > at.segment
    return row.epoch > at.epoch or order.active and order.before(at, row)


class Place(NamedTuple):
    """Neighbouring bytes that a copy writes or reads."""

    address: int
    size: int
    is_written: bool


class Flights:
    """The copies under way in each block."""

    def __init__(self, context):
        self.context, self.under_way = context, {}  # number of a block -> {id of a Copy: Flight}

    def sent(self, at, block, copy):
        flight = Flight(at.block, copy, at._replace(block=block))
        self.under_way.setdefault(block, {})[id(copy)] = flight

    def received(self, at, block, copies):
        for copy in copies:
            self.under_way[block][id(copy)].end = at._replace(block=block)

    def lines(self, block):
        """The lines of bytes to which copies are under way."""
        flights = self.under_way.get(block, {}).values()
        return np.array([flight.copy.address >> LINE_SHIFT for flight in flights], np.int64)

    def epoch_ended(self, block, rows, order):
        """Findings of an epoch's accesses (Rows, or None); what has been waited for is forgotten."""
        flights = self.under_way.pop(block, {})
        if left := {key: flight for key, flight in flights.items() if flight.end is None}:
            self.under_way[block] = left
        return list(self.early(flights.values(), rows, order)) if flights and rows is not None else []

    def early(self, flights, rows, order):
        by_line = {}
        for flight in flights:
            for place in flight.places():
                by_line.setdefault(place.address >> LINE_SHIFT, []).append((flight, place))
        for i in np.flatnonzero(np.isin(rows.address >> LINE_SHIFT, list(by_line))).tolist():
            row, address, size = rows.row(i), int(rows.address[i]), int(rows.size[i])
            for flight, place in by_line[address >> LINE_SHIFT]:
                meets = address < place.address + place.size and place.address < address + size
                disturbs = place.is_written or row.site & 3 != LOAD
                if meets and disturbs and flight.is_under_way(row, order):
                    yield self.finding(row, max(address, place.address), flight, place)

    def finding(self, row, address, flight, place):
        element = self.context.space.element(address)
        did, begin = WORDS[row.site & 3], flight.begin
        reads = Access(did, flight.index, self.context.thread_index(row.thread), SITES[row.site], row.value)
        sent = Access("sent", flight.index, self.context.thread_index(begin.thread), SITES[flight.copy.site])
        own = row.thread == begin.thread
        direction, does = ("to", "arrives") if place.is_written else ("from", "reads")
        return Finding(
            "async-copy",
            "error",
            f"{element}{alias(reads, element.array)} is {did} while an asynchronous copy"
            f" {direction} it may be under way",
            (reads, sent),
            *element,
            reason=f"Such a copy {does} at any time until the thread that sent it waits for it.",
            fix="let the thread that sent the copy commit it and wait for it (cp.async.wait_group)"
            + (" before this line" if own else ", and all threads meet behind that: cuda.syncthreads()"),
        )
