"""Type inference: compute the type of every version of every variable (sim.frontend.ssa) by iterating to a
fixed point."""

import ast
import functools
from dataclasses import replace

import numpy as np

from sim.frontend.call_types import OF_CUDA, CallTypes
from sim.frontend.intervals import ADDITIVE, BITWISE, operation, range_interval
from sim.frontend.names import MISSING
from sim.frontend.resolve import AXIS, builtin_called, referent_of
from sim.frontend.ssa import Versions, stored_names, version_of
from sim.frontend.tree import UNARY, all_nodes, indices_of, integer_of
from sim.frontend.types import (
    ANY,
    BOOL,
    INT32,
    INT64,
    LENGTH,
    LENGTHS,
    NONE,
    UINT64,
    UNKNOWN,
    ArrayType,
    Number,
    View,
    bits,
    field,
    is_float,
    is_numpys,
    is_signed,
    item_type,
    join,
    natural,
    signed,
    type_of_value,
    widen,
    with_float64,
)
from sim.isa.promotion import COMPLEX, INTEGRAL, SIGNED, UNSIGNED
from sim.isa.table import INSTRUCTIONS

# number of iterations after which a growing interval is widened, so that the inference ends
ROUNDS = 4
# The intervals of values that follow from the limits on grids and blocks in the CUDA C++ Programming Guide.
GEOMETRY = {
    "threadIdx": (0, 1023),
    "blockIdx": (0, 2**31 - 1),
    "blockDim": (1, 1024),
    "gridDim": (1, 2**31 - 1),
}


class Types(CallTypes):
    """The types of the variables and expressions in a Source.

    parameters: {name: type}, for the parameters with known types.
    block: the block's shape (x, y, z), which bounds threadIdx.
    results: {(function, types): type} returned by device functions, shared by all inferences for one kernel.
    """

    def __init__(self, source, parameters, block=None, results=None):
        self.results, tree = {} if results is None else results, source.tree
        self.geometry = GEOMETRY | (
            {"threadIdx": [(0, n - 1) for n in block], "blockDim": [(n, n) for n in block]} if block else {}
        )
        self.block = block
        named = [part.arg for part in all_nodes(tree.args) if isinstance(part, ast.arg)]
        self.parameters, self.fixed = dict(parameters), set(named) - stored_names(tree.body)
        self.versions = Versions(named, tree.body, lambda node: referent_of(node).value, self.is_none)
        self.found = {}
        rounds, changed = 0, True
        while changed:
            rounds, changed = rounds + 1, False
            for version in self.versions.all:
                before = self.found.get(version)
                # Types only become more general, so the iteration ends once intervals are widened.
                after = join(before, self.of_version(version))
                if after != before:
                    self.found[version] = widen(after) if rounds > ROUNDS else after
                    changed = True

    def is_none(self, test):
        """Return the truth value of the condition `x is None` or `x is not None` for a parameter x, as its
        type determines it. Return None for any other condition."""
        match test:
            case ast.Compare(ast.Name(name), [ast.Is() | ast.IsNot() as sign], [ast.Constant(None)]):
                type_ = self.parameters.get(name, ANY) if name in self.fixed else ANY
                return None if type_ == ANY else (type_ == NONE) == isinstance(sign, ast.Is)
        return None

    def of_version(self, version):
        """Return the type of a version, from the types inferred so far."""
        if version.same is not None:
            return self.found.get(version.settled())
        if version.incoming is not None:
            met = (self.found.get(other) for _, other in version.comes_from() if other is not None)
            return functools.reduce(join, met, UNKNOWN)
        how, node, positions = version.source
        if how is None:
            return ANY
        if how == "parameter":
            return self.parameters.get(version.name, ANY)
        found = self.of_iteration(node) if how == "element" else self.of(node)
        return functools.reduce(item_type, positions, found)

    def result(self):
        """Return the type of the function's result."""
        returned = [self.of(node.value) if node.value else NONE for node in self.versions.returns]
        return functools.reduce(join, returned, NONE if self.versions.falls_through else UNKNOWN)

    def of_iteration(self, node):
        """Return the type of the loop variable in a `for` loop over `node`."""
        name = builtin_called(node)
        if name == "range" and node.args:
            return self.of_range([self.of(argument) for argument in node.args])
        if name == "enumerate":
            count = natural(int, LENGTH) if len(node.args) == 1 else INT64
            return count, self.of_iteration(node.args[0])
        if name == "zip":
            return tuple(map(self.of_iteration, node.args))
        return item_type(self.of(node), None)

    def of_range(self, given):
        if UNKNOWN in given:
            return UNKNOWN
        if not all(isinstance(number, Number) and number.scalar in INTEGRAL for number in given):
            return ANY
        scalars = {number.scalar for number in given}
        # Numba's range_state types: int32, int64 or uint64, depending on the types of the bounds.
        if scalars <= UNSIGNED:
            return Number(np.uint64)
        narrow, known = scalars <= SIGNED - {int}, all(number.bits is not None for number in given)
        if not known:
            return INT32 if narrow else INT64
        return Number(np.int32 if narrow else int, *range_interval(*given))

    # --- expressions ----------------------------------------------------------------------------------------

    def of(self, node):
        return getattr(self, "of_" + type(node).__name__.lower(), lambda _: ANY)(node)

    def of_constant(self, node):
        return type_of_value(node.value)

    def of_name(self, node):
        version = version_of(node)
        if version is not None:
            return self.found.get(version)
        value = referent_of(node).value
        return ANY if value is MISSING else type_of_value(value)

    def of_attribute(self, node):
        found = referent_of(node)
        if found.role == AXIS and node.attr in "xyz":
            return Number(np.int32, *of_axis(self.geometry[found.name], "xyz".index(node.attr)))
        if found.name in OF_CUDA:
            return OF_CUDA[found.name]
        array = self.of(node.value)
        if isinstance(array, ArrayType):
            return {
                "shape": (LENGTHS,) * array.rank,
                "strides": (signed(int, LENGTH),) * array.rank,
                "size": LENGTHS,
                "ndim": natural(int, 4),
                "T": replace(array, rowwise=False, shape=None),
                "itemsize": natural(int, 8),
            }.get(node.attr, ANY)
        if array is UNKNOWN:
            return UNKNOWN
        if (named := field(array, node.attr)) != ANY:
            return named
        if node.attr in ("real", "imag") and (real := real_part(array)) is not ANY:
            return real
        if node.attr in ("shape", "ndim", "size"):
            return {"ndim": natural(int, 4), "size": LENGTHS}.get(node.attr, ANY)
        return ANY if found.value is MISSING else type_of_value(found.value)

    def of_subscript(self, node):
        # An item of a shape is a length, even if the type of the array is not known.
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            return LENGTHS
        held = self.of(node.value)
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return UNKNOWN if held is UNKNOWN else field(held, node.slice.value)
        if isinstance(held, ArrayType | View):
            return self.of_part(held, indices_of(node))
        return item_type(held, node.slice.value if isinstance(node.slice, ast.Constant) else None)

    def of_part(self, array, indices):
        """Return the type of `array[indices]`: an element, or an array with an axis for each slice and each
        missing index.

        The result is an ArrayType only if each slice is a plain `:`. Any other slice may be empty, so the
        result is a View.
        """
        axes = [isinstance(index, ast.Slice) for index in indices] + [True] * (array.rank - len(indices))
        types_ = [self.of(index) for index, axis in zip(indices, axes) if not axis]
        if len(axes) > array.rank or not all(isinstance(type_, Number | None) for type_ in types_):
            return ANY
        if not any(axes):
            return array.element
        if isinstance(array, View) or any(axis and not is_whole(index) for index, axis in zip(indices, axes)):
            return View(array.element, sum(axes))
        return replace(array, rank=sum(axes), rowwise=array.rowwise and axes[-1], shape=None)

    def of_tuple(self, node):
        starred = any(isinstance(element, ast.Starred) for element in node.elts)
        return ANY if starred else tuple(map(self.of, node.elts))

    def of_namedexpr(self, node):
        return self.of(node.value)

    def of_ifexp(self, node):
        if (decision := getattr(node, "decision", None)) is None:
            return join(self.of(node.body), self.of(node.orelse))
        return self.of(node.body if decision else node.orelse)

    def of_boolop(self, node):
        return functools.reduce(join, map(self.of, node.values))

    def of_compare(self, node):
        return BOOL

    def of_unaryop(self, node):
        # Python folds the sign of a literal: -2**63 is an int64, although 2**63 is a uint64.
        if (value := integer_of(node)) is not None:
            return type_of_value(value)
        operand = self.of(node.operand)
        if isinstance(node.op, ast.Not):
            return BOOL
        if not isinstance(operand, Number):
            return operand if operand is UNKNOWN else ANY
        version = INSTRUCTIONS[f"operator.{UNARY[type(node.op)]}"].version(operand.scalar)
        if version is None or operand.scalar not in SIGNED or operand.bits is None:
            return ANY if version is None else Number(version.results)
        if isinstance(node.op, ast.USub):  # The negation of the lowest integer overflows to the same integer.
            negative = Number(int, -operand.high, -operand.low)
            return negative if operand.scalar is int else signed(int, operand.bits)
        low, high = operand.low, operand.high
        return Number(int, low, high) if isinstance(node.op, ast.UAdd) else Number(int, ~high, ~low)

    def of_binop(self, node):
        return operation(node.op, self.of(node.left), self.of(node.right))

    def alike(self, left, right):
        """Return whether Python and Numba compare these two expressions in the same way."""
        types_ = [self.of(left), self.of(right)]
        integers = all(bits(type_) is not None or is_signed(type_) for type_ in types_)
        return all(map(is_float, types_)) or integers or NONE in types_ or with_float64(*types_)

    def plain(self, op, left, right):
        """Return whether Python's own operator computes Numba's result for these operands and never
        raises."""
        a, b = self.of(left), self.of(right)
        if is_numpys(a, b):
            quotient = isinstance(op, ast.Div) and not {a.scalar, b.scalar} & COMPLEX
            return quotient or isinstance(op, (*ADDITIVE, ast.Mult))
        if a == b == UINT64:
            return isinstance(op, (*ADDITIVE, ast.Mult, *BITWISE))
        if bits(a) is None or bits(b) is None or bits(operation(op, a, b)) is None:
            return False
        # A divisor of zero would raise in Python.
        if isinstance(op, (ast.FloorDiv, ast.Mod)):
            return b.low > 0
        return b.low >= 0 if isinstance(op, (ast.LShift, ast.RShift)) else not isinstance(op, ast.Div)


def real_part(type_):
    """Return the type of `.real` and `.imag` for a complex number or an array of them; ANY for other
    types."""
    if isinstance(type_, ArrayType | View):
        element = real_part(type_.element)
        return ANY if element == ANY else View(element, type_.rank)
    known = isinstance(type_, Number) and type_.scalar in COMPLEX
    return Number(type(type_.scalar(0).real)) if known else ANY


def is_whole(index):
    """Return whether an index is a plain `:`."""
    return isinstance(index, ast.Slice) and index.lower is index.upper is index.step is None


def of_axis(ends, axis):
    """Return the interval for one axis. `ends` is a list with an interval per axis, or one interval for all
    axes."""
    return ends[axis] if isinstance(ends, list) else ends
