"""Expressions for PTX instructions: the Operation, and the functions that an expression may call."""

from dataclasses import dataclass

import numpy as np

from sim.isa import bits, ieee
from sim.isa.arithmetic import REALS


@dataclass(frozen=True)
class Operation:
    """An instruction as an expression.

    text: the expression, with {0}, {1}, ... for the operands; a tuple if there are several results.
    operands, results: their PTX types.
    kept: whether an integer result is certainly within its type's range.
    by_constant: a function that returns the expression for a constant second operand.
    """

    text: str
    operands: tuple
    results: tuple
    in_range: bool = False
    by_constant: object = None

    def of(self, values):
        """Return the expression for these operands."""
        if self.by_constant and values[1].isdigit():
            return self.by_constant(int(values[1])).format(*values)
        return self.text.format(*values)


# name in an expression -> the function that it calls
HELPERS = {scalar.__name__: scalar for scalar in REALS.values()} | {"sqrt": np.sqrt}
HELPERS |= {f"{scalar.__name__}_of": halves.__getitem__ for scalar, halves in bits.HALVES.items()}
for _function in (
    ieee.saturated, ieee.at_least_zero, bits.bits_of, bits.float32_of, bits.float64_of, bits.to_tf32,
    bits.two_halves, bits.two_bytes, bits.halves_to_bytes, bits.bytes_to_halves, bits.at_most,
):  # fmt: skip
    HELPERS[_function.__name__] = _function
HELPER_ENTRIES = {}  # helper's name -> its entry in the table
PAIRS = {}  # helper's name -> (expression for one half, number of operands, their PTX type)
MAKERS = {}  # first part of a name -> function that makes the Operation of a Name, or returns None


def helper(function):
    """Register a function that expressions call by its name."""
    HELPERS[function.__name__] = function
    return function


def maker(*names):
    def add(function):
        MAKERS.update(dict.fromkeys(names, function))
        return function

    return add
