"""Asynchronous copies in flight, and the accesses that conflict with them.

An access to the destination of a copy can read the old or the new bytes if it comes after the copy was
issued, but before the thread has waited for the copy. A write to the source can happen before or after the
copy reads the source.

As in races, an access comes after the issue or the wait if program order within a thread, a barrier, or the
happens-before order (sim.observers.order) puts it there. An access unordered with the issue of the copy is a
race.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import numpy as np

from sim.events import ATOMIC, LOAD, SITES, STORE, Access, Copy, Finding, Moment, alias
from sim.observers.order import copies_thread
from sim.observers.poison import poison_at
from sim.observers.settled import Moments, Settled

# The widest access has 16 bytes, so aligned accesses to different 16-byte lines never overlap.
LINE_SHIFT = 4
# The epoch of a copy's end if threads acquire the end through an mbarrier. It is greater than every other
# epoch.
NEVER = math.inf
WORDS = {LOAD: "read", STORE: "written", ATOMIC: "changed"}
WAIT = "let the thread that sent the copy commit it and wait for it (cp.async.wait_group)"
# whether an mbarrier tracks a copy -> the text that describes the end of the copy
END = {False: "the thread that sent it waits for it", True: "the mbarrier's phase is complete"}
WAIT_FOR_PHASE = "wait for the phase of the mbarrier that counts the copy (mbarrier.try_wait)"


@dataclass(eq=False, slots=True)
class Flight:
    """A copy in flight.

    index: the index of the block.
    begin: the Moment of its issue.
    ends: the Moments at which the copy ends.

    In these Moments, `block` is the number of the block. A copy tracked by an mbarrier ends when the phase of
    the mbarrier completes, for the threads that acquire this phase. The end of the copy is a Moment of the
    pseudo-thread `copies_thread(thread)`.
    """

    index: tuple[int, int, int]
    copy: Copy
    begin: Moment
    ends: list[Moment] = field(default_factory=list)

    def byte_ranges(self):
        """Yield the range of bytes that the copy writes, and the range that it reads, if any."""
        yield ByteRange(self.copy.address, self.copy.size, True)
        if self.copy.source is not None:
            yield ByteRange(self.copy.source, self.copy.read, False)

    def is_sent_by(self, row, address):
        """Return whether an access (a Row) can be the store of the copy to an address."""
        begin, copy = self.begin, self.copy
        same = (begin.block, begin.thread, copy.site) == (row.block, row.thread, row.site)
        return same and row.segment <= begin.segment and 0 <= address - copy.address < copy.size

    def is_read_by(self, row, address):
        """Return whether an access (a Row) can be the load by which the copy reads an address."""
        begin, copy = self.begin, self.copy
        same = (begin.block, begin.thread) == (row.block, row.thread) and row.segment <= begin.segment
        inside = copy.source is not None and 0 <= address - copy.source < copy.read
        return same and inside and is_load_of(copy.site, row.site)

    def is_tracked(self):
        """Return whether an mbarrier tracks the copy."""
        return any(end.epoch == NEVER for end in self.ends)

    def is_over_at(self, row, clocks):
        """Return whether an access, or another Moment, is ordered after a wait for the copy. The clocks are
        those of the access (HappensBefore.clocks_at)."""
        return any(is_before(end, row, clocks) for end in self.ends)

    def is_over(self, order):
        """Return whether the end of the copy is ordered before all further accesses of the block. This is
        called when all threads of the block have reached a barrier."""
        return any(end.epoch < NEVER or order.precedes_barrier(end) for end in self.ends)


@cache
def is_load_of(site, load):
    """Return whether a site can be the load of the copy whose store has another site: both have the same
    place in the source."""
    return load & 3 == LOAD and replace(SITES[load], action="store", opcode=SITES[site].opcode) == SITES[site]


def precedes(at, row, order):
    """Return whether a Moment is ordered before an access (a Row) in the same block."""
    return is_before(at, row, order.clocks_at(row))


def is_before(at, row, clocks):
    """Return the result of `precedes`, with the clocks of the row."""
    if row.thread == at.thread:
        return row.segment > at.segment
    block, key = at.block, (at.block, at.thread)
    return row.epoch > at.epoch or any(
        at.epoch < clock.get(block, -1) or at.segment <= clock.get(key, -1) for clock in clocks
    )


def is_known_before(at, row, order, known):
    """Return `precedes(at, row, order)`. `known` caches the results of earlier calls (see
    Successive.under_way)."""
    key = at, row.segment
    if key not in known:
        known[key] = precedes(at, row, order)
    return known[key]


class ByteRange(NamedTuple):
    """A contiguous range of bytes written or read by a copy."""

    address: int
    size: int
    is_written: bool


class Successive:
    """The copies of one block that write, or read, exactly the same bytes, in the order of their issue.

    mask: these bytes within their 16-byte line (see `byte_mask`).
    begins: the segments of their issues.
    in_turn: for each of the first copies, whether all earlier copies had ended when it was issued. If so, an
        access after the issue of this copy also comes after the ends of all earlier copies.
    """

    def __init__(self, place):
        self.place, self.flights, self.begins, self.in_turn = place, [], [], [True]
        self.mask = byte_mask(place.address, place.size)

    def add(self, flight):
        self.flights.append(flight)
        self.begins.append(flight.begin.segment)

    def follows_all(self, number, order):
        """Return whether all earlier copies had ended when the copy with this number was issued."""
        for later in range(len(self.in_turn), number + 1):
            begin = self.flights[later].begin
            over = self.in_turn[-1] and self.flights[later - 1].is_over_at(begin, order.clocks_at(begin))
            self.in_turn.append(over)
        return self.in_turn[number]

    def under_way(self, row, order, known):
        """Return the copies that are in flight at an access: their issue is ordered before the access, but
        their end is not.

        known: {(a Moment, segment of an access): whether the Moment is ordered before the access}. Many
            copies have the same end, so this saves comparisons of clocks.
        """
        found = []
        # Segments are numbered in the order of execution, so no later copy can precede the access.
        later = bisect_left(self.begins, row.segment)
        issues = later < len(self.begins) and self.begins[later] == row.segment
        if issues and self.follows_all(later, order):
            return found
        for number in reversed(range(later)):
            flight = self.flights[number]
            over = any(is_known_before(end, row, order, known) for end in flight.ends)
            # The issue of a copy is ordered before its end.
            if over or precedes(flight.begin, row, order):
                if not over:
                    found.append(flight)
                if self.follows_all(number, order):
                    break
        return found[::-1]


def note_case(cases, row, element, flight, place):
    """Count an access that conflicts with a copy. For each key, keep the case that is first in the order of
    `sim.report.choice_order`.

    cases: {key: [number of cases, order, (row, element, flight, place)]}. Cases with equal keys have equal
        findings, except for their indices, threads and values.
    """
    begin = flight.begin
    own = row.thread == begin.thread
    key = element.array, row.site, flight.copy.site, place.is_written, own, flight.is_tracked()
    order = element.indices, flight.index[::-1], row.thread, begin.thread
    known = cases.setdefault(key, [0, order, (row, element, flight, place)])
    known[0] += 1
    if order < known[1]:
        known[1:] = order, (row, element, flight, place)


def settled_lines(rows, chosen, lines, touched, by_line, order):
    """Return a mask of the chosen accesses whose bytes are certainly not read or written by a pending copy.
    For all other accesses, the caller has to search for a pending copy.

    lines: for each access, the number of its 16-byte line.
    touched: for each access, an integer mask of the bytes of its line.
    by_line: {line: list of Successive}.
    """
    near = np.unique(lines)
    places = [by_line[line] for line in near.tolist()]
    counts = np.array([len(one) for one in places])
    places = [copies for one in places for copies in one]
    covered = np.array([copies.mask for copies in places])
    # From here on, the arrays have one entry for each pair of an access and a place (Successive) in its line.
    firsts, line = np.cumsum(counts) - counts, near.searchsorted(lines)
    access, before = np.repeat(np.arange(len(chosen)), counts[line]), np.cumsum(counts[line]) - counts[line]
    place = firsts[line[access]] + np.arange(len(access)) - before[access]
    among = np.flatnonzero(covered[place] & touched[access])
    access = access[among]
    at = Moments(*(column[chosen[access]] for column in (rows.epoch, rows.thread, rows.segment)))
    over = Settled(int(rows.block[chosen[0]]), places, order).are_over(place[among], at)
    return np.bincount(access[~over], minlength=len(chosen)) == 0


def byte_mask(address, size):
    """Return the mask of the bytes of a 16-byte line that a range of bytes covers, as an integer."""
    return (1 << size) - 1 << (address & (1 << LINE_SHIFT) - 1)


class Flights:
    """The copies in flight in each block."""

    def __init__(self, context):
        self.context, self.under_way = context, {}  # number of a block -> {id of a Copy: its Flight}
        self.examined = {}  # {id of a Copy: its Flight} in the epoch that ended last
        # (segment, site) of a copy's issue -> the ends of its Flight. Used only if the kernel uses the async
        # proxy.
        self.ends = {}
        self.sources = {}  # site of copies -> (lowest, highest) address from which they have read

    def add_copy(self, at, block, copy):
        if copy.source is not None:
            low, high = self.sources.get(copy.site, (copy.source, 0))
            self.sources[copy.site] = min(low, copy.source), max(high, copy.source + copy.read - 1)
        flight = Flight(at.block, copy, Moment(block, at.epoch, at.thread, at.segment))
        self.under_way.setdefault(block, {})[id(copy)] = flight
        if self.context.asynchronous:
            self.ends[at.segment, copy.site] = flight.ends

    def end_copies(self, at, block, copies):
        self.end(at._replace(block=block), copies)

    def end_tracked(self, at, block, copies):
        """Record that an mbarrier tracks the copies issued by a thread."""
        self.end(Moment(block, NEVER, copies_thread(at.thread), at.segment), copies)

    def end(self, at, copies):
        # A copy that ended in an earlier epoch is no longer listed.
        flights = self.under_way.get(at.block, {})
        for copy in copies:
            if id(copy) in flights:  # a copy that is not in `flights` was already complete
                flights[id(copy)].ends.append(at)

    def sent_by(self, row, address):
        """Return the Flight of the copy whose store to an address, or load from it, is this access (a Row).
        Return None for any other access, and if the Flight is no longer listed.

        The access belongs to the epoch that ended last, or to an epoch that has not ended.
        """
        flights = *self.under_way.get(row.block, {}).values(), *self.examined.values()
        # The access is in the log before the issue of its copy.
        sent = [one for one in flights if one.is_sent_by(row, address) or one.is_read_by(row, address)]
        return min(sent, key=lambda flight: flight.begin.segment, default=None)

    def is_source(self, row, address):
        """Return whether an access (a Row) is a load by a copy, as far as its site and address show it."""
        reads = self.sources.items() if row.site & 3 == LOAD else ()
        return any(low <= address <= high and is_load_of(site, row.site) for site, (low, high) in reads)

    def lines(self, block):
        """Return the numbers of the 16-byte lines to which copies in flight write."""
        flights = self.under_way.get(block, {}).values()
        return np.array([flight.copy.address >> LINE_SHIFT for flight in flights], np.int64)

    def epoch_ended(self, block, rows, order):
        """Return the findings for the accesses of an epoch, and drop the completed copies.

        rows: the Rows, or None if there were no accesses.
        """
        self.examined = flights = self.under_way.pop(block, {})
        if left := {key: flight for key, flight in flights.items() if not flight.is_over(order)}:
            self.under_way[block] = left
        if not flights or rows is None:
            return []
        return self.find_conflicts(flights.values(), rows, order)

    def find_conflicts(self, flights, rows, order):
        """Return the findings for the accesses that conflict with copies in flight, each with its number of
        cases.

        A kernel can have many thousand cases, so a finding is made only for the case that its report shows.
        """
        # Any access to the destination of a copy conflicts with it. Reading the source is harmless.
        line, stores = rows.address >> LINE_SHIFT, rows.site & 3 != LOAD
        stored, by_place, by_line, copied = set(line[stores].tolist()), {}, {}, set()
        for flight in flights:
            for place in flight.byte_ranges():
                at = place.address >> LINE_SHIFT
                if place.is_written or at in stored:
                    if place not in by_place:
                        by_place[place] = Successive(place)
                        by_line.setdefault(at, []).append(by_place[place])
                    by_place[place].add(flight)
                    if place.is_written:
                        copied.add(at)
        chosen = np.flatnonzero(np.isin(line, [*copied]) | stores & np.isin(line, [*by_line]))
        elements = {}  # address -> its Element
        cases = {}  # the cases that `note_case` counts
        known = {}  # results of `precedes`, cached by `is_known_before`
        chosen = chosen[self.near_copies(rows, chosen, line[chosen], by_line, order, known)]
        listed = rows.listed(chosen), rows.address[chosen].tolist(), rows.size[chosen].tolist()
        for row, address, size in zip(*listed):
            for copies in by_line[address >> LINE_SHIFT]:
                place = copies.place
                meets = address < place.address + place.size and place.address < address + size
                if meets and (place.is_written or row.site & 3 != LOAD):
                    shown = max(address, place.address)
                    for flight in copies.under_way(row, order, known):
                        if shown not in elements:
                            elements[shown] = self.context.space.element(shown)
                        note_case(cases, row, elements[shown], flight, place)
        return [self.finding(*case).with_cases(count) for count, _, case in cases.values()]

    @staticmethod
    def near_copies(rows, chosen, lines, by_line, order, known):
        """Return a mask of the chosen accesses whose segment accesses bytes, in the same line, that a pending
        copy reads or writes.

        All accesses of one segment to a line have the same value, so it is computed once for them.
        """
        if not len(chosen):
            return np.zeros(0, bool)
        _, number = np.unique(lines, return_inverse=True)
        _, first, group = np.unique(
            rows.segment[chosen] << 32 | number, return_index=True, return_inverse=True
        )
        touched = np.zeros(len(first), int)
        np.bitwise_or.at(touched, group, byte_mask(rows.address[chosen], rows.size[chosen].astype(int)))
        near = ~settled_lines(rows, chosen[first], lines[first], touched, by_line, order)
        left = np.flatnonzero(near)
        near[left] = [
            any(copies.under_way(row, order, known) for copies in by_line[line] if copies.mask & mask)
            for row, line, mask in zip(
                rows.listed(chosen[first[left]]), lines[first[left]].tolist(), touched[left].tolist()
            )
        ]
        return near[group]

    def finding(self, row, element, flight, place):
        did, begin = WORDS[row.site & 3], flight.begin
        reads = Access(did, flight.index, self.context.thread_index(row.thread), SITES[row.site], row.value)
        sender = self.context.thread_index(begin.thread)
        sent = Access("sent", flight.index, sender, SITES[flight.copy.site])
        own, tracked = row.thread == begin.thread, flight.is_tracked()
        wait = WAIT + (
            " before this line" if own else ", and synchronise all threads after that: cuda.syncthreads()"
        )
        direction, does = ("to", "write") if place.is_written else ("from", "read")
        return Finding(
            "async-copy",
            "error",
            f"{element}{alias(reads, element.array)} is {did} while an asynchronous copy"
            f" {direction} it may be under way",
            (reads, sent),
            *element,
            reason=f"Such a copy may {does} its bytes at any time until {END[tracked]}.",
            fix=f"{WAIT_FOR_PHASE} before this line" if tracked else wait,
            undefined=row.site & 3 == LOAD,
            poison=poison_at(self.context, flight.copy.address),
        )
