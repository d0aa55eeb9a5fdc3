"""Atomic operations. An entry computes the new value of an element from its old value, and lists the
operation's names in Numba and in PTX.

Operands are converted to the element's type. Integers are passed as Python ints, and results wrap around.
Every operation returns the old value, which PTX's `red` discards.

Source: PTX ISA 9.7.13, "Parallel Synchronization and Communication Instructions" (atom, red); CUDA C++
Programming Guide, "Atomic Functions"; Numba's documentation of nanmax, nanmin, cas and compare_and_swap;
numba/cuda/cudadecl.py, for the dtypes.
"""

import functools
import operator
from dataclasses import dataclass

from numpy import uint64

from sim.isa.functions import SAME
from sim.isa.table import THREAD, Entry, Touch

INTEGERS = ("int32", "uint32", "int64", "uint64")
NUMBERS = (*INTEGERS, "float32", "float64")
UNSIGNED = ("uint32", "uint64")


@dataclass(frozen=True, eq=False)
class Atomic(Entry):
    """An atomic operation.

    semantics: the function (old value, *operands) that returns the new value.
    operands: the names of the operands after the element.
    overwrites: whether the new value is independent of the old one.
    tests: whether the operation stores only under a condition, and may leave the element unchanged.
    indexed: whether a call passes an index after the array. Without an index, the array has one dimension.
    dtypes: the names of the dtypes of elements for which Numba compiles the function.
    native: the compiled form. By default, it is the semantics.
    """

    operands: tuple = ("value",)
    overwrites: bool = False
    tests: bool = False
    indexed: bool = True
    dtypes: tuple = INTEGERS
    native: object = SAME
    scope = THREAD


@functools.cache
def is_compiled(entry, dtype, dimensions):
    """Return whether Numba compiles the function of an entry (Atomic) for an array.

    dtype: its dtype, or Numba's type of its elements.
    dimensions: the number of its dimensions.
    """
    return str(dtype) in entry.dtypes and (dimensions > 0 if entry.indexed else dimensions == 1)


ENTRIES = {}  # name -> Atomic


def add_entry(name, semantics, ptx=(), **more):
    """Add an atomic to the table.

    name: its name after `cuda.atomic.`.
    ptx: its PTX names without the opcode. Each name is added with both opcodes, atom and red.
    """
    ptx = tuple(f"{what}.{text}" for text in ptx for what in ("atom", "red"))
    ENTRIES[name] = Atomic(
        f"atomic.{name}", semantics, "PTX ISA atom", ptx=ptx, touches=(Touch("array", "change"),), **more
    ).add()


def increment(old, value):
    """Return 0 if `old` has reached `value`, otherwise old + 1 (atom.inc)."""
    return 0 if old >= value else old + 1


def decrement(old, value):
    """Return `value` if `old` is 0 or greater than `value`, otherwise `old` - 1 (atom.dec)."""
    return value if old == 0 or old > value else old - 1


def larger(old, value):
    """Return the larger value. If either is NaN, keep the old value, as Numba's atomic max does."""
    return value if value > old else old


def smaller(old, value):
    """Return the smaller value. If either is NaN, keep the old value."""
    return value if value < old else old


def larger_number(old, value):
    """Return the larger value. If one value is NaN, return the other."""
    return value if old != old or value > old else old


def smaller_number(old, value):
    """Return the smaller value. If one value is NaN, return the other."""
    return value if old != old or value < old else old


def exchange(old, value):
    """Return the value that replaces the old one (atom.exch)."""
    return value


def compare_and_swap(old, expected, value):
    """Return `value` if the old value is the expected one, otherwise the old value (atom.cas)."""
    return value if old == expected else old


def unsigned_increment(old, value):
    """Return 0 if `old` has reached `value`, otherwise old + 1.

    This is the compiled form of `increment`. With a literal 1, Numba would convert a uint64 to float64.
    """
    # old - old is a zero of the element's type.
    return old - old if old >= value else old + uint64(1)


def unsigned_decrement(old, value):
    """Return `value` if `old` is 0 or greater than `value`, otherwise old - 1. This is the compiled form of
    `decrement`."""
    return value if old == 0 or old > value else old - uint64(1)


WIDTHS = ("32", "64")
SWAP = {"operands": ("expected", "value"), "tests": True}
ADDITIONS = ("add.u32", "add.s32", "add.u64", "add.f16", "add.bf16", "add.f32", "add.f64")
add_entry("add", operator.add, ADDITIONS, dtypes=NUMBERS)
# PTX has no atom.sub. Numba negates the operand of an atom.add.
add_entry("sub", operator.sub, dtypes=NUMBERS)
add_entry("and_", operator.and_, ("and.b32", "and.b64"))
add_entry("or_", operator.or_, ("or.b32", "or.b64"))
add_entry("xor", operator.xor, ("xor.b32", "xor.b64"))
add_entry("exch", exchange, ("exch.b32", "exch.b64"), overwrites=True)
add_entry("inc", increment, ("inc.u32",), native=unsigned_increment, dtypes=UNSIGNED)
add_entry("dec", decrement, ("dec.u32",), native=unsigned_decrement, dtypes=UNSIGNED)
add_entry("max", larger, [f"max.{sign}{width}" for sign in "su" for width in WIDTHS], dtypes=NUMBERS)
add_entry("min", smaller, [f"min.{sign}{width}" for sign in "su" for width in WIDTHS], dtypes=NUMBERS)
# Numba's nanmax and nanmin have no PTX instruction of their own.
add_entry("nanmax", larger_number, dtypes=NUMBERS)
add_entry("nanmin", smaller_number, dtypes=NUMBERS)
add_entry("cas", compare_and_swap, ("cas.b16", "cas.b32", "cas.b64"), **SWAP)
add_entry("compare_and_swap", compare_and_swap, indexed=False, **SWAP)
