"""Vector clocks, and their union."""

import itertools

MAX_PARTS = 8  # the maximum number of a thread's separate clocks before they are merged


def widen(clock, clocks):
    """Return the union of a clock and several others.

    If the others add nothing, return the same object `clock`. A comparison of ids then suffices while threads
    spin.
    """
    union = merge([clock, *clocks])
    return clock if clock == union else union


class Clock(dict):
    """A vector clock: for each thread or block, the last segment whose accesses are known to have happened.
    Clocks are combined by merging.

    number: a unique number.
    contains: the numbers of some clocks already merged into this one.
    """

    __slots__ = "number", "contains"
    numbers = itertools.count()

    def __init__(self, clocks):
        super().__init__(clocks[-1])
        self.number, self.contains = next(Clock.numbers), set()
        for clock in clocks:
            if isinstance(clock, Clock):
                self.contains.add(clock.number)
                self.contains |= clock.contains if len(clock.contains) < MAX_PARTS else set()


def merge(clocks):
    """Return the union of several clocks: the maximum bound for each key.

    A clock with an entry per thread is expensive to merge. Skip those that the largest clock already
    contains, such as the clock that a thread acquired with a lock and publishes again when it releases the
    lock.
    """
    if len(clocks) == 1:
        return clocks[0]
    distinct = sorted({id(part): part for part in clocks}.values(), key=len)
    if not distinct:
        return {}
    known = getattr(distinct[-1], "contains", ())
    distinct = [part for part in distinct if getattr(part, "number", None) not in known]
    if len(distinct) == 1:
        return distinct[0]
    result = Clock(distinct)
    for part in distinct[:-1]:
        for key, bound in part.items():
            if bound > result.get(key, -1):
                result[key] = bound
    return result
