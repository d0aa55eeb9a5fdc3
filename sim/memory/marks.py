"""Marks of the written elements of local memory. Reads of elements without a mark are reported."""

import numpy as np

from sim.events import LOAD, STORE

WORDS = {1: "b", 2: "h", 4: "i", 8: "q"}  # size of an integer in bytes -> its memoryview format


class Marks:
    """The part of Array for local memory whose reads are checked (see the attribute `marks`)."""

    __slots__ = ()

    def mark(self, place, site):
        """Process an access to an element of local memory. A store or an atomic marks the element as written.
        A load, or an atomic that uses the old value, reports the element if it is unwritten."""
        self.share_marks()
        # `marks` covers the whole root, so positions in it include the offset of this view.
        begin = self.offset + sum(i * s for i, s in zip(place, self.strides))
        end = begin + self.dtype.itemsize
        if site & 3 != STORE and site not in self.context.overwriting and self.marks.count(0, begin, end):
            what = "read" if site & 3 == LOAD else "changed"
            self.context.announce("unwritten", self.context.witness(what, site), self.address(place))
        if site & 3 != LOAD:
            self.marks[begin:end] = b"\xff" * (end - begin)

    def share_marks(self):
        """Convert the marks of local memory from one mark per element to one mark per byte, so that several
        views can share the marks."""
        if type(self.marks) is list:
            size = self.dtype.itemsize
            self.marks = bytearray(np.array(self.marks, np.int8).repeat(size))
            self.written = memoryview(self.marks).cast(WORDS[size])
