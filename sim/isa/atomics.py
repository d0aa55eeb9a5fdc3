"""Atomics: the new value that each one computes from the old element, with its names in Numba and in PTX.

Operands have the element's type and are converted to it. Integers come as Python ints, and results wrap.
Every atomic returns the old element.

Sources: PTX ISA 9.7.13 (atom, red); CUDA C++ Programming Guide, "Atomic Functions"; Numba's documentation for
nanmax, nanmin, cas and compare_and_swap.
"""

import operator
from dataclasses import dataclass

from numpy import uint64

from sim.isa.functions import SAME
from sim.isa.table import THREAD, Entry, Touch


@dataclass(frozen=True, eq=False)
class Atomic(Entry):
    """An atomic operation.

    semantics: (old element, *operands) -> new element.
    overwrites: whether the new element does not depend on the old one.
    tests: whether it may leave the element as it was.
    indexed: whether a call names the element.
    """

    operands: tuple = ("value",)
    overwrites: bool = False
    tests: bool = False
    indexed: bool = True
    native: object = SAME
    scope = THREAD


ENTRIES = {}  # name -> Atomic


def add_entry(name, semantics, ptx=(), **more):
    ptx = tuple(f"{what}.{text}" for text in ptx for what in ("atom", "red"))
    ENTRIES[name] = Atomic(
        f"atomic.{name}", semantics, "PTX ISA atom", ptx=ptx, touches=(Touch("array", "change"),), **more
    ).add()


def increment(old, value):
    """Return 0 if old >= value, else old + 1."""
    return 0 if old >= value else old + 1


def decrement(old, value):
    """Return value if old is 0 or above value, else old - 1."""
    return value if old == 0 or old > value else old - 1


def larger(old, value):
    """Return the larger value. If either is NaN, the old element stays, as in Numba's max."""
    return value if value > old else old


def smaller(old, value):
    return value if value < old else old


def larger_number(old, value):
    """Return the larger value; any number wins over NaN."""
    return value if old != old or value > old else old


def smaller_number(old, value):
    return value if old != old or value < old else old


def exchange(old, value):
    return value


def compare_and_swap(old, expected, value):
    return value if old == expected else old


def unsigned_increment(old, value):
    """Return `increment` in a form to compile: next to a literal 1, Numba would turn a uint64 into a
    float64."""
    return old - old if old >= value else old + uint64(1)


def unsigned_decrement(old, value):
    return value if old == 0 or old > value else old - uint64(1)


WIDTHS = ("32", "64")
SWAP = {"operands": ("expected", "value"), "tests": True}
add_entry("add", operator.add, ("add.u32", "add.s32", "add.u64", "add.f16", "add.bf16", "add.f32", "add.f64"))
add_entry("sub", operator.sub)
add_entry("and_", operator.and_, ("and.b32", "and.b64"))
add_entry("or_", operator.or_, ("or.b32", "or.b64"))
add_entry("xor", operator.xor, ("xor.b32", "xor.b64"))
add_entry("exch", exchange, ("exch.b32", "exch.b64"), overwrites=True)
add_entry("inc", increment, ("inc.u32",), native=unsigned_increment)
add_entry("dec", decrement, ("dec.u32",), native=unsigned_decrement)
add_entry("max", larger, [f"max.{sign}{width}" for sign in "su" for width in WIDTHS])
add_entry("min", smaller, [f"min.{sign}{width}" for sign in "su" for width in WIDTHS])
add_entry("nanmax", larger_number)
add_entry("nanmin", smaller_number)
add_entry("cas", compare_and_swap, ("cas.b16", "cas.b32", "cas.b64"), **SWAP)
add_entry("compare_and_swap", compare_and_swap, indexed=False, **SWAP)
