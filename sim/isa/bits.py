"""Meanings of what counts and reverses bits; `bits`: how many the operand has.

Source: PTX ISA 9.7.1 (popc, clz, brev); CUDA Math API (ffs).
"""

from sim.isa.functions import LLVM

POPC, CLZ, BREV, FMA = LLVM("ctpop"), LLVM("ctlz", ((1, 0),)), LLVM("bitreverse"), LLVM("fma")


def popc(x, *, bits):
    """How many bits are set."""
    return (x & (1 << bits) - 1).bit_count()


def clz(x, *, bits):
    """How many zeros lead; all for 0."""
    return bits - (x & (1 << bits) - 1).bit_length()


def brev(x, *, bits):
    """The bits in reverse order."""
    return int(f"{x & (1 << bits) - 1:0{bits}b}"[::-1], 2)


def ffs(x):
    """The position of the lowest bit set, counted from 1; 0 for none."""
    return (x & -x).bit_length()


def first_set(x):
    """ffs, compiled."""
    return POPC(x ^ (x - 1)) if x != 0 else 0
