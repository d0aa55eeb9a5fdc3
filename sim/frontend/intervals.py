"""Result types of binary operators, and the intervals that contain their results."""

import ast
import functools
import operator

from sim.frontend.tree import OPERATORS
from sim.frontend.types import ANY, MOST_BITS, UNKNOWN, Number
from sim.isa.table import INSTRUCTIONS

ADDITIVE, BITWISE = (ast.Add, ast.Sub), (ast.BitAnd, ast.BitOr, ast.BitXor)
# Operators that are monotonic in each operand, so their extreme results are results for ends of the two
# intervals. Python's integers cannot overflow, so these results are exact.
EXACT = {
    op: getattr(operator, OPERATORS[op])
    for op in (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.LShift, ast.RShift)
}


@functools.cache
def scalar_of(op, left, right):
    """Return the scalar type of an operator's result, or None if Numba does not support the operator for
    these types."""
    entry = INSTRUCTIONS.get(f"operator.{OPERATORS.get(op)}")
    version = entry and entry.version(left, right)
    return version and version.results


def operation(op, left, right):
    """Return the type of `left op right`."""
    if UNKNOWN in (left, right):
        return UNKNOWN
    if not (isinstance(left, Number) and isinstance(right, Number)):
        return ANY
    scalar = scalar_of(type(op), left.scalar, right.scalar)
    if scalar is not int or None in (left.bits, right.bits):
        return ANY if scalar is None else Number(scalar)
    result = Number(int, *interval(op, left, right))
    return result if result.low is not None and result.bits <= MOST_BITS else Number(int)


def interval(op, a, b):
    """Return the (lowest, highest) result of `op` on two Numbers with known intervals, or () if it is not
    known."""
    if isinstance(op, BITWISE):
        return bitwise_interval(op, a, b)
    if isinstance(op, ast.Mod):
        most = max(abs(b.low), abs(b.high))
        high = b.high - 1 if b.low > 0 else most
        return (0, min(high, a.high) if a.low >= 0 else high) if b.low > 0 else (-most, most)
    if isinstance(op, ast.FloorDiv) and b.low <= 0:  # Numba defines i // 0 as 0.
        most = max(abs(a.low), abs(a.high))
        return -most, most
    # A right shift moves a value towards 0 or -1.
    if isinstance(op, ast.RShift) and not 0 <= b.low <= b.high < 64:
        return min(a.low, 0), max(a.high, 0)
    exact = EXACT.get(type(op))
    if exact is None or isinstance(op, ast.LShift) and not 0 <= b.low <= b.high <= MOST_BITS:
        return ()
    corners = [exact(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(corners), max(corners)


def bitwise_interval(op, a, b):
    """Return the (lowest, highest) result of `&`, `|` or `^` on two Numbers with known intervals."""
    natural_highs = [number.high for number in (a, b) if number.low >= 0]
    if isinstance(op, ast.BitAnd) and natural_highs:
        return 0, min(natural_highs)
    most = 1 << max(a.bits, b.bits)
    return 0 if len(natural_highs) == 2 else -most, most - 1


def range_interval(*ends):
    """Return the (lowest, highest) value that `range(*ends)` can yield."""
    start, stop = (Number(int, 0, 0), *ends) if len(ends) == 1 else ends[:2]
    if len(ends) < 3 or ends[2].low > 0:
        return start.low, max(stop.high - 1, start.low)
    down = ends[2].high < 0
    return min(start.low, stop.low + down), start.high if down else max(start.high, stop.high)
