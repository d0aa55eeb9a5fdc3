"""The values that reruns give to unwritten memory and to registers that no lane or instruction has set."""

import numpy as np

from sim.compared_values import Probe, is_among, values_compared

# First the usual initial values of flags, states and keys, because loops that wait for them end soonest. Then
# NaN (-1 as an integer): a product with 0 depends on its other factor only if that is NaN or infinite. Then
# large positive and negative values. The runs with PROBES also record the numbers that are compared with
# unwritten memory.
PROBES = b"\x5a", b"\xda"
POISONS = 0, 1, -1, b"\xff", *PROBES
TRIAL_POISONS = 0, -1  # two values that differ as integers and as floats
LEAST_POISONS = 4  # a read is only a warning if this many values have the same effects
MAX_COMPARISON_CONSTANTS = 8  # number of the kernel's comparison constants that are tried
MAX_ARGUMENT_VALUES = 8  # number of values from the arguments that are tried
MAX_SEARCHED = 1 << 20  # number of elements of one array among which to look for values


def initial_values(comparison_constants):
    """Return the values to try for a kernel: POISONS, and some of the constants in its comparisons."""
    constants = sorted(comparison_constants - {*POISONS})
    return [*POISONS, *constants[:MAX_COMPARISON_CONSTANTS]]


def values_of_memory(comparison_constants, arguments, is_untyped, is_short):
    """Yield the values to try in unwritten memory. The launch runs with each value before the next is taken.

    These are POISONS, values that follow from comparisons in these runs, constants in the kernel's
    comparisons, and values from the Arguments.

    is_untyped: whether the memory has no types, so that the number -1 has the same bytes as 0xFF.
    is_short: whether a run of the launch is short, so that more values can be tried.
    """
    first = [value for value in POISONS if value not in PROBES and (value != b"\xff" or not is_untyped)]
    constants = initial_values(comparison_constants)[len(POISONS) :]
    yield from first
    probes = []
    for byte in PROBES:
        # Recording takes time, so the second run records only if the first one has found a comparison.
        records = not probes or probes[0].found
        probes += [Probe(byte)] if records else []
        yield probes[-1] if records else byte
    compared = values_compared(probes, is_short)
    yield from compared
    for value in dict.fromkeys([*constants, *values_of(arguments)]):
        if isinstance(value, bytes) or not is_among(value, compared, probes):
            yield value


def values_of(arguments):
    """Return values that occur in the Arguments of a launch, for reads of unwritten memory.

    A kernel may compare unwritten memory with its input, as a search does. In such a kernel, only these
    values have an effect. They are numbers, or bytes for arrays of one-byte elements.
    """
    found = {}
    for leaf in (leaf for argument in arguments for leaf in argument.leaves()):
        found |= dict.fromkeys(typical_values(np.asarray(leaf.value if leaf.array is None else leaf.array)))
    return [value for value in found if value not in POISONS][:MAX_ARGUMENT_VALUES]


def typical_values(array):
    """Return the first, smallest and largest finite number of an array, or nothing if it has other values."""
    if array.dtype.kind not in "iuf" or not array.size:
        return []
    numbers = array.reshape(-1)[:MAX_SEARCHED]
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return []
    chosen = [number.item() for number in (numbers[0], numbers.min(), numbers.max())]
    return [bytes([number & 255]) for number in chosen] if array.itemsize == 1 else chosen
