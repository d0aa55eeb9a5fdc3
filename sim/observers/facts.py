"""Facts about two racing accesses, from the access log and from the source. They determine the advice."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sim.events import ATOMIC, LOAD, SITES, STORE
from sim.observers import tickets
from sim.observers.extents import Extents
from sim.observers.statements import (
    ATOMIC_CALL,
    ATOMIC_OPERATORS,
    CAS,
    EXCHANGE,
    FENCE,
    arguments,
    assigned,
    assignment,
    element_of,
    extreme,
    is_sum_or_extreme,
    may_perform,
    mentions,
    statement,
    statement_of,
    statements,
    stepped,
)
from sim.observers.words import CPP

ALL_LANES = 0xFFFFFFFF
WARP_MASK = re.compile(r"syncwarp\(\s*(0[xX][0-9a-fA-F]+|\d+)[uU]?\s*\)")


@dataclass(frozen=True)
class Facts:
    """Two accesses to one byte, `a` and `b` (Rows), and the facts about them. If only one access writes, it
    is `a`."""

    a: Any
    b: Any
    address: int  # the byte's address
    equal: bool  # all racing accesses write the same value
    replaced: bool  # the thread of one write writes the byte again later
    colliding: bool  # several threads write the byte
    sites: tuple[int, ...]  # the sites of all accesses that race for the byte
    scoped: bool  # they are in different blocks, and one is an atomic of block scope
    lacks_fence: bool  # fences before the atomics would order the accesses
    synchronizes: bool  # threads use the results of atomics, or execute fences
    fenced: bool  # the writer executes a grid-wide fence before its next atomic
    meetings: dict[tuple[str, str], set[int]]  # (barrier, function) -> lines where the barrier opened
    near: int  # 0: different blocks, 1: different warps of a block, 2: the same warp
    outlines: tuple[Any, Any]  # Outlines of the functions of `a` and `b`, or None
    kernel: str  # the kernel's name
    language: str
    space: str  # "shared" or "global"
    extents: Extents
    diverged: frozenset[tuple[str, int]]  # (function, line) of barriers that some threads missed

    # --- the two sites --------------------------------------------------------------------------------------

    @property
    def one(self):
        return SITES[self.a.site]

    @property
    def other(self):
        return SITES[self.b.site]

    @property
    def actions(self):
        return {self.a.site & 3, self.b.site & 3}

    @property
    def several_blocks(self):
        return self.a.block != self.b.block

    @property
    def low(self):
        return min(self.one.line, self.other.line)

    @property
    def high(self):
        return max(self.one.line, self.other.line)

    @property
    def reads(self):
        """The Sites of the loads that race for the byte."""
        return [SITES[number] for number in self.sites if number & 3 == LOAD]

    @property
    def same_line(self):
        return (self.one.function, self.one.line) == (self.other.function, self.other.line)

    @property
    def statements_of_line(self):
        """True if the accesses belong to two statements that share a line."""
        one, other = self.statement(self.one), self.statement(self.other)
        return self.same_line and (one != other or not one)

    def statement(self, site):
        """Return the text of a Site's statement.

        C++ compilers do not record columns for the statements on a line. The text is empty if several of them
        could perform the access.
        """
        found = [text for _, text in statements(site.source)]
        if self.language != CPP or len(found) < 2:
            return statement_of(site)
        fitting = [text for text in found if may_perform(text, site.action)]
        return fitting[0] if len(fitting) == 1 else ""

    def shared_lines(self, lines):
        """Return the lines that contain several statements."""
        return [line for line in lines if self.outline and len(statements(self.outline.lines[line])) > 1]

    @cached_property
    def outline(self):
        """The Outline of the function that contains both accesses, or None."""
        mine, others = self.outlines
        if mine is None or mine is not others or self.one.function != self.other.function:
            return None
        home = mine.function(self.one.line)
        return mine if home is not None and home is mine.function(self.other.line) else None

    @cached_property
    def loop(self):
        return self.outline and self.outline.loop(self.low, self.high)

    @cached_property
    def branch(self):
        """The branch with the accesses in different arms, or None."""
        return self.outline and self.outline.branch(self.one.line, self.other.line)

    @cached_property
    def block_barriers(self):
        """The lines in the accesses' function where a block barrier opened."""
        return self.lines_of("syncthreads")

    @cached_property
    def barriers(self):
        """The lines of barriers that can order the accesses: block barriers, or grid barriers between
        blocks."""
        return self.lines_of("grid.sync") if self.several_blocks else self.block_barriers

    def lines_of(self, barrier):
        if self.one.function != self.other.function:
            return set()
        lines = self.meetings.get((barrier, self.one.function), set())
        home = self.outline and self.outline.function(self.low)
        return {line for line in lines if home is None or home.first <= line <= home.last}

    @cached_property
    def barriers_in_loop(self):
        """The lines of barriers inside the innermost loop around both accesses."""
        lines = self.barriers | (self.lines_of("syncwarp") if self.near == 2 else set())
        return {line for line in lines if self.loop.first <= line <= self.loop.last}

    # --- names ----------------------------------------------------------------------------------------------

    def called(self, number):
        """Return the name that the access at a site uses for the memory, or None."""
        site = SITES[number]
        if site.action == "atomic":
            found = ATOMIC_CALL.search(self.statement(site))
            return found and found[1]
        found = assignment(self.statement(site))
        if site.action == "store":
            return found.name if found and found.is_element else None
        value = found.value if found else statement(self.statement(site))
        if found and found.operator and found.is_element:
            value += f" {found.target}"
        names = {
            name
            for pair in re.findall(r"\b(\w+)\s*\[|\*\s*(\w+)\b(?!\s*[\[*])", value)
            for name in pair
            if name
        }
        exact = re.match(r"(\w+)\s*\[", site.source[max(site.column - site.indent, 0) :])
        if exact and exact[1] in names and self.language == "Numba":
            return exact[1]
        return names.pop() if len(names) == 1 else None

    @cached_property
    def views(self):
        """The two different names that the accesses use for the same memory, or None. Neither name may be
        reassigned."""
        names = self.called(self.a.site), self.called(self.b.site)
        if self.outline is None or None in names or names[0] == names[1]:
            return None
        home = self.outline.function(self.low)
        text = "\n".join(line for _, line in self.outline.text(home))
        header = re.split(r":\s*\n|\{", text)[0]
        times = [len(assigned(name, text)) + mentions(header, name) for name in names]
        return names if max(times) <= 1 else None

    def span(self, name):
        """Return the range (first, end) of byte offsets in the array that the function accesses through a
        name."""
        home = self.outline.function(self.low)

        def by_name(number):
            site = SITES[number]
            here = site.function == self.one.function and home.first <= site.line <= home.last
            return here and self.called(number) == name

        return self.extents.of(self.address, by_name)

    # --- patterns in the source -----------------------------------------------------------------------------

    @cached_property
    def update(self):
        """(line, Assignment, line of the read) for a read-modify-write of one element that an atomic can
        perform.

        None if there is none, or if the value depends on other elements of the array.
        """
        for site in (SITES[row.site] for row in (self.a, self.b)):
            found = assignment(self.statement(site)) if site.action == "store" else None
            if found is None or not found.is_element:
                continue
            before = [read for read in self.reads if self.precedes(read, site) and read.line != site.line]
            taken = [assignment(self.statement(read)) for read in before]
            rest = found.value.replace(found.target, "")
            if mentions(rest, found.name) or any(element_of(read) != found.target for read in taken):
                continue
            if found.operator or rest != found.value:
                return site.line, found, site.line
            for read, name in ((r, t.name) for r, t in zip(before, taken) if t and not t.is_element):
                if mentions(found.value, name):
                    return site.line, found, read.line
        return None

    @property
    def is_one_atomic(self):
        """True if a single atomic can perform the whole `update`."""
        if not self.update:
            return False
        line, found, read = self.update
        if found.operator:
            return found.operator in ATOMIC_OPERATORS
        taken = [assignment(self.statement(site)) for site in self.reads if site.line == read != line]
        names = [found.target, *(each.target for each in taken if each)]
        return any(is_sum_or_extreme(found.value, name) for name in names)

    @property
    def extreme(self):
        """("min" or "max", operand) of an `update` that is a minimum or a maximum, or None."""
        if not self.update or self.update[1].operator:
            return None
        line, found, read = self.update
        taken = [assignment(self.statement(site)) for site in self.reads if site.line == read != line]
        names = [found.target, *(each.target for each in taken if each)]
        return next(filter(None, (extreme(found.value, name) for name in names)), None)

    def precedes(self, read, store):
        """Return whether a read is in the same function as a store, on the same line or above it."""
        return read.function == store.function and read.line <= store.line

    @cached_property
    def in_passes(self):
        """True if a loop updates elements from values that other threads changed in earlier iterations, as in
        a scan or a sort."""
        stores = [SITES[row.site] for row in (self.a, self.b) if row.site & 3 == STORE]
        return self.loop is not None and any(
            read.function == store.function and self.loop.first <= read.line <= store.line
            for read in self.reads
            for store in stores
        )

    def element_at(self, site):
        """Return the text of the only element of the accessed array that a Site's line reads, or None."""
        name = next((self.called(row.site) for row in (self.a, self.b) if SITES[row.site] is site), None)
        found = set(tickets.elements(site.source, name)) if name else set()
        return found.pop() if len(found) == 1 else None

    @cached_property
    def stepped(self):
        """(text, element, operator) for `x[i]++` on the line of both accesses if one of them stores, or
        None."""
        fits = self.same_line and self.language == CPP and STORE in self.actions
        return stepped(self.one.source) if fits else None

    @cached_property
    def ticket(self):
        return tickets.ticket(self)

    @cached_property
    def claim(self):
        return tickets.claim(self)

    @cached_property
    def check(self):
        return tickets.check(self)

    @cached_property
    def missed_barrier(self):
        """The line of a barrier between the accesses that some threads missed, or None."""
        if self.outline is None or self.several_blocks:
            return None
        first, last = (self.loop.first, self.loop.last) if self.loop else (self.low, self.high)
        lines = sorted(line for function, line in self.diverged if function == self.one.function)
        inside = [line for line in lines if first <= line <= last]
        held = [line for line in inside if self.outline.outermost(self.outline.innermost(line))]
        return min(held, key=lambda line: not self.low < line < self.high, default=None)

    @cached_property
    def part_of_warp(self):
        """The line of a syncwarp between the accesses whose mask lacks one of the lanes, or None.

        Every thread must reach the syncwarp.
        """
        if self.outline is None or self.near != 2:
            return None
        for line in sorted(self.lines_of("syncwarp")):
            mask = WARP_MASK.search(self.outline.lines[line])
            some = mask and int(mask[1], 0) != ALL_LANES
            if (
                some
                and self.low < line < self.high
                and self.outline.all_reach_end(self.outline.innermost(line))
            ):
                return line
        return None

    @cached_property
    def buffers(self):
        """(name, number of buffers) for a multi-buffered array in which a loop refills a buffer that is still
        being read, or None.

        The source shows the number of buffers as `% number` in the first index.
        """
        if self.outline is None or self.loop is None or self.actions != {STORE, LOAD} or self.several_blocks:
            return None
        store, load = sorted((self.one, self.other), key=lambda site: site.action != "store")
        found = assignment(store.source)
        if found is None or not found.is_element:
            return None
        filled = self.ring_index(found.target)
        taken = {self.ring_index(text) for text in tickets.elements(load.source, found.name)}
        if filled is None or len(taken) != 1 or None in taken:
            return None
        ((start, number),) = taken
        ahead = re.fullmatch(rf"\(?{re.escape(start)} \+ (\d+)\)?", filled[0])
        wraps = ahead and filled[1] == number and (not number.isdigit() or int(ahead[1]) % int(number) == 0)
        return (found.name, number) if wraps else None

    def ring_index(self, element):
        """Return (position, number of buffers) if an element's first index is `position % number` or a
        variable with that value, or None."""
        first = arguments(element.partition("[")[2].partition("]")[0])[0]
        lines = [text for _, text in self.outline.text(self.outline.function(self.low))]
        values = [found.value for found in map(assignment, lines) if found and found.target == first]
        found = re.fullmatch(r"(\(.+\)|\w+) % (\w+)", values[0] if len(values) == 1 else first)
        return (found[1], found[2]) if found else None

    @cached_property
    def exchange(self):
        """(i, j) if both threads swap the same elements [i] and [j] in one statement, or None."""
        found = assignment(self.one.source) if self.same_line else None
        targets, values = (arguments(text) for text in (found.target, found.value)) if found else ((), ())
        if self.outline is None or len(targets) != 2 or targets != values[::-1]:
            return None
        indices = [re.fullmatch(r"(\w+)\[(.*)\]", text) for text in targets]
        if None in indices or indices[0][1] != indices[1][1]:
            return None
        branch = next((n for n in reversed(self.outline.path(self.low)) if n.kind == "branch"), None)
        if branch and mentions(self.outline.lines[branch.first], indices[0][1]):
            return None
        one, other = (self.extents.touched(row, self.one.line) for row in (self.a, self.b))
        return (indices[0][2], indices[1][2]) if one == other else None

    @cached_property
    def taken_before(self):
        """The plain read (a Site) of an element that a compare-and-swap loop changes, or None."""
        read = next((SITES[row.site] for row in (self.a, self.b) if row.site & 3 == LOAD), None)
        change = next((SITES[row.site] for row in (self.a, self.b) if row.site & 3 == ATOMIC), None)
        if read is None or change is None or self.outline is None or not CAS.search(change.source):
            return None
        return read if self.outline.loop(change.line) else None

    @cached_property
    def spins_on(self):
        """The access (a Site) in the header of a loop that polls this element, or None."""
        for site in map(SITES.__getitem__, self.sites):
            outline = self.outlines[0] if site.function == self.one.function else None
            loop = outline and outline.headed(site.line)
            if loop and re.match(r"\W*while\b", site.source) and site.action != "store":
                return site
        return None

    @cached_property
    def fenced_by_one(self):
        """The line of a fence that covers only the writes of one thread, or None.

        The fence is between a write and the atomic that signals another block. No barrier precedes it, so it
        does not cover the writes of the block's other threads.
        """
        if self.outline is None or not self.several_blocks or self.one.line >= self.other.line:
            return None
        fence = None
        for number, text in self.outline.text(self.outline.function(self.low)):
            if not self.one.line < number < self.other.line:
                continue
            if number in self.block_barriers:
                return None
            if FENCE.search(text) and self.outline.apart(self.one.line, number):
                fence = number
            if fence and ATOMIC_CALL.search(text):
                return fence
        return None

    @cached_property
    def forwarding_atomics(self):
        """The lines with atomics in the accesses' function, except those that poll in the header of a
        loop."""
        home = self.outline and self.outline.function(self.low)
        lines = self.outline.text(home) if home else []
        return [n for n, text in lines if ATOMIC_CALL.search(text) and not self.outline.headed(n)]

    @cached_property
    def lock(self):
        """(first line, last line) of the critical section of a lock in the accesses' function, or None.

        The section starts after the loop that acquires the lock by compare-and-swap, and ends before the line
        that releases it.
        """
        home = self.outline and self.outline.function(self.low)
        lines = self.outline.text(home) if home else []
        for number, text in lines:
            taken, loop = CAS.search(text), self.outline.loop(number)
            if not taken or loop is None or number not in (loop.first, loop.last):
                continue
            for later, after in lines:
                given = EXCHANGE.search(after) or re.match(r"\W*(\w+)\s*\[[^\]]*\]\s*=[^=]", after)
                if later > loop.last and given and given[1] == taken[1]:
                    return loop.last + 1, later - 1
        return None

    @cached_property
    def outside_lock(self):
        """A list with the access (a Site) outside the critical section if the other access is inside; else
        []."""
        if self.lock is None:
            return []
        first, last = self.lock
        outside = [site for site in (self.one, self.other) if not first <= site.line <= last]
        return outside if len(outside) == 1 else []
