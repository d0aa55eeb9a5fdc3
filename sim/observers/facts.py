"""Facts about two racing accesses: the patterns in the source that determine the advice."""

import re
from dataclasses import dataclass, replace
from functools import cached_property

from sim.events import ATOMIC, LOAD, SITES, STORE
from sim.observers import double_checks, exchanges, signals, tickets
from sim.observers.access_pair import AccessPair
from sim.observers.call_lines import calls_of, is_polled
from sim.observers.copy_waits import find_copy_waits
from sim.observers.statements import (
    ATOMIC_CALL,
    ATOMIC_OPERATORS,
    CAS,
    EXCHANGE,
    FENCE,
    arguments,
    assignment,
    element_of,
    elements,
    find_operation,
    find_step,
    mentions,
    reads_only,
    with_plain_reads,
)
from sim.observers.words import CPP

ALL_LANES = 0xFFFFFFFF
# A loop of C++ on one line whose condition tests a variable, and whose body accesses memory.
ONE_LINE_LOOP = re.compile(r"while\s*\(\s*!?\s*(\w+)\s*(?:[!=]=\s*(?:nullptr|NULL|0)\s*)?\)(?=.*(?:->|\[))")
WARP_MASK = re.compile(r"syncwarp\(\s*(0[xX][0-9a-fA-F]+|\d+)[uU]?\s*\)")


@dataclass(frozen=True)
class Facts(AccessPair):
    """The facts about two accesses that determine the cause and the fix of their race."""

    @cached_property
    def update(self):
        """(line, Assignment, line of the read) for a read-modify-write of one element that an atomic can
        perform.

        It is None if there is no such statement, or if the stored value depends on other elements of the
        array.
        """
        for site in (SITES[row.site] for row in (self.a, self.b)):
            found = None if site.action == "atomic" else self.assignment(self.statement(site))
            if found is None or not found.is_element or len(arguments(found.target)) > 1:
                continue
            # If a read races with an atomic, it may be the read in an update such as `x[i] += v`.
            if site.action == "load" and not (found.operator and ATOMIC in self.actions):
                continue
            reads = [*self.reads, *self.reading_atomics(found.target)]
            before = [read for read in reads if self.precedes(read, site) and read.line != site.line]
            texts = [self.statement(read) for read in before]
            taken = [assignment(with_plain_reads(text, found.target)) for text in texts]
            found = replace(found, value=with_plain_reads(found.value, found.target))
            rest = found.value.replace(found.target, "")
            fields = re.sub(r"(?:\.|->)\s*\w+", "", rest)  # the value without the names of fields
            if mentions(fields, found.name) or any(element_of(read) != found.target for read in taken):
                continue
            if found.operator or rest != found.value:
                return site.line, found, site.line
            for read, name in ((r, t.name) for r, t in zip(before, taken) if t and not t.is_element):
                if mentions(found.value, name):
                    return site.line, found, read.line
        return None

    def reading_atomics(self, element):
        """Return the Sites of the racing atomics that only read an element.

        element: the text of the element in the source.
        """
        sites = [SITES[number] for number in self.sites if self.action(number) == ATOMIC]
        texts = map(self.statement, sites)
        return [site for site, text in zip(sites, texts) if with_plain_reads(text, element) != text]

    @cached_property
    def operation(self):
        """The operation of the `update`: an operator, "min" or "max". None if no atomic can perform it."""
        if not self.update:
            return None
        line, found, read = self.update
        if found.operator:
            return found.operator if found.operator in ATOMIC_OPERATORS else None
        reads = [*self.reads, *self.reading_atomics(found.target)]
        taken = [assignment(self.statement(site)) for site in reads if site.line == read != line]
        names = [found.target, *(each.target for each in taken if each)]
        return next((one[0] for one in (find_operation(found.value, name) for name in names) if one), None)

    def precedes(self, read, store):
        """Return whether a read is in the same function as a store, and on the same line or above it."""
        return read.function == store.function and read.line <= store.line

    @cached_property
    def in_passes(self):
        """True if a loop updates elements from values that other threads changed in earlier iterations. Scans
        and sorts are examples."""
        stores = [SITES[row.site] for row in (self.a, self.b) if self.action(row.site) == STORE]
        return self.loop is not None and any(
            read.function == store.function and self.loop.first <= read.line <= store.line
            for read in self.reads
            for store in stores
        )

    def element_at(self, site):
        """Return the text of the array element that is read on the line of a Site, or None if the line reads
        several."""
        name = next((self.called(row.site) for row in (self.a, self.b) if SITES[row.site] is site), None)
        found = set(elements(site.source, name)) if name else set()
        return found.pop() if len(found) == 1 else None

    @cached_property
    def stepped(self):
        """(text, element, operator) if the line of both accesses contains a step such as `x[i]++`, and one of
        the accesses stores, else None."""
        fits = self.same_line and self.language == CPP and STORE in self.actions and self.colliding
        return find_step(self.one.source, self.scalar) if fits else None

    @cached_property
    def copy_waits(self):
        return find_copy_waits(self)

    @cached_property
    def swapped(self):
        return exchanges.find_exchange(self)

    @cached_property
    def ticket(self):
        return tickets.find_ticket(self)

    @cached_property
    def claim(self):
        return tickets.find_claim(self)

    @cached_property
    def claim_by_calls(self):
        """True if the condition of a branch or loop calls a function that reads the element, and the branch
        or loop calls another function that stores to the element."""
        calls = self.calls if self.actions == {STORE, LOAD} else None
        header = calls and calls.outline.lines[calls.low]
        if calls is None or tickets.HEADER.match(header.strip()) is None:
            return False
        reads = calls.names[self.other.action == "load"]  # the name of the function that reads the element
        if calls.calls and not calls_of(reads, " ".join(tickets.conjuncts(header))):
            return False
        return tickets.branch_with_header(calls.outline, calls.low, calls.high) is not None

    @cached_property
    def double_check(self):
        return double_checks.find_double_check(self)

    @cached_property
    def check(self):
        return tickets.find_check(self)

    @cached_property
    def signal(self):
        return signals.find_signal(self)

    @cached_property
    def missed_barrier(self):
        """The line of a barrier between the accesses that some threads do not reach, or None."""
        if self.outline is None or self.near == 0:
            return None
        first, last = (self.loop.first, self.loop.last) if self.loop else (self.low, self.high)
        lines = sorted(line for function, line in self.diverged if function == self.one.function)
        inside = [line for line in lines if first <= line <= last and not self.is_named_barrier(line)]
        held = [line for line in inside if self.outline.outermost(self.outline.innermost(line))]
        return min(held, key=lambda line: not self.low < line < self.high, default=None)

    @cached_property
    def incomplete_named_barrier(self):
        """The lowest line between the accesses at which a named barrier never opens, or None."""
        if self.outline is None or self.near == 0:
            return None
        lines = [line for function, line in self.diverged if function == self.one.function]
        inside = [line for line in lines if self.low <= line <= self.high]
        return min(filter(self.is_named_barrier, inside), default=None)

    def is_named_barrier(self, line):
        """Return whether a line waits at a named barrier, at which only some threads of the block arrive."""
        return line in self.named_lines

    @cached_property
    def part_of_warp(self):
        """The line of a syncwarp between the accesses whose mask lacks one of the two lanes, or None.

        Only a syncwarp that every thread reaches counts.
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
    def early_wait(self):
        """The EarlyWait before one of the accesses, or None. The wait of the reading thread comes first."""
        outline = self.outlines[0]
        if not self.mbarrier_events or outline is None or "parity" not in "".join(outline.lines.values()):
            return None
        sides = (self.b, self.a, self.other, self.one), (self.a, self.b, self.one, self.other)
        return next(filter(None, (self.mbarrier_events.early_wait(*side) for side in sides)), None)

    @cached_property
    def buffers(self):
        """(name, number of buffers) for an array of several buffers if a loop refills a buffer that is still
        being read, otherwise None.

        The source shows the number of buffers as `% number` in the first index.
        """
        if self.outline is None or self.loop is None or self.actions != {STORE, LOAD} or self.near == 0:
            return None
        store, load = sorted((self.one, self.other), key=lambda site: site.action != "store")
        found = assignment(store.source)
        if found is None or not found.is_element:
            return None
        filled = self.ring_index(found.target)
        taken = {self.ring_index(text) for text in elements(load.source, found.name)}
        if filled is None or len(taken) != 1 or None in taken:
            return None
        ((start, number),) = taken
        ahead = re.fullmatch(rf"\(?{re.escape(start)} \+ (\d+)\)?", filled[0])
        wraps = ahead and filled[1] == number and (not number.isdigit() or int(ahead[1]) % int(number) == 0)
        return (found.name, number) if wraps else None

    def ring_index(self, element):
        """Return (position, number of buffers) if the first index of an element is `position % number`, or a
        variable with this value. Return None otherwise."""
        first = arguments(element.partition("[")[2].partition("]")[0])[0]
        lines = [text for _, text in self.outline.text(self.outline.function(self.low))]
        values = [found.value for found in map(assignment, lines) if found and found.target == first]
        found = re.fullmatch(r"(\(.+\)|\w+) % (\w+)", values[0] if len(values) == 1 else first)
        return (found[1], found[2]) if found else None

    @cached_property
    def exchanges_arrays(self):
        """True if blocks read one array and write another array, and exchange the two arrays in each
        iteration.

        The statements of both accesses then access at least two common arrays.
        """
        if not self.several_blocks or self.colliding or self.actions != {STORE, LOAD}:
            return False
        written, read = (self.extents.arrays(row.site) for row in (self.a, self.b))
        return len(written & read) > 1

    @cached_property
    def exchange(self):
        """(i, j) if both threads swap the same elements [i] and [j] in one statement, else None."""
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
    def plain_read_before_swap(self):
        """The plain read (a Site) of an element changed by a compare-and-swap loop, or None."""
        read, change = self.of_action(LOAD), self.of_action(ATOMIC)
        if read is None or change is None or not CAS.search(change.source) or reads_only(change.source):
            return None
        outline = self.outline_of(change)
        repeats = outline and (outline.loop(change.line) or self.is_polled(change))
        return read if repeats else None

    @cached_property
    def spins_on(self):
        """The access (a Site) in the condition of a loop that polls this element, or None."""
        for site in map(SITES.__getitem__, self.sites):
            if site.action != "store" and self.is_polled(site) and not self.is_in_body(site):
                return site
        return None

    def is_polled(self, site):
        return is_polled(site, self.outline_of, self.kernel)

    def is_in_body(self, site):
        """Return whether the access is in the body of a loop on one line, such as `while (p) p = p->next;`.
        It is if the condition tests a variable other than the accessed one."""
        tested = ONE_LINE_LOOP.match(site.source)
        return tested is not None and tested[1] != self.array

    @property
    def fences_of_release(self):
        """Two flags: whether the source has a fence before the plain store of `release`, and whether it has a
        fence after the atomic that acquires the lock or flag."""
        store, acquire = self.release.store, self.release.acquire
        has_acquire = "acquire" in acquire.opcode
        stored, acquired = (self.outline_of(site) for site in (store, acquire))
        if None in (stored, acquired) or None in (
            stored.function(store.line),
            acquired.function(acquire.line),
        ):
            return False, has_acquire
        homes = [outline.function(site.line) for outline, site in ((stored, store), (acquired, acquire))]
        if homes[0] is homes[1] and self.release.is_lock:
            lines = [text for n, text in stored.text(homes[0]) if acquire.line < n < store.line]
            both = sum(FENCE.search(text) is not None for text in lines) > 1
            return both, both
        before = [text for n, text in stored.text(homes[0]) if n < store.line]
        before.append(stored.lines[store.line].rpartition("=")[0])
        after = [text for n, text in acquired.text(homes[1]) if n > acquire.line]
        after.append(ATOMIC_CALL.split(acquired.lines[acquire.line])[-1])
        found = tuple(any(map(FENCE.search, lines)) for lines in (before, after))
        return found[0], found[1] or has_acquire

    @cached_property
    def fenced_by_one(self):
        """The line of a fence that covers only the writes of one thread, or None.

        The fence is between a write and the atomic that signals another block. No barrier precedes the fence,
        so it does not cover the writes of the other threads in the block.
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
                # If the fence is in the opposite arm of a branch, other threads execute it.
                fence = None if self.outline.branch(self.one.line, number) else number
            if fence and ATOMIC_CALL.search(text):
                return fence
        return None

    @cached_property
    def forwarding_atomics(self):
        """The lines of the function that contain atomics, except for atomics that poll in the header of a
        loop."""
        home = self.outline and self.outline.function(self.low)
        lines = self.outline.text(home) if home else []
        return [n for n, text in lines if ATOMIC_CALL.search(text) and not self.outline.headed(n)]

    @cached_property
    def lock(self):
        """(first line, last line) of the critical section of a lock in the function, or None.

        The section begins after the loop that acquires the lock by compare-and-swap. It ends before the line
        that releases the lock.
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
        """A list with the access (a Site) outside the critical section if the other access is inside it,
        otherwise an empty list."""
        if self.lock is None:
            return []
        first, last = self.lock
        outside = [site for site in (self.one, self.other) if not first <= site.line <= last]
        return outside if len(outside) == 1 else []
