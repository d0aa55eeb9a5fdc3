"""bounds: out-of-bounds accesses, and negative indices, which count from the end in Numba but not in CUDA
C++."""

import re
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
from sim.observers.index_origins import IndexOrigins
from sim.observers.statements import arguments, index_of
from sim.observers.words import LOCAL_VARIABLE

LOOSE = re.compile(r"[<>=?&|^]|\b(?:if|and|or|not)\b")  # operators with a lower precedence than a comparison
MAX_REPORTED = 1000  # the maximum number of findings per thread and site; further ones are only counted


class Bounds(Observer):
    """An observer that reports `out-of-bounds` (an error) and `negative-index` (a warning)."""

    def launch_started(self, context):
        self.context, self.times, self.last = context, Counter(), {}
        self.origins = IndexOrigins(context)

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

    def width(self, access, array, name):
        """Return the number of array elements in the unit that an index on the source line counts: 4 for x[i]
        if x is a float4* to an array of floats."""
        width = self.context.element_bytes.get(array.name, 0) // array.itemsize
        return width if width > 1 and access.site and index_of(access.site, name) else 1

    def local_finding(self, access, array, index):
        """Return the finding for an access outside the local memory of a PTX function.

        Compilers lay out all local variables of a function in one block and drop their names.
        """
        size = array.shape[0] * array.itemsize
        distance = -index * array.itemsize if index < 0 else index * array.itemsize - size
        where = "before the start" if index < 0 else "past the end"
        return untyped_finding(
            access,
            array,
            index,
            f"an address {distance:,} bytes {where} of the function's local variables is {access.what}",
            f"The function's local variables occupy {size:,} bytes together. An access outside its own array"
            " that stays within these bytes is not found.",
            "each index must be within its own array",
        )

    def unnamed_finding(self, access, array, index):
        """Return the finding for an access near memory of a whole program to which no parameter points."""
        size = array.shape[0] * array.itemsize
        limit = ">= 0" if index < 0 else "below the number of elements"
        return untyped_finding(
            access,
            array,
            index,
            f"byte {index * array.itemsize:,} is {access.what}, outside {array.name}",
            "It lies before the first byte." if index < 0 else f"It must be below {size:,}.",
            f"the index must be {limit}",
        )

    def finding(self, access, array, index, shape):
        if len(index) == 1 and not array.wraps:
            if array.name == LOCAL_VARIABLE:
                return self.local_finding(access, array, *index)
            if " allocated at " in array.name:
                return self.unnamed_finding(access, array, *index)
        element, size = Element(array.name, index), " x ".join(map(str, shape)) or "a scalar's"
        name, called = names(access, array)
        origins, names_used = self.origins(access, name)
        there = Element(name, index) if name else f"index {index_text(index)}"
        lowest = -1 if array.wraps else 0
        axis = next((axis for axis, (i, n) in enumerate(zip(index, shape)) if not lowest * n <= i < n), None)
        if axis is not None:
            width = self.width(access, array, name)
            reason, guard = outside(axis, index[axis], shape, array.wraps, name, access, width)
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
                origins=(origins,),
                origin_names=names_used,
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
            origins=(origins,),
            origin_names=names_used,
            fix="if you did not mean to count from the end, guard the access:"
            f" {condition(access, name, '>= 0')}",
        )


def outside(axis, index, shape, wraps, name, access, width):
    """Return the reason why an index along one axis is outside the shape, and the condition to guard it.

    width: see Bounds.width.
    """
    along = f" along axis {axis}" if len(shape) > 1 else ""
    limit = "not be negative" if index < 0 else f"be below {f'{name}.shape[{axis}]' if name else shape[axis]}"
    guard = f"the index along axis {axis} must {limit}"
    if len(shape) == 1:
        length = (f"{name}.shape[0]" if name else f"{shape[0]}") + f" / {width}" * (width > 1)
        guard = condition(access, name, ">= 0" if index < 0 else f"< {length}")
    if index < 0 and wraps:
        reason = (
            f"Index {index}{along} is negative. Numba adds the length to a negative index, and"
            f" {index} + {shape[axis]} is still negative."
        )
    elif index < 0:
        reason = f"Index {index} lies before the first element."
    else:
        reason = f"Index {index}{along} must be below {shape[axis]}."
        if width > 1:
            reason += f" One element of {name} in the source has {width} elements of the array."
    return reason, guard


def condition(access, name, test):
    """Return a guard for an access, such as "if i + 1 < x.shape[0]".

    The guard tests the index expression from the source if it is simple enough.
    """
    found = index_of(access.site, name) if access.site and name else None
    parts = arguments(found[0]) if found else []
    if len(parts) != 1 or not parts[0]:
        return f"the index must be {test}"
    text = f"({parts[0]})" if LOOSE.search(parts[0]) else parts[0]
    return f"if {text} {test}"


def names(access, array):
    """Return two names of the accessed array: the name on the source line, and a phrase that also mentions
    the argument to which the array belongs, such as "row, a part of x".

    The first name is None if the line has no name for the array, as in x[i].field.
    """
    home, here = array.allocation.home, leading_name(access)
    if array.name == CONSTANT and here:
        return here, f"{here}, {CONSTANT}"
    if home is None or array.shape == tuple(home[2]) or not array.wraps:
        return array.name, f"{array.name}{alias(access, array.name)}"
    if here and here != array.name.partition("[")[0]:
        return here, f"{here}, a part of {array.name}"
    if home[1] > array.dtype.itemsize:  # the array is a field of a record
        return None, f"a part of {array.name}"
    return array.name, array.name


def untyped_finding(access, array, index, verdict, reason, condition):
    """Return the finding for an access outside memory without a declared type.

    condition: the condition of the suggested guard.
    """
    return Finding(
        "out-of-bounds",
        "error",
        verdict,
        (access,),
        array.name,
        (index,),
        reason=reason,
        fix=f"guard the access: {condition}",
        undefined=access.what != "written",
        poison=UNTYPED_POISON,
    )
