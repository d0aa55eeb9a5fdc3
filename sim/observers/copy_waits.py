"""The waits for an asynchronous copy (cp.async) that races with an access by another thread.

A barrier alone does not order the two: the copy may still be under way when the barrier opens. The thread
that sent the copy has to wait for it before the barrier.
"""

import re
from dataclasses import dataclass

from sim.events import LOAD

WAIT = re.compile(r"wait", re.IGNORECASE)
COMMENT = re.compile(r"//.*|/\*.*?\*/|(?<!\S)#.*")


@dataclass(frozen=True)
class CopyWaits:
    """The waits in the function that contains a copy and the other access, or that calls their functions.

    copy, other: the lines of the copy and of the other access.
    lines: the lines that wait, as far as the source shows it.
    is_tracked: whether an mbarrier counts the copy.
    is_source: whether the other access writes the memory from which the copy reads.
    has_ended: whether the thread that sent the copy waits for it before the next barrier of the block.
    """

    copy: int
    other: int
    lines: tuple[int, ...]
    is_tracked: bool
    is_source: bool
    has_ended: bool

    @property
    def between(self):
        """The last line between the copy and the other access that waits, or None."""
        return max((line for line in self.lines if self.copy < line < self.other), default=None)

    @property
    def is_missing(self):
        """True if no thread waits for the copy before the other access, which follows the copy."""
        if self.copy >= self.other or self.between:
            return False
        # The wait can be in a function with a name that does not mention it.
        return self.is_tracked or not self.has_ended or any(line > self.other for line in self.lines)


def find_copy_waits(facts):
    """Return the CopyWaits of a race, or None unless exactly one access belongs to a copy.

    If no known function contains both accesses or calls, the copy is assumed to come first.
    """
    sent = [(facts.copies or {}).get(row.position) for row in (facts.a, facts.b)]
    if (sent[0] is None) == (sent[1] is None):
        return None
    outline, lines = facts.outline, (facts.one.line, facts.other.line)
    if not facts.in_one_function:
        outline, lines = None, (0, 1) if sent[0] else (1, 0)
        if facts.calls:
            outline, lines = facts.calls.outline, facts.calls.lines
    text = outline.text(outline.function(lines[0])) if outline else ()
    waits = tuple(number for number, line in text if WAIT.search(COMMENT.sub("", line)))
    flight, row = (sent[0], facts.a) if sent[0] else (sent[1], facts.b)
    tracked, is_source = flight.is_tracked(), row.site & 3 == LOAD
    return CopyWaits(*lines[:: 1 if sent[0] else -1], waits, tracked, is_source, bool(flight.ends))
