"""Facts about two accesses that race, from the access log and from the source: what advice depends on."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sim.events import ATOMIC, LOAD, SITES, STORE

CAS = re.compile(r"(?i)(?:cas|compare_and_swap)\s*\(\s*&?\s*(\w+)")
EXCHANGE = re.compile(r"(?i)(?:exch|xchg)\w*\s*\(\s*&?\s*(\w+)")
ATOMIC_CALL = re.compile(r"(?:atomic\.\w+|atomic\w*)\s*\(\s*&?\s*(\w+)")
FENCE = re.compile(r"threadfence(?:_system)?\s*\(")
HEADER = re.compile(r"(?:\}?\s*else\b|(?:if|for|while)\s*(?=\())")
LVALUE = re.compile(
    r"^(?:const\s+)?(?:[\w:]+[\s&*]+)*?(?P<star>\*?)(?P<name>\w+)\s*(?P<rest>(?:\[.*\]|\.\w+)*)$"
)
ATOMIC_OPERATORS = "+-|&^"  # of `target operator= value` that an atomic does
BEHIND_SUM = re.compile(r"[<>=?&|^]|\b(?:if|and|or)\b")  # operators that a sum is an operand of
OPERATORS = ("//", "<<", ">>", "**", *"+-*/|&^%")


@dataclass(frozen=True)
class Assignment:
    """A statement `target operator= value`; `operator` is "" for a plain assignment."""

    target: str
    name: str  # that the target begins with
    operator: str
    value: str
    is_element: bool  # whether the target is in memory, and not a variable


def stored(text):
    """Return the Assignment of Triton's tl.store(target, value, ...), or None."""
    found = re.match(r"tl\.store\((.*)\)$", text)
    parts = arguments(found[1]) if found else []
    named = re.match(r"\w+", parts[0]) if len(parts) > 1 else None
    return named and Assignment(parts[0], named[0], "", parts[1], True)


def arguments(text):
    """Return the arguments between the commas of a call."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def statement(source):
    """Return a line of source without the `if (...)` or the like in front of it, and without what ends it."""
    source = re.sub(r"(^|[;{}])\s*//.*$|\s#\s.*$", r"\1", source).strip()  # // divides in Python
    while found := HEADER.match(source):
        rest = source[found.end() :]
        source = behind_brackets(rest) if rest.startswith("(") else rest.strip()
    return source.strip("{} ").split(";")[0].strip()


def behind_brackets(text):
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            return text[at + 1 :].strip()
    return ""


def assignment(source):
    """Return the Assignment of a line of Python or C++, or None."""
    text = statement(source)
    if found := re.fullmatch(r"(?:(\+\+|--)(.+)|(.+?)(\+\+|--))", text):
        operator, target = found[1] or found[4], (found[2] or found[3]).strip()
        named = LVALUE.match(target)
        return named and Assignment(target, named["name"], operator[0], "1", target != named["name"])
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and letter == "=" and text[at + 1 : at + 2] != "=" and text[at - 1 : at] not in "<>!":
            left = text[:at].rstrip()
            operator = next((o for o in OPERATORS if left.endswith(o)), "")
            left = left[: len(left) - len(operator)].rstrip()
            named = LVALUE.match(left)
            target = left[named.start("star") :] if named else ""
            in_memory = named is not None and target != named["name"]
            return named and Assignment(target, named["name"], operator, text[at + 1 :].strip(), in_memory)
    return stored(text)


def element_of(taken):
    """Return the element whose value an Assignment takes as it is, or None."""
    return taken and arguments(re.sub(r"^tl\.load\(|\)$", "", taken.value))[0]


def is_sum_or_extreme(value, name):
    """Return whether a value is `name + ...`, `max(name, ...)` or `min(name, ...)` and nothing more."""
    if value.startswith((f"max({name}, ", f"min({name}, ")):
        return behind_brackets(value[3:]) == ""
    added = value.removeprefix(f"{name} + ")
    return added != value and not BEHIND_SUM.search(re.sub(r"\([^()]*\)|\[[^][]*\]", "", added))


def mentions(text, name):
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


@dataclass(frozen=True)
class Facts:
    """Two accesses to one byte, `a` and `b` (Rows; `a` writes where only one does), and what is known of
    them."""

    a: Any
    b: Any
    address: int  # of the byte
    equal: bool  # all that race for the byte write the same value
    replaced: bool  # one of two writes is followed by another of its thread
    colliding: bool  # several threads write the byte
    sites: tuple[int, ...]  # of all accesses that race for the byte
    scoped: bool  # the two are in different blocks, and one is atomic for its own block only
    lacks_fence: bool  # fences before the atomics would order the two
    synchronizes: bool  # threads act on what atomics give them, or fence
    fenced: bool  # the writer has a fence that reaches the grid before its next atomic
    meetings: dict[tuple[str, str], set[int]]  # (barrier, function) -> lines where threads have met
    near: int  # 0 in different blocks, 1 in different warps of one, 2 in one warp
    outlines: tuple[Any, Any]  # of the functions of the two, or None
    kernel: str  # its name
    language: str
    space: str  # "shared" or "global"
    extents: "Extents"

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
        """The Sites of loads that race for the byte."""
        return [SITES[number] for number in self.sites if number & 3 == LOAD]

    @property
    def same_line(self):
        return (self.one.function, self.one.line) == (self.other.function, self.other.line)

    @cached_property
    def outline(self):
        """The Outline of the function in which both are, or None."""
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
        """The branch that has the two in different arms."""
        return self.outline and self.outline.branch(self.one.line, self.other.line)

    @cached_property
    def block_barriers(self):
        """The lines of their function on which barriers of the block have opened."""
        return self.lines_of("syncthreads")

    @cached_property
    def barriers(self):
        """The same of barriers for all threads of which the two are: of the block or the grid."""
        return self.lines_of("grid.sync") if self.several_blocks else self.block_barriers

    def lines_of(self, barrier):
        if self.one.function != self.other.function:
            return set()
        lines = self.meetings.get((barrier, self.one.function), set())
        home = self.outline and self.outline.function(self.low)
        return {line for line in lines if home is None or home.first <= line <= home.last}

    @cached_property
    def within(self):
        """The lines of barriers in the loop that holds both."""
        lines = self.barriers | (self.lines_of("syncwarp") if self.near == 2 else set())
        return {line for line in lines if self.loop.first <= line <= self.loop.last}

    # --- names ----------------------------------------------------------------------------------------------

    def called(self, number):
        """Return the name by which the access of the site with this number calls the memory, or None."""
        site = SITES[number]
        if site.action == "atomic":
            found = ATOMIC_CALL.search(site.source)
            return found and found[1]
        found = assignment(site.source)
        if site.action == "store":
            return found.name if found and found.is_element else None
        value = found.value if found else statement(site.source)
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
        """The two different names by which the accesses call one memory, neither of which changes its
        meaning; or None."""
        names = self.called(self.a.site), self.called(self.b.site)
        if self.outline is None or None in names or names[0] == names[1]:
            return None
        home = self.outline.function(self.low)
        text = "\n".join(line for _, line in self.outline.text(home))
        header = re.split(r":\s*\n|\{", text)[0]
        times = [len(assigned(name, text)) + mentions(header, name) for name in names]
        return names if max(times) <= 1 else None

    def span(self, name):
        """Return (first, end) of the bytes, counted from the array's first, that their function accesses by a
        name."""
        home = self.outline.function(self.low)

        def by_name(number):
            site = SITES[number]
            here = site.function == self.one.function and home.first <= site.line <= home.last
            return here and self.called(number) == name

        return self.extents.of(self.address, by_name)

    # --- what the text shows --------------------------------------------------------------------------------

    @cached_property
    def update(self):
        """(line, Assignment, line of the read) of a read-modify-write of one element, which an atomic can
        do; None where other elements of the array are read for it, or where there is no such."""
        for site in (SITES[row.site] for row in (self.a, self.b)):
            found = assignment(site.source) if site.action == "store" else None
            if found is None or not found.is_element:
                continue
            before = [read for read in self.reads if self.precedes(read, site) and read.line != site.line]
            taken = [assignment(read.source) for read in before]
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
        """Whether one atomic does all of the `update`."""
        if not self.update:
            return False
        line, found, read = self.update
        if found.operator:
            return found.operator in ATOMIC_OPERATORS
        taken = [assignment(site.source) for site in self.reads if site.line == read != line]
        names = [found.target, *(each.target for each in taken if each)]
        return any(is_sum_or_extreme(found.value, name) for name in names)

    def precedes(self, read, store):
        """Return whether a read is on the line of a store or above it, in one function."""
        return read.function == store.function and read.line <= store.line

    @cached_property
    def in_passes(self):
        """Whether a loop changes elements that other threads have changed in earlier iterations, from what it
        reads before: a scan, a sort."""
        stores = [SITES[row.site] for row in (self.a, self.b) if row.site & 3 == STORE]
        return self.loop is not None and any(
            read.function == store.function and self.loop.first <= read.line <= store.line
            for read in self.reads
            for store in stores
        )

    @cached_property
    def taken_before(self):
        """The plain read (a Site) of an element that a compare-and-swap in a loop changes, or None."""
        read = next((SITES[row.site] for row in (self.a, self.b) if row.site & 3 == LOAD), None)
        change = next((SITES[row.site] for row in (self.a, self.b) if row.site & 3 == ATOMIC), None)
        if read is None or change is None or self.outline is None or not CAS.search(change.source):
            return None
        return read if self.outline.loop(change.line) else None

    @cached_property
    def spins_on(self):
        """The access (a Site) that waits in the header of a loop for this element, or None."""
        for site in map(SITES.__getitem__, self.sites):
            outline = self.outlines[0] if site.function == self.one.function else None
            loop = outline and outline.headed(site.line)
            if loop and re.match(r"\W*while\b", site.source) and site.action != "store":
                return site
        return None

    @cached_property
    def fenced_by_one(self):
        """The line of a fence between a write and the atomic that tells another block of it, after no
        barrier, so that it does not cover what other threads of its block wrote; or None."""
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
    def handing_on(self):
        """The lines of their function with atomics, apart from those that wait in the header of a loop."""
        home = self.outline and self.outline.function(self.low)
        lines = self.outline.text(home) if home else []
        return [n for n, text in lines if ATOMIC_CALL.search(text) and not self.outline.headed(n)]

    @cached_property
    def lock(self):
        """(first line, last line) of what a lock of their function protects, or None: from a loop that takes
        it by compare-and-swap to the line that gives it back."""
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
        """Those of the two Sites that no lock protects while it protects the other one."""
        if self.lock is None:
            return []
        first, last = self.lock
        outside = [site for site in (self.one, self.other) if not first <= site.line <= last]
        return outside if len(outside) == 1 else []


def assigned(name, text):
    """Return the places where a text assigns to a name."""
    return re.findall(rf"\b{re.escape(name)}\s*(?:,\s*\w+\s*)*(?<![=!<>])=(?!=)", text)


@dataclass(frozen=True)
class Extents:
    """The bytes that the sites of some accesses (Rows) touch in an array."""

    rows: Any
    space: Any  # the launch's AddressSpace

    def of(self, address, wanted):
        """Return (first, end) of the bytes, in the array at `address`, of accesses whose site is `wanted`."""
        array = self.space.find(address)
        inside = (self.rows.address >= array.base) & (self.rows.address < array.base + array.root.size)
        sites = [number for number in np.unique(self.rows.site[inside]).tolist() if wanted(number)]
        chosen = inside & np.isin(self.rows.site, sites)
        begin, size = self.rows.address[chosen] - array.base, self.rows.size[chosen]
        return int(begin.min()), int((begin + size).max())
