"""bounds: out-of-bounds accesses, and negative indices, which Numba wraps but CUDA C++ does not."""

from collections import Counter

from sim.events import (
    CONSTANT,
    INTEGER_POISON,
    UNTYPED_POISON,
    Element,
    Finding,
    Observer,
    alias,
    index_text,
    leading_name,
)

MAX_REPORTED = 1000  # maximum number of findings per thread and site; further ones are only counted


class Bounds(Observer):
    """Reports `out-of-bounds` (an error) and `negative-index` (a warning)."""

    def launch_started(self, context):
        self.times, self.last = Counter(), {}

    def launch_finished(self, context):
        for where, finding in self.last.items():
            if self.times[where] > MAX_REPORTED:
                yield finding.with_cases(self.times[where] - MAX_REPORTED)

    def access_refused(self, access, array, index, shape):
        where = access.site, access.block, access.thread, array.name
        self.times[where] += 1
        if self.times[where] <= MAX_REPORTED:
            self.last[where] = self.finding(access, array, index, shape)
            return [self.last[where]]

    def finding(self, access, array, index, shape):
        element, size = Element(array.name, index), " x ".join(map(str, shape)) or "a scalar's"
        name, called = names(access, array)
        there = Element(name, index) if name else f"index {index_text(index)}"
        lowest = -1 if array.wraps else 0
        axis = next((axis for axis, (i, n) in enumerate(zip(index, shape)) if not lowest * n <= i < n), None)
        if axis is not None:
            along = f" along axis {axis}" if len(shape) > 1 else ""
            negative = index[axis] < 0
            size_there = f"{name}.shape[{axis}]" if name else shape[axis]
            limit = "not be negative" if negative else f"be below {size_there}"
            guard = f"the index along axis {axis} must {limit}"
            if len(shape) == 1:
                guard = "if i >= 0" if negative else f"if i < {size_there}"
            reason = f"Index {index[axis]}{along} must be below {shape[axis]}."
            if negative:
                reason = f"Index {index[axis]} lies in front of the first element."
            if negative and array.wraps:
                reason = (
                    f"Index {index[axis]}{along} is negative, and even counted from the end it lies in front"
                    f" of the first of {shape[axis]}."
                )
            return Finding(
                "out-of-bounds",
                "error",
                f"{there} is outside {called}, whose shape is {size}",
                (access,),
                *element,
                reason=reason,
                fix=f"guard the access: {guard}",
                undefined=access.what != "written",
                poison=INTEGER_POISON if array.wraps else UNTYPED_POISON,
            )
        return Finding(
            "negative-index",
            "warning",
            f"{there} counts from the end of {called}, whose shape is {size}",
            (access,),
            *element,
            reason=(
                "Numba wraps negative indices as Python does; CUDA C would read or write in front of the"
                " array."
            ),
            fix="if the wrap is not meant, guard the access: if i >= 0",
        )


def names(access, array):
    """Return (name of the array on the source line, the same name followed by the array that it is part of).

    The first is None if the array has no name there, as in x[i].field.
    """
    home, here = array.allocation.home, leading_name(access)
    if array.name == CONSTANT and here:
        return here, f"{here}, {CONSTANT}"
    if home is None or array.shape == tuple(home[2]) or not array.wraps:
        return array.name, f"{array.name}{alias(access, array.name)}"
    if here and here != array.name.partition("[")[0]:
        return here, f"{here}, a part of {array.name}"
    if home[1] > array.dtype.itemsize:  # a field of a record
        return None, f"a part of {array.name}"
    return array.name, array.name
