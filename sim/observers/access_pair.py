"""The description of two racing accesses: their lines, the barriers near them, and the names by which they
refer to the memory. It is derived from the access log and the source.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sim.events import LOAD, SITES
from sim.observers.atomic_types import SMALLEST, ElementType, type_in_cpp
from sim.observers.call_lines import common_caller, functions, name_in_cpp
from sim.observers.extents import Extents
from sim.observers.mbarrier_arms import find_arms
from sim.observers.statements import (
    ATOMIC_CALL,
    assigned,
    assignment,
    elements,
    may_perform,
    mentions,
    sliced,
    statement,
    statement_of,
    statements,
    stored_variable,
    value_in_full,
)
from sim.observers.words import CPP

THREAD_INDEX = re.compile(r"\b(?:threadIdx|thread_rank|cuda\.grid|laneid)\b")
NAMED_BARRIER = re.compile(r"\bbar(?:rier)?(?:\.cta)?\.(?:sync|arrive)")


@dataclass(frozen=True)
class AccessPair:
    """Two accesses to one byte, `a` and `b` (Rows). If only one of them writes, that one is `a`."""

    a: Any
    b: Any
    address: int  # address of the byte
    equal: bool  # whether all racing accesses write the same value
    replaced: bool  # whether one of the writing threads later overwrites the byte
    colliding: bool  # whether several threads write the byte
    sites: tuple[int, ...]  # the sites of all accesses that race on the byte
    exceeds_scope: bool  # whether an atomic of block scope races with an access by another block
    lacks_fence: bool  # whether fences before the atomics would order the accesses
    one_lock: bool  # whether both threads hold the same lock, which lacks fences
    lock_atomics: tuple[Any, Any] | None  # Sites that take and release a lock around the first access
    relaxed: bool  # whether the only arrivals between the accesses are relaxed, or have block scope
    synchronizes: bool  # whether threads use the results of atomics, or execute fences
    fenced: bool  # whether the writer executes a grid-wide fence before its next atomic
    meetings: dict[tuple[str, str], set[int]]  # (barrier, function) -> lines where the barrier opened
    named: tuple[int, int] | None  # number and count of a named barrier that both threads call
    callers: int  # the number of threads of the block that call this named barrier
    near: int  # 0 for threads in different blocks, 1 in different warps of a block, 2 in one warp
    outline_of: Callable[[Any], Any] | None  # maps a Site to the Outline of its function, or to None
    kernel: str  # name of the kernel
    language: str
    space: str  # "shared" or "global"
    extents: Extents
    diverged: frozenset[tuple[str, int]]  # (function, line) of the barriers that some threads missed
    release: Any  # the Release that should order the accesses, or None
    array: str | None  # name of the array in findings
    strong: dict[int, int] | None  # site of each strong load or store -> LOAD or STORE
    mbarrier_events: Any  # the MbarrierEvents of the launch, or None
    copies: dict[int, Any]  # position of an access by an asynchronous copy -> the Flight of the copy

    # --- the two sites --------------------------------------------------------------------------------------

    @property
    def one(self):
        return SITES[self.a.site]

    @property
    def other(self):
        return SITES[self.b.site]

    @property
    def actions(self):
        return {self.action(self.a.site), self.action(self.b.site)}

    def action(self, number):
        """Return what an access at a site does: LOAD, STORE or ATOMIC. A volatile access is a load or a
        store."""
        return (self.strong or {}).get(number, number & 3)

    def of_action(self, action):
        """Return the Site of the access that performs this action, or None."""
        return next((SITES[row.site] for row in (self.a, self.b) if self.action(row.site) == action), None)

    @property
    def several_blocks(self):
        """True if two blocks access global memory. Only a grid barrier can then order the two threads."""
        return self.a.block != self.b.block and not self.in_cluster

    @property
    def in_cluster(self):
        """True if two blocks of a cluster access the shared memory of one of them."""
        return self.a.block != self.b.block and self.space == "shared"

    @property
    def initialises(self):
        """True if one access initialises an mbarrier at which the other access arrives or waits."""
        uses = self.other.opcode.startswith(("mbarrier.", "cp.async.bulk"))
        return uses and (self.one.action, self.other.action) == ("store", "atomic")

    @property
    def low(self):
        return min(self.one.line, self.other.line)

    @property
    def high(self):
        return max(self.one.line, self.other.line)

    @property
    def reads(self):
        """The Sites of the racing loads of the byte."""
        return [SITES[number] for number in self.sites if self.action(number) == LOAD]

    @property
    def same_line(self):
        return (self.one.function, self.one.line) == (self.other.function, self.other.line)

    @property
    def in_one_function(self):
        """True if one function contains both accesses, as far as the source shows it."""
        known = None not in self.outlines
        return self.one.function == self.other.function and (not known or self.outline is not None)

    @property
    def statements_of_line(self):
        """True if the accesses belong to two statements on the same line."""
        one, other = self.statement(self.one), self.statement(self.other)
        return self.same_line and (one != other or not one)

    def statement(self, site):
        """Return the text of the statement at a Site.

        C++ compilers do not record the column of a statement. The text is therefore empty if several
        statements on the line could perform the access.
        """
        found = [text for _, text in statements(site.source)]
        if self.language != CPP or len(found) < 2:
            return statement_of(site)
        fitting = [text for text in found if may_perform(text, site.action)]
        return fitting[0] if len(fitting) == 1 else ""

    def shared_lines(self, lines):
        """Return the subset of `lines` that contain several statements."""
        return [line for line in lines if self.outline and len(statements(self.outline.lines[line])) > 1]

    @cached_property
    def outlines(self):
        """The Outlines of the functions of the two accesses. An unknown one is None."""
        return self.outline_of(self.one), self.outline_of(self.other)

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
        """The branch whose different arms contain the two accesses, or None."""
        return self.outline and self.outline.branch(self.one.line, self.other.line)

    @cached_property
    def branch_of_calls(self):
        """The branch of a caller whose different arms contain the calls that lead to the two accesses, or
        None."""
        return self.calls and self.calls.branch

    @cached_property
    def mbarrier_arms(self):
        """The two Arms of the branch around the accesses, or None unless both use mbarriers."""
        return find_arms(self)

    @cached_property
    def block_barriers(self):
        """The lines of the block barriers that opened, if one function contains both accesses."""
        return self.lines_of("syncthreads")

    @cached_property
    def barriers(self):
        """The lines of the barriers that can order the accesses: grid, cluster or block barriers."""
        if self.in_cluster:
            return self.lines_of("barrier.cluster")
        if self.several_blocks:
            return self.lines_of("grid.sync")
        return self.block_barriers | self.named_lines if self.named else self.block_barriers

    @cached_property
    def named_lines(self):
        """The lines of the function that call named barriers, directly or in a function of the same file."""
        home = self.outline and self.outline.function(self.low)
        if home is None:
            return set()
        nodes = functions(self.outline.root)
        texts = [(node, "\n".join(text for _, text in self.outline.text(node))) for node in nodes]
        names = [name_in_cpp(self.outline, node) for node, text in texts if NAMED_BARRIER.search(text)]
        calls = rf"|\b(?:{'|'.join(filter(None, names))})\s*\(" if any(names) else ""
        found = re.compile(NAMED_BARRIER.pattern + calls)
        return {line for line, text in self.outline.text(home) if line > home.first and found.search(text)}

    @cached_property
    def calls(self):
        """The CallLines of accesses in different functions, or None."""
        if self.in_one_function:
            return None
        return common_caller((self.one, self.other), self.outlines, self.kernel, self.outline_of)

    @property
    def barriers_in_loop_of_calls(self):
        """The lines of the barriers inside the loop around `calls`."""
        kind = "barrier.cluster" if self.in_cluster else "grid.sync" if self.several_blocks else "syncthreads"
        lines, loop = self.meetings.get((kind, self.calls.name), ()), self.calls.loop
        return [line for line in lines if loop.first <= line <= loop.last]

    def lines_of(self, barrier):
        if not self.in_one_function:
            return set()
        lines = self.meetings.get((barrier, self.one.function), set())
        home = self.outline and self.outline.function(self.low)
        return {line for line in lines if home is None or home.first <= line <= home.last}

    @cached_property
    def barriers_in_loop(self):
        """The lines of the barriers inside the innermost loop that contains both accesses."""
        lines = self.barriers | (self.lines_of("syncwarp") if self.near == 2 else set())
        return {line for line in lines if self.loop.first <= line <= self.loop.last}

    @cached_property
    def scalar(self):
        """The name of the memory if the C++ source uses it as a variable and not as an array, else None.

        It is the array's name, or the name of a reference or member to which a statement assigns.
        """
        if self.language != CPP:
            return None
        texts = [self.statement(site) or site.source for site in (self.one, self.other)]
        name = self.array if self.array and re.fullmatch(r"\w+", self.array) else None
        if name and all(re.search(rf"(?<![\w.*]){name}\b(?!\s*[\[(])", text) for text in texts):
            return name
        stores = [text for site, text in zip((self.one, self.other), texts) if site.action == "store"]
        name = next(filter(None, map(stored_variable, stores)), None)
        return name if name and all(mentions(text, name) for text in texts) else None

    def assignment(self, source):
        """Return the Assignment in a line, or None. A scalar in memory counts as an array element."""
        found = assignment(source)
        if found and not found.is_element and found.target == self.scalar:
            return replace(found, is_element=True)
        return found

    def elements(self, text, name):
        """Return the elements of a name in a text (sim.observers.statements.elements)."""
        return elements(text, name, name == self.scalar)

    @cached_property
    def element_type(self):
        """The ElementType of the element that the accesses change, or None if it is unknown."""
        size = self.extents and self.extents.size(self.a)
        if not size:
            return None
        if self.language != CPP and size == 2 and "bfloat16" in self.text_of_function:
            return None
        if self.language != CPP:
            dtype = self.extents.dtype(self.address)
            # A kernel in Python can store an integer to an array of floating-point values.
            return None if dtype is None and size >= SMALLEST else ElementType.of(dtype, size)
        value = next((row.value for row in (self.a, self.b) if row.value is not None), None)
        if value is None:  # a compare-and-swap that has failed
            return ElementType.of(None, size) if "cas" in self.one.opcode + self.other.opcode else None
        in_ptx = ElementType.of(np.asarray(value).dtype, size)
        changed = (self.assignment(self.statement(site)) for site in (self.one, self.other))
        target = next((found.target for found in changed if found and found.is_element), "")
        # The types of members and of template arguments are declared outside the function.
        texts = self.text_of_function, "\n".join(self.outline.lines.values()) if self.outline else ""
        found = (type_in_cpp(in_ptx, target, text) for text in texts)
        return next((type_ for type_ in found if type_ != in_ptx), in_ptx)

    def line_of(self, site):
        """Return "line 3", or "line 3 of f" if lines are counted from the beginning of another function."""
        return f"line {site.line}{f' of {site.function}' * (site.function != self.one.function)}"

    # --- names ----------------------------------------------------------------------------------------------

    def called(self, number):
        """Return the name by which the access at a site refers to the memory, or None if the name is
        uncertain."""
        site = SITES[number]
        if site.action == "atomic":
            found = ATOMIC_CALL.search(self.statement(site))
            return found and found[1]
        found = assignment(self.statement(site))
        # In `a[n++] = x`, the access may be to n. In `a->n = x`, the name is uncertain: other pointers to the
        # structure have other names.
        if found and re.search(r"\+\+|--|->", found.target):
            return None
        if site.action == "store":
            return found.name if found and found.is_element else None
        text = self.statement(site)
        rest = statement(text)
        # The condition of a branch can be on the same line.
        header = text.partition(rest)[0] if rest else text
        value = f"{found.value if found else rest}; {header}"
        if found and found.is_element:  # the index of the target is read too
            value += f"; {found.target if found.operator else found.target.replace(found.name, '', 1)}"
        if self.language == CPP:
            # Inline PTX can contain brackets, and a semicolon that divides its string.
            value = re.sub(r'"[^"]*("|$)', "", value)
        # For a member, such as `u.f[i]` or `p->f[i]`, the name is that of the object.
        names = set(re.findall(r"(?<![\w.>])(\w+)(?:(?:\.|->)\w+)*\s*\[", value))
        if self.language == CPP:  # in Python, `* name` multiplies
            names |= set(re.findall(r"\*\s*(\w+)\b(?!\s*[\[*])", value))
        exact = re.match(r"(\w+)\s*\[", site.source[max(site.column - site.indent, 0) :])
        if exact and exact[1] in names and self.language == "Numba":
            return exact[1]
        return names.pop() if len(names) == 1 else None

    @cached_property
    def views(self):
        """The two different names by which the accesses refer to the same memory, or None. A name that is
        assigned more than once does not count, because it may have referred to other memory before. The
        exception is a name that is rebound to a slice of its own array: `q = q[48:]`. A name for one thread's
        part of an array does not count either, because it is not a second array: `mine = q + 32 * warp`."""
        names = self.called(self.a.site), self.called(self.b.site)
        if self.outline is None or self.in_cluster or None in names or names[0] == names[1]:
            return None
        text = self.text_of_function
        header = re.split(r":\s*\n|\{", text)[0]
        times = [
            len(assigned(name, text)) - len(sliced(name, text)) + mentions(header, name) for name in names
        ]
        if max(times) > 1 or not all(map(self.span, names)):
            return None
        inner = self.inner_views(names)
        parts = (THREAD_INDEX.search(value) and mentions(value, whole) for value, whole in inner)
        return None if any(parts) else names

    @property
    def nested_views(self):
        """True if one of the `views` may be meant as a part of the other view. All bytes accessed through the
        inner view are then in the range of the outer view, and the definition of the inner view mentions the
        outer view or a thread index."""
        inner = self.inner_views(self.views)
        return any(THREAD_INDEX.search(value) or mentions(value, whole) for value, whole in inner)

    def inner_views(self, names):
        """Return (value, other name) for each of two names if its span is inside the span of the other name.

        value: the definition of the name, as `value_in_full` returns it.
        """
        found, spans = [], {name: self.span(name) for name in names}
        for name, other in (names, names[::-1]):
            (first, end), (begin, last) = spans[name], spans[other]
            if begin <= first and end <= last:
                found.append((value_in_full(name, self.text_of_function), other))
        return found

    @cached_property
    def text_of_function(self):
        """The text of the function that contains both accesses, or "" if no known function contains both."""
        lines = self.outline.text(self.outline.function(self.low)) if self.outline else ()
        return "\n".join(line for _, line in lines)

    def span(self, name):
        """Return the range (first, end) of byte offsets in the array that the function accesses through
        `name`. Return None if there is no such access."""
        home = self.outline.function(self.low)

        def by_name(number):
            site = SITES[number]
            here = site.function == self.one.function and home.first <= site.line <= home.last
            return here and self.called(number) == name

        return self.extents.of(self.address, by_name)
