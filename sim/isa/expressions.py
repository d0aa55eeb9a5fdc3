"""The class Operation, which represents a PTX instruction as a Python expression, and the helper functions
called by such expressions."""

from dataclasses import dataclass

import numpy as np

from sim.isa import bits, ieee
from sim.isa.ptx_types import REALS


@dataclass(frozen=True)
class Operation:
    """A PTX instruction as a Python expression.

    text: the expression, with {0}, {1}, ... in place of the operands. If there are several results, the value
        of the expression is a tuple.
    operands, results: the PTX types of the operands and results.
    in_range: whether an integer result is guaranteed to be within the range of its type, so that it needs no
        mask.
    by_constant: a function (constant second operand) that returns a better expression or None; or None.
    """

    text: str
    operands: tuple
    results: tuple
    in_range: bool = False
    by_constant: object = None

    def of(self, values):
        """Return the expression with these operands substituted for its placeholders."""
        if self.by_constant and values[1].isdigit():
            return self.by_constant(int(values[1])).format(*values)
        return self.text.format(*values)


# name of a function called by expressions -> the function
HELPERS = {scalar.__name__: scalar for scalar in REALS.values()} | {"sqrt": np.sqrt}
HELPERS |= {f"{scalar.__name__}_of": halves.__getitem__ for scalar, halves in bits.HALVES.items()}
for _function in (
    ieee.saturated, ieee.at_least_zero, bits.bits_of, bits.float32_of, bits.float64_of, bits.to_tf32,
    bits.two_halves, bits.two_bytes, bits.halves_to_bytes, bits.bytes_to_halves, bits.at_most,
):  # fmt: skip
    HELPERS[_function.__name__] = _function
HELPER_ENTRIES = {}  # name of a helper -> the table entry whose result it computes
PAIRS = {}  # name of a helper -> (expression for one half, number of operands, their PTX type)
MAKERS = {}  # opcode -> the function that returns the Operation for a Name, or None


def helper(function):
    """Register a function to be called by name in expressions. Use it as a decorator."""
    HELPERS[function.__name__] = function
    return function


def maker(*names):
    """Return a decorator that registers a function as the maker for these opcodes."""

    def add(function):
        MAKERS.update(dict.fromkeys(names, function))
        return function

    return add
