"""bounds: accesses outside their array, and negative indices, which Numba wraps and CUDA C would not."""

from collections import Counter

from sim.events import Element, Finding, Observer, alias

MOST_TOLD = 1000  # findings of one thread at one place; more are counted


class Bounds(Observer):
    """Findings `out-of-bounds` (an error) and `negative-index` (a warning)."""

    def launch_started(self, context):
        self.times, self.last = Counter(), {}

    def launch_finished(self, context):
        for where, finding in self.last.items():
            if self.times[where] > MOST_TOLD:
                yield finding.again(self.times[where] - MOST_TOLD)

    def access_refused(self, access, array, index, shape):
        where = access.site, access.block, access.thread, array.name
        self.times[where] += 1
        if self.times[where] <= MOST_TOLD:
            self.last[where] = self.finding(access, array, index, shape)
            return [self.last[where]]

    def finding(self, access, array, index, shape):
        element, size = Element(array.name, index), " x ".join(map(str, shape)) or "a scalar's"
        lowest = -1 if array.wraps else 0
        axis = next((axis for axis, (i, n) in enumerate(zip(index, shape)) if not lowest * n <= i < n), None)
        called = f"{array.name}{alias(access, array.name)}"
        if axis is not None:
            along = f" along axis {axis}" if len(shape) > 1 else ""
            negative = index[axis] < 0
            limit = "not be negative" if negative else f"be below {array.name}.shape[{axis}]"
            guard = f"the index along axis {axis} must {limit}"
            if len(shape) == 1:
                guard = "if i >= 0" if negative else f"if i < {array.name}.shape[0]"
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
                f"{element} is outside {called}, whose shape is {size}",
                (access,),
                *element,
                reason=reason,
                fix=f"guard the access: {guard}",
            )
        return Finding(
            "negative-index",
            "warning",
            f"{element} counts from the end of {called}, whose shape is {size}",
            (access,),
            *element,
            reason=(
                "Numba wraps negative indices as Python does; CUDA C would read or write in front of the"
                " array."
            ),
            fix="if the wrap is not meant, guard the access: if i >= 0",
        )
