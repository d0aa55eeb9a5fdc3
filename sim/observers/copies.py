"""Asynchronous copies under way: an access that comes behind the issue of a copy to the same bytes, but not
behind the wait for it, may meet either what was there or what arrives; and a write to what is copied may come
before or after the copy's reading.

Whether it comes behind is judged as for races: by the thread's own order, barriers, and what
sim.observers.order knows. An access that nothing orders with the issue is a race.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sim.events import ATOMIC, LOAD, SITES, STORE, Access, Copy, Finding, Moment, alias
from sim.observers.order import copies_of

# the widest access has 16 bytes: aligned accesses to different lines of 16 bytes do not meet
LINE_SHIFT = 4
NEVER = math.inf  # the epoch of an end that no barrier of the block makes known
WORDS = {LOAD: "read", STORE: "written", ATOMIC: "changed"}


@dataclass(eq=False)
class Flight:
    """A copy under way: of the block with this index, from one Moment to the first of others, if one has
    come; of a Moment the block is a number. A copy that an mbarrier tracks ends when its phase is complete,
    for those who know of that: a Moment of `copies_of` its thread."""

    index: tuple[int, int, int]
    copy: Copy
    begin: Moment
    ends: list[Moment] = field(default_factory=list)

    def places(self):
        """The bytes that it writes, and those that it reads, if any."""
        yield Place(self.copy.address, self.copy.size, True)
        if self.copy.source is not None:
            yield Place(self.copy.source, self.copy.read, False)

    def is_under_way(self, row, order):
        """Whether an access comes surely behind the issue, and not surely behind the wait."""
        return precedes(self.begin, row, order) and not any(precedes(end, row, order) for end in self.ends)

    def is_over(self, order):
        """Whether all threads of the block are behind its end, now that they have met at a barrier."""
        return any(end.epoch < NEVER or order.all_know(end) for end in self.ends)


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
        self.end(at._replace(block=block), copies)

    def tracked(self, at, block, copies):
        """An mbarrier counts the copies that a thread has sent."""
        self.end(Moment(block, NEVER, copies_of(at.thread), at.segment), copies)

    def end(self, at, copies):
        flights = self.under_way.get(at.block, {})
        for copy in copies:
            if id(copy) in flights:  # else it was over before
                flights[id(copy)].ends.append(at)

    def lines(self, block):
        """The lines of bytes to which copies are under way."""
        flights = self.under_way.get(block, {}).values()
        return np.array([flight.copy.address >> LINE_SHIFT for flight in flights], np.int64)

    def epoch_ended(self, block, rows, order):
        """Findings of an epoch's accesses (Rows, or None); what has been waited for is forgotten."""
        flights = self.under_way.pop(block, {})
        if left := {key: flight for key, flight in flights.items() if not flight.is_over(order)}:
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
        own, tracked = row.thread == begin.thread, any(end.epoch == NEVER for end in flight.ends)
        until = "the mbarrier's phase is complete" if tracked else "the thread that sent it waits for it"
        wait = "commit it and wait for it (cp.async.wait_group)" + (
            " before this line" if own else ", and all threads meet behind that: cuda.syncthreads()"
        )
        direction, does = ("to", "arrives") if place.is_written else ("from", "reads")
        return Finding(
            "async-copy",
            "error",
            f"{element}{alias(reads, element.array)} is {did} while an asynchronous copy"
            f" {direction} it may be under way",
            (reads, sent),
            *element,
            reason=f"Such a copy {does} at any time until {until}.",
            fix="wait for the phase of the mbarrier that counts the copy (mbarrier.try_wait) before this line"
            if tracked
            else f"let the thread that sent the copy {wait}",
        )
