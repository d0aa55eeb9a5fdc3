"""Numbers that a kernel compares with unwritten memory, and the values that reruns therefore try there.

In some reruns, every byte of unwritten memory has one conspicuous value (`Probe`). Comparisons then report
their operands. If one operand is that pattern, plus or minus a small number, the other operand is a value
that can decide the comparison.
"""

import itertools
from collections import Counter

import numpy as np

MAX_OFFSET = (
    1 << 16
)  # the largest number that a kernel is expected to add to an integer before it compares it
MAX_NUMBERS = 64  # the number of operands that are kept for each comparison
MAX_EXACT = 3  # the number of operands each of which fills all unwritten memory in a run
MAX_RECORDED = 1 << 10  # the number of times that a comparison is examined in a run
# the types by which the bytes of unwritten memory can become a number in a comparison; "bf16" has no dtype
FLOATS = {"e": 2, "bf16": 2, "f": 4, "d": 8}
# Sizes of integers in bytes. An unrelated number can equal a NARROW pattern by chance.
NARROW, WIDE = (1, 2), (4, 8)
LARGE = 1 << 24  # a limit below the numbers that consist of WIDE bytes


class Probe(bytes):
    """A byte that fills unwritten memory, and a record of the numbers that are compared with it."""

    def __init__(self, _):
        # number that the bytes form -> its number of bytes, or its type in FLOATS
        self.kinds = {number_of(self * size, kind): kind for kind, size in FLOATS.items()}
        for size in (1, 2, 4, 8):
            for signed in (False, True):
                self.kinds[int.from_bytes(self * size, "little", signed=signed)] = size
        narrow = [number for number, kind in self.kinds.items() if kind in NARROW]
        self.adjacent = {number + step for number in narrow for step in (-1, 1)}
        # comparison -> the numbers in `adjacent` that were its operands. If it tests a loop counter, both
        # neighbours of a pattern are among its operands.
        self.counted = {}
        self.wide = [number for number, kind in self.kinds.items() if kind in WIDE]
        # comparison -> times that it was examined; the comparisons that are not examined again
        self.times, self.done = {}, set()
        self.last = {}  # comparison -> its last operand, in Python kernels
        self.found = {}  # (comparison, kind of number) -> {number: None}, in the order of the comparisons

    def compared(self, comparison, left, right):
        """Record the operands of a comparison.

        comparison: a key that identifies the comparison in the source.
        """
        times = self.times[comparison] = self.times.get(comparison, 0) + 1
        if times >= MAX_RECORDED:
            self.done.add(comparison)
        for value, other in ((left, right), (right, left)):
            if value in self.adjacent:
                self.counted.setdefault(comparison, set()).add(value)
            found = self.match(value)
            if found is None:
                continue
            kind, offset = found
            number = plain(other)
            if number is None or self.match(number) is not None:
                continue
            numbers = self.found.setdefault((comparison, kind), {})
            if len(numbers) < MAX_NUMBERS:
                number = number - offset if offset else number
                numbers[float(number) if kind in FLOATS else int(number)] = None

    def operand(self, comparison, position, value):
        """Record an operand of a comparison, after the operand before it. Return the operand.

        position: the position in the comparison, from 0. `a < b < c` has three operands.
        """
        if position:
            self.compared(comparison, self.last[comparison], value)
        self.last[comparison] = value
        return value

    def numbers(self):
        """Yield ((comparison, kind), {number: None}) for the comparisons with unwritten memory."""
        for (comparison, kind), numbers in self.found.items():
            seen = self.counted.get(comparison, ())
            counts = any(self.kinds[n] == kind and n - 1 in seen and n + 1 in seen for n in self.kinds)
            if kind not in NARROW or not counts:
                yield (comparison, kind), numbers

    def match(self, value):
        """Return (kind of number, offset) if a value consists of this byte, apart from an offset that was
        added to it. Otherwise, return None."""
        if type(value) is not int:
            value = plain(value)
        if value in self.kinds:
            return self.kinds[value], 0
        if type(value) is int and not -LARGE < value < LARGE:
            for number in self.wide:
                if abs(value - number) <= MAX_OFFSET:
                    return self.kinds[number], value - number
        return None


def plain(value):
    """Return a finite number as an int or a float, or None for any other value."""
    if type(value) is int:
        return value
    if isinstance(value, (float, np.floating)):
        value = float(value)
        return value if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else None


def number_of(pattern, kind):
    """Return the float with these bytes."""
    if kind == "bf16":
        pattern, kind = bytes(2) + pattern, "f"
    return float(np.frombuffer(pattern, kind)[0])


def bytes_of(number, kind):
    """Return the bytes of a number. An integer keeps its lowest bytes."""
    if kind not in FLOATS:
        return (int(number) % (1 << 8 * kind)).to_bytes(kind, "little")
    with np.errstate(over="ignore"):
        return np.float32(number).tobytes()[2:] if kind == "bf16" else np.array(number, kind).tobytes()


def neighbours(number, kind):
    """Return two numbers close to a number, one on each side of it. For 0 of type bf16, both are 0."""
    if kind not in FLOATS:
        return number - 1, number + 1
    if kind == "bf16":
        return number * (1 - 2**-7), number * (1 + 2**-7)
    with np.errstate(over="ignore", under="ignore"):
        near = np.array(number, kind)[()]
        return float(np.nextafter(near, near.dtype.type(-np.inf))), float(
            np.nextafter(near, near.dtype.type(np.inf))
        )


def middles(numbers, kind):
    """Return the midpoints between consecutive numbers."""
    between = [
        (a + b) / 2 if kind in FLOATS else (a + b) // 2 for a, b in itertools.pairwise(sorted(numbers))
    ]
    return [number for number in between if number not in numbers]


def values_compared(probes, is_short=True):
    """Return the values to try in unwritten memory, given the Probes of finished runs. They are bytes.

    The values that are likeliest to have an effect come first: some operands of each comparison, and the
    midpoints between the operands. The last value consists of all operands, midpoints and neighbours of
    operands, one after another, so that the elements differ.

    is_short: whether a run of the launch is short. If it is not, there are at most two values.
    """
    found, times = {}, Counter()
    for key, numbers in itertools.chain.from_iterable(probe.numbers() for probe in probes):
        found.setdefault(key, {}).update(numbers)
        times[key] += 1
    # A number that does not come from unwritten memory can equal a NARROW pattern, but rarely in both runs.
    found = {key: found[key] for key in sorted(found, key=lambda key: (key[1] in NARROW, -times[key]))}
    if not found:
        return []
    chosen = [[(number, kind) for number in spread([*numbers])] for (_, kind), numbers in found.items()]
    exact = [one for each in itertools.zip_longest(*chosen) for one in each if one is not None]
    of_kind = {}
    for (_, kind), numbers in found.items():
        of_kind.setdefault(kind, {}).update(numbers)
    between = [(number, kind) for kind, numbers in of_kind.items() for number in middles(numbers, kind)]
    kind, numbers = max(of_kind.items(), key=lambda item: len(item[1]))
    values = unique(exact)[:MAX_EXACT] + unique(between)[:1]
    # If there is only one number, the first values of a launch already contain smaller and larger values.
    if len(numbers) > 1:
        near = [n for number in spread([*numbers]) for n in neighbours(number, kind)]
        values.append(b"".join(unique((n, kind) for n in (*numbers, *middles(numbers, kind), *near))))
    values = list(dict.fromkeys(filter(None, values)))
    return values if is_short else values[:1] + values[1:][-1:]


def is_among(number, values, probes):
    """Return whether a number is one of the values that `values_compared` has returned for these Probes."""
    kinds = {kind for probe in probes for _, kind in probe.found}
    return any(bytes_of(number, kind) in values for kind in kinds)


def unique(numbers):
    """Return the bytes of pairs (number, kind), each once, without the bytes that are tried in any case."""
    return list(
        dict.fromkeys(bytes_of(n, kind) for n, kind in numbers if n and (kind in FLOATS or abs(n) > 1))
    )


def spread(items):
    """Return up to three items: the first, the last and the middle one."""
    return list(dict.fromkeys([items[0], items[-1], items[len(items) // 2]]))
